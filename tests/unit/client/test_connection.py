"""One socket: an answer belongs to its question, and a dead server ends every wait."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from leaks import open_descriptors
from prefeed import errors
from prefeed.client.connection import Connection
from prefeed.client.node import NodeClient
from prefeed.config import SERVER_SETTINGS, Config, resolve
from prefeed.errors import (
    ObjectNotFoundError,
    PrefeedError,
    ServerError,
    ServerUnavailableError,
    VersionMismatchError,
    error_of,
)
from prefeed.stage_cache.cache_link import CacheLink, CacheName
from prefeed.types import ServerStatus, Statistics
from prefeed.wire import messages as m
from scripted import ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("sandbox")


@pytest.fixture
def config() -> Config:
    return resolve({"autostart": False})


@pytest.fixture
def server(config: Config) -> Iterator[ScriptedServer]:
    with scripted(config) as server:
        yield server


@pytest.fixture
def connection(server: ScriptedServer) -> Iterator[Connection]:
    connection = Connection.open(server.config)
    yield connection
    connection.close()


def status() -> m.StatusReport:
    return m.StatusReport(
        ServerStatus(
            pid=1, version="", home="", store="", on_tmpfs=True, uptime_seconds=0.0, clients=1, plans=0, in_flight=0,
            max_in_flight=0,
        )
    )  # fmt: skip


def demand(connection: Connection, object_id: int) -> m.Answered:
    return connection.request(m.Demand(connection.next_token(), 0, 1, object_id), m.Answered)


def echo(message: m.AnyMessage) -> list[m.Message]:
    assert isinstance(message, m.Demand)
    return [m.Answered(message.token, 2, data=bytes([message.object_id]))]


def test_no_server_is_said_with_what_to_do(config: Config) -> None:
    with pytest.raises(ServerUnavailableError, match="prefeed server start"):
        Connection.open(config)


def test_a_server_that_ends_before_its_first_word_is_none(server: ScriptedServer) -> None:
    server.ends_at_hello = True
    with pytest.raises(ServerUnavailableError, match="prefeed server start"):
        Connection.open(server.config)


def test_another_server_is_started_when_one_ends_before_its_first_word() -> None:
    config = resolve({})
    with scripted(config) as dying:
        dying.ends_at_hello = True
        connection = Connection.open(config)
        assert NodeClient(connection).status().home == str(config.home)
        connection.close()


def test_a_server_of_another_protocol_is_refused(server: ScriptedServer) -> None:
    server.protocol = 99
    with pytest.raises(VersionMismatchError, match="another protocol"):
        Connection.open(server.config)


def test_a_stage_cache_in_another_memory_is_refused(server: ScriptedServer) -> None:
    """As in a container that shares the home with the server's, and not its /dev/shm. Objects are read nevertheless."""
    memory_dir = server.config.memory_dir
    answer = m.CacheOpened(str(memory_dir), 1 << 20, "", 0, "instance", place=(1, 1))
    server.script = lambda message: [answer] if isinstance(message, m.OpenCache) else echo(message)
    with pytest.raises(ServerError, match=f"keeps the cache in {memory_dir}.*PREFEED_MEMORY_DIR"):
        CacheLink.open(server.config, CacheName(session=0, cache=1, description=""))
    with closing(Connection.open(server.config)) as connection:
        assert demand(connection, 3).data == b"\3"


def test_a_greeting_that_fails_closes_the_descriptors_of_the_tier(server: ScriptedServer) -> None:
    """The home is another directory here, as in a container that does not share it."""
    server.home = (1, 1)
    before = open_descriptors()
    with pytest.raises(ServerError, match="another directory there"):
        Connection.open(server.config)
    assert not [name for name in open_descriptors() - before if "memfd" in name]


@pytest.mark.parametrize("cls", [ObjectNotFoundError, errors.AccessDeniedError, errors.TierFullError])
def test_an_error_of_the_wire_is_the_error_it_names(cls: type[PrefeedError]) -> None:
    error = error_of(cls.code, "text", PrefeedError)
    assert (type(error), str(error)) == (cls, "text")


def test_an_error_that_is_not_known_is_still_an_error() -> None:
    assert type(error_of("of-the-future", "text", PrefeedError)) is PrefeedError


def test_a_refusal_is_raised(server: ScriptedServer, connection: Connection) -> None:
    server.script = lambda message: [m.Refused("object-not-found", "gone", getattr(message, "token", 0))]
    with pytest.raises(ObjectNotFoundError, match="gone"):
        demand(connection, 3)
    with pytest.raises(ObjectNotFoundError, match="gone"):
        NodeClient(connection).status()


def test_an_answer_of_another_kind_is_refused(server: ScriptedServer, connection: Connection) -> None:
    server.script = lambda message: [m.Stopping()]
    with pytest.raises(ServerError, match="answered Stopping to GetStatus"):
        NodeClient(connection).status()


def test_an_answer_to_another_question_is_passed_over(server: ScriptedServer, connection: Connection) -> None:
    def late(message: m.AnyMessage) -> list[m.Message]:
        assert isinstance(message, m.Demand)
        return [
            m.Answered(message.token - 1, 2, data=b"of the one before"),
            m.Refused("prefeed-error", "of a report", 0),
            m.Answered(message.token, 2, data=b"its own"),
        ]

    server.script = late
    assert demand(connection, 3).data == b"its own"


def test_an_interrupted_question_leaves_no_answer_for_the_next(
    server: ScriptedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = lambda message: [m.StatisticsReport(Statistics(hits=7))]

    def interrupt() -> m.AnyMessage:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(connection, "_receive", interrupt)
        NodeClient(connection).statistics()
    with pytest.raises(ServerUnavailableError):
        NodeClient(connection).status()


def test_a_server_that_dies_ends_the_wait(server: ScriptedServer, connection: Connection) -> None:
    server.script = lambda message: None
    with pytest.raises(ServerUnavailableError, match="closed the connection"):
        demand(connection, 3)
    with pytest.raises(ServerUnavailableError):
        connection.send(m.Stop())
        connection.send(m.Stop())


def test_a_server_that_talks_nonsense_is_a_server_error(
    server: ScriptedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripted.encode", lambda message: b"\xff" * 8)
    server.script = lambda message: [m.Stopping()]
    with pytest.raises(ServerError):
        demand(connection, 3)


@pytest.mark.usefixtures("server")
def test_a_connection_in_a_reference_cycle_is_closed_when_it_is_collected(config: Config) -> None:
    """Torch's exceptions of workers are in a cycle with their traceback, which refers to the loop, its loader and the connection."""
    cycle: list[object] = [Connection.open(config)]
    cycle.append(cycle)
    del cycle
    gc.collect()  # a socket that is collected before it is closed warns, which fails the test


def test_forerunners_are_told_before_the_answer(server: ScriptedServer, connection: Connection) -> None:
    server.script = lambda message: [
        m.Listing(message.token, 5, 50),  # type: ignore[union-attr]
        m.Listing(message.token, 9, 90),  # type: ignore[union-attr]
        m.DatasetOpened(message.token, 3, "/nowhere"),  # type: ignore[union-attr]
    ]
    told: list[tuple[int, int]] = []
    opened = NodeClient(connection).open_dataset("/x", listing=lambda *counts: told.append(counts))
    assert (opened.dataset, told) == (3, [(5, 50), (9, 90)])


def test_threads_take_turns(server: ScriptedServer, connection: Connection) -> None:
    server.script = echo
    wrong: list[int] = []

    def ask(object_id: int) -> None:
        answers = [demand(connection, object_id).data for _ in range(50)]
        wrong.extend(object_id for data in answers if data != bytes([object_id]))

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_settings_that_the_running_server_does_not_have_are_said_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("prefeed.client.connection._said", set())
    server.settings = {name: str(getattr(server.config, name)) for name in SERVER_SETTINGS} | {"workers": "7"}
    for given in ({}, {"memory": "1GiB", "idle_timeout": 30}, {"memory": "1GiB"}):
        Connection.open(resolve(given)).close()
    said = [record.getMessage() for record in caplog.records if "runs with" in record.getMessage()]
    assert said == [
        "prefeed: the node server runs with memory = 64.0 MiB; this process asked for 1.0 GiB; restart it to change that (`prefeed server stop`)"
    ]
