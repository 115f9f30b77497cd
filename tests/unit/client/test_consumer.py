"""A loader's plans reach the server, and the next server when the first has died."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leaks import wait_until
from nodes import content, kill
from prefeed.client.connection import Connection
from prefeed.client.consumer import Consumer
from prefeed.client.dataset import NodeDataset, open_node_dataset
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.sources.catalogue import Catalogue
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.library import ManifestLibrary
from prefeed.types import ReadCounts
from prefeed.wire import messages as m
from sandbox import Sandbox
from scripted import ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_FILES = 40


@pytest.fixture(autouse=True)
def _recovers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.client.consumer._RECOVER_SECONDS", 0.0)


@pytest.fixture
def config() -> Config:
    return resolve({})


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    directory = sandbox.root / "origin"
    directory.mkdir()
    for index in range(NUM_FILES):
        (directory / f"{index:02d}.bin").write_bytes(content(index))
    return directory


@pytest.fixture
def dataset(origin: Path, config: Config) -> NodeDataset:
    manifest = ManifestLibrary(config.home).open(str(origin), config)
    return NodeDataset(number=1, url=str(origin), manifest=manifest, instance="one", config=config)


@pytest.fixture
def server(dataset: NodeDataset) -> Iterator[ScriptedServer]:
    with scripted(dataset.config) as server:
        server.script = reopening
        yield server


@pytest.fixture
def consumer(server: ScriptedServer, dataset: NodeDataset) -> Iterator[Consumer]:
    consumer = Consumer(NodeClient(Connection.open(dataset.config)), dataset)
    yield consumer
    consumer.close()


def reopening(message: m.AnyMessage) -> list[m.Message]:
    """Know any manifest by the number 42."""
    if isinstance(message, m.OpenDataset):
        return [m.DatasetOpened(message.token, 42, message.manifest_dir)]
    return []


def ids(*given: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(given, dtype=np.int64)


def order(count: int = NUM_FILES) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(count, dtype=np.int64)[::-1].copy()


def files_in_transit(config: Config) -> list[str]:
    return [path.name for path in config.runtime_dir.glob("transit-*")]


def lose_server(server: ScriptedServer, consumer: Consumer, position: int) -> None:
    """Let the connection break, and the consumer find out as it reports its position."""
    server.instance = "two"
    server.hang_up()

    def is_noticed() -> bool:
        consumer.advance(position)
        return not consumer.is_connected or len(server.of(m.OpenDataset)) > 0

    assert wait_until(is_noticed, timeout_seconds=60)


def wait_position(server: ScriptedServer, index: int) -> None:
    """Wait until the last position that the server heard of is this one."""

    def is_heard() -> bool:
        positions = server.of(m.Position)
        return bool(positions) and positions[-1].index == index  # type: ignore[union-attr]

    assert wait_until(is_heard, timeout_seconds=60), server.of(m.Position)


def wait_recovered(consumer: Consumer) -> None:
    assert wait_until(lambda: consumer.is_connected, timeout_seconds=60)


# ------------------------------------------------------------ a server that lives


def test_an_epoch_is_told_as_it_goes(server: ScriptedServer, consumer: Consumer, config: Config) -> None:
    consumer.begin(order())
    consumer.extend(ids(3, 4))
    consumer.advance(16)
    consumer.announce(ids(1, 2))
    consumer.begin_announced(ids(1, 2))
    server.wait_heard(m.AdoptUpcoming)
    kinds = [type(message) for message in server.heard]
    assert kinds == [m.RegisterPlan, m.ExtendPlan, m.Position, m.RegisterPlan, m.AdoptUpcoming]
    assert server.plans == [order().tolist(), [1, 2]]
    assert [message.upcoming for message in server.of(m.RegisterPlan)] == [False, True]  # type: ignore[union-attr]
    assert [message.index for message in server.of(m.Position)] == [16]  # type: ignore[union-attr]
    assert {message.consumer for message in server.heard} == {consumer.number}  # type: ignore[union-attr]
    assert files_in_transit(config) == []


@pytest.fixture
def of_catalogue(server: ScriptedServer, dataset: NodeDataset, tmp_path: Path) -> Iterator[Consumer]:
    """A consumer of files opened by path; the server tells its counts."""
    CatalogueWriter.open_or_create(tmp_path / "files", ["/a", "/b"]).close()
    server.script = lambda message: (
        [m.ReadCountsReport(ReadCounts(), message.token)]
        if isinstance(message, m.GetReadCounts)
        else reopening(message)
    )
    opened = replace(dataset, manifest=Catalogue.open(tmp_path / "files"))
    consumer = Consumer(NodeClient(Connection.open(dataset.config)), opened)
    yield consumer
    consumer.close()


def test_files_may_be_read_once_the_server_knows_that_an_epoch_has_begun(
    server: ScriptedServer, of_catalogue: Consumer
) -> None:
    """A reader that was quicker would find the keys of the last epoch."""
    of_catalogue.begin(ids(0, 1))
    assert [type(message) for message in server.heard] == [m.RegisterPlan, m.GetReadCounts]
    of_catalogue.announce(ids(1, 0))
    of_catalogue.begin_announced(ids(1, 0))
    kinds = [type(message) for message in server.heard]
    assert kinds[2:] == [m.RegisterPlan, m.AdoptUpcoming, m.GetReadCounts]
    assert [message.recheck for message in server.of(m.RegisterPlan)] == [True, False]  # type: ignore[union-attr]
    assert [message.recheck for message in server.of(m.AdoptUpcoming)] == [True]  # type: ignore[union-attr]


def test_consumers_have_numbers_of_their_own(server: ScriptedServer, dataset: NodeDataset) -> None:
    connections = [Connection.open(dataset.config) for _ in range(3)]
    consumers = [Consumer(NodeClient(connection), dataset) for connection in connections]
    assert len({consumer.number for consumer in consumers}) == 3
    for consumer in consumers:
        consumer.close()


def test_a_consumer_that_was_closed_says_nothing_more(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.begin(order())
    server.wait_heard(m.RegisterPlan)
    consumer.close()
    consumer.advance(3)
    consumer.begin(order())
    assert not consumer.is_connected
    assert len(server.heard) == 1


def test_a_consumer_may_be_closed_by_a_finalizer_in_its_own_thread(consumer: Consumer) -> None:
    """Garbage is collected wherever something is allocated, also while a lock is held."""
    consumer._recovering = threading.current_thread()
    with consumer._lock:
        consumer.close()
    consumer._recovering = None
    assert not consumer.is_connected


def test_a_forked_child_says_nothing(server: ScriptedServer, consumer: Consumer, config: Config) -> None:
    consumer.begin(order())
    server.wait_heard(m.RegisterPlan)
    child = os.fork()
    if child == 0:
        consumer.advance(3)
        consumer.begin(order())
        os._exit(len(files_in_transit(config)) + (consumer._recovering is not None))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    consumer.advance(7)
    server.wait_heard(m.Position)
    assert [message.index for message in server.of(m.Position)] == [7]  # type: ignore[union-attr]
    assert len(server.plans) == 1


def plans_of(server: ScriptedServer, count: int) -> list[m.RegisterPlan]:
    return [message for message in server.wait_heard(m.RegisterPlan, count) if isinstance(message, m.RegisterPlan)]


@pytest.mark.parametrize("revalidate", [True, False])
def test_files_are_asked_whether_they_changed_at_the_first_epoch_and_at_each_if_so_set(
    server: ScriptedServer, dataset: NodeDataset, revalidate: bool
) -> None:
    set_so = replace(dataset, config=resolve({"revalidate": revalidate}))
    consumer = Consumer(NodeClient(Connection.open(dataset.config)), set_so)
    consumer.begin(order())
    consumer.announce(order())
    consumer.begin_announced(order())
    consumer.begin(order())
    assert [plan.recheck for plan in plans_of(server, 3)] == [True, False, revalidate]
    (adopted,) = server.of(m.AdoptUpcoming)
    assert adopted.recheck is revalidate  # type: ignore[union-attr]
    consumer.close()


def test_files_are_asked_again_after_an_epoch_without_the_server(server: ScriptedServer, dataset: NodeDataset) -> None:
    set_so = replace(dataset, config=resolve({"revalidate": False}))
    consumer = Consumer(NodeClient(Connection.open(dataset.config)), set_so)
    consumer.begin(order())
    consumer.was_elsewhere()
    consumer.begin(order())
    consumer.begin(order())
    assert [plan.recheck for plan in plans_of(server, 3)] == [True, True, False]
    consumer.close()


def test_an_epoch_that_is_about_to_begin_is_asked_once(server: ScriptedServer, consumer: Consumer) -> None:
    for _ in range(2):
        consumer.announce(order(), begins=True)
        consumer.begin_announced(order())
    server.wait_heard(m.AdoptUpcoming, 2)
    assert [plan.recheck for plan in plans_of(server, 2)] == [True, True]
    assert [message.recheck for message in server.of(m.AdoptUpcoming)] == [False, False]  # type: ignore[union-attr]


def test_an_announcement_that_was_wrong_is_asked_again(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.announce(order(), begins=True)
    consumer.begin(ids(1, 2))
    assert [(plan.upcoming, plan.recheck) for plan in plans_of(server, 2)] == [(True, True), (False, True)]


@pytest.mark.parametrize("resident", [True, False])
def test_a_consumer_that_reads_once_says_so(server: ScriptedServer, dataset: NodeDataset, resident: bool) -> None:
    set_so = replace(dataset, config=resolve({"read_once": not resident}))
    consumer = Consumer(NodeClient(Connection.open(dataset.config)), set_so)
    consumer.begin(order())
    consumer.announce(order())
    assert [plan.resident for plan in plans_of(server, 2)] == [resident, resident]
    consumer.close()


def test_a_consumer_says_when_it_keeps_from_now_on_and_its_later_plans_do_so_too(
    server: ScriptedServer, consumer: Consumer
) -> None:
    consumer.keep(resident=True)  # as before
    consumer.begin(order())
    consumer.keep(resident=False)
    consumer.keep(resident=False)
    consumer.keep(resident=True)
    consumer.keep(resident=False)
    consumer.announce(order())
    assert [plan.resident for plan in plans_of(server, 2)] == [True, False]
    assert [message.resident for message in server.of(m.KeepPlans)] == [False, True, False]  # type: ignore[union-attr]


# ------------------------------------------------------------ a server that dies


def test_what_follows_is_told_in_a_file(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.begin(np.arange(4))
    consumer.foresee(np.array([3, 1, 2]))
    (told,) = server.wait_heard(m.Foresee)
    assert isinstance(told, m.Foresee)
    assert told.consumer == consumer.number
    assert np.fromfile(told.ids_file, dtype=np.uint32).tolist() == [3, 1, 2]


def test_without_a_server_nothing_is_left_of_what_follows(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.close()
    consumer.foresee(np.array([3, 1, 2]))
    assert list(consumer.dataset.config.runtime_dir.glob("transit-*")) == []


def test_the_next_server_is_given_the_rest_of_the_plan(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.begin(order())
    server.wait_heard(m.RegisterPlan)
    lose_server(server, consumer, 24)
    wait_recovered(consumer)
    server.wait_heard(m.RegisterPlan, 2)
    assert server.plans == [order().tolist(), order()[24:].tolist()]
    assert server.of(m.RegisterPlan)[1].dataset == 42  # type: ignore[union-attr]
    consumer.advance(30)
    wait_position(server, 30 - 24)


def test_an_order_that_continues_is_told_in_files(server: ScriptedServer, consumer: Consumer, config: Config) -> None:
    consumer.begin(order(20), is_partial=True)
    consumer.extend(ids(1, 2, 3), are_read_soon=False)
    consumer.announce(order(20), is_partial=True)
    consumer.begin_announced(order(20), is_partial=True)
    server.wait_heard(m.AdoptUpcoming)
    assert [message.is_partial for message in server.of(m.RegisterPlan)] == [True, True]  # type: ignore[union-attr]
    assert server.plans == [order(20).tolist(), [1, 2, 3], order(20).tolist()]
    assert [message.ids for message in server.of(m.ExtendPlan)] == [b""]  # type: ignore[union-attr]


def test_the_next_server_is_given_what_is_left_of_all_windows(server: ScriptedServer, consumer: Consumer) -> None:
    """A server that is started between two windows follows the same order, and the next window fits behind it."""
    consumer.begin(order(20), is_partial=True)
    consumer.extend(ids(*range(20)), are_read_soon=False)
    lose_server(server, consumer, position=15)
    consumer.extend(ids(*range(20, 30)), are_read_soon=False)
    wait_recovered(consumer)
    consumer.extend(ids(31, 32), are_read_soon=False)
    consumer.advance(32)
    wait_position(server, 32 - 15)
    assert server.plans[-2:] == [[*order(20)[15:].tolist(), *range(30)], [31, 32]]
    assert server.of(m.RegisterPlan)[-1].is_partial  # type: ignore[union-attr]


@pytest.fixture
def held_up(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The server reads nothing until this is called."""
    proceed = threading.Event()
    script = server.script

    def held(message: m.AnyMessage) -> list[m.Message] | None:
        proceed.wait(60)
        return script(message)

    server.script = held
    yield proceed.set
    proceed.set()


def test_a_busy_server_is_not_awaited_and_it_hears_the_rest_later(
    held_up: Callable[[], None], server: ScriptedServer, consumer: Consumer, config: Config,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Messages are not waited for; what it has missed of the order is told when it takes it, from where the loop is."""
    consumer.begin(order(20), is_partial=True)
    for start in range(0, 20_000, 10):
        consumer.extend(ids(*range(start, start + 10)), are_read_soon=False)
        consumer.advance(start)
    num_waiting = len(files_in_transit(config))
    assert num_waiting < 2000, "nothing is left for a server that takes nothing"
    assert caplog.text == ""
    held_up()

    def is_told() -> bool:
        consumer.advance(19_995)
        consumer.extend(ids(7), are_read_soon=False)
        return bool(server.plans) and server.plans[-1][-1:] == [7] and len(server.of(m.RegisterPlan)) > 1

    assert wait_until(is_told, timeout_seconds=60)
    found = list(zip(server.plans, told(server), strict=True))
    num_registered = found[-1][1].index  # more than two when some of the messages fit into the socket late
    rest = next(plan for plan, message in found if message.index == num_registered)
    assert rest[:25] == list(range(19_975, 20_000))
    assert consumer.is_connected
    assert caplog.text == ""


def told(server: ScriptedServer) -> list[Any]:
    """Return the messages that came with ids, each with how many plans it follows."""
    kinds = (m.RegisterPlan, m.ExtendPlan)
    found = [message for message in server.heard if isinstance(message, kinds)]
    registered = itertools.accumulate(isinstance(message, m.RegisterPlan) for message in found)
    return [SimpleNamespace(message=message, index=index) for message, index in zip(found, registered, strict=True)]


def test_a_server_that_does_not_answer_is_busy_and_not_gone(
    held_up: Callable[[], None], server: ScriptedServer, consumer: Consumer, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It is said once, and its late answer is not taken for that of the next question."""
    monkeypatch.setattr("prefeed.client.consumer._COUNTS_SECONDS", 60.0)

    def answers(message: m.AnyMessage) -> list[m.Message]:
        return (
            [m.ReadCountsReport(ReadCounts(hits=message.token), message.token)]
            if isinstance(message, m.GetReadCounts)
            else []
        )

    script, server.script = server.script, answers
    assert consumer.read_counts() is not None
    monkeypatch.setattr("prefeed.client.consumer._COUNTS_SECONDS", 0.05)
    server.script = lambda message: (script(message), answers(message))[1]
    assert [consumer.read_counts() for _ in range(3)] == [None] * 3
    assert consumer.is_connected
    assert caplog.text.count("it is busy, or suspended") == 1
    assert "gone" not in caplog.text
    held_up()
    monkeypatch.setattr("prefeed.client.consumer._COUNTS_SECONDS", 60.0)
    assert consumer.read_counts() == ReadCounts(hits=5)


def test_the_next_epoch_begins_at_its_beginning_again(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.begin(order())
    lose_server(server, consumer, 24)
    wait_recovered(consumer)
    consumer.begin(ids(5, 6, 7))
    consumer.advance(2)
    server.wait_heard(m.RegisterPlan, 3)
    wait_position(server, 2)
    assert server.plans[-1] == [5, 6, 7]


def test_an_epoch_that_begins_while_the_server_is_replaced_is_the_one_that_counts(
    server: ScriptedServer, consumer: Consumer, config: Config
) -> None:
    consumer.begin(order())
    server.wait_heard(m.RegisterPlan)

    def begin_meanwhile(message: m.AnyMessage) -> list[m.Message]:
        if isinstance(message, m.OpenDataset):
            consumer.begin(ids(5, 6, 7))
        return reopening(message)

    server.script = begin_meanwhile
    lose_server(server, consumer, 24)
    wait_recovered(consumer)
    assert wait_until(lambda: server.plans[-1] == [5, 6, 7], timeout_seconds=60)
    consumer.advance(1)
    wait_position(server, 1)
    assert files_in_transit(config) == []


def test_an_epoch_that_begins_while_the_plan_is_handed_over_is_the_one_that_counts(
    server: ScriptedServer, consumer: Consumer
) -> None:
    consumer.begin(order())
    server.wait_heard(m.RegisterPlan)
    consumer._connection, connection = None, consumer._connection
    assert connection is not None
    sent: list[m.Message] = []

    class Slow:
        runtime_dir = connection.runtime_dir

        def send(self, message: m.Message) -> None:
            sent.append(message)
            if len(sent) == 1:
                consumer._begin_epoch(ids(5, 6, 7), is_partial=False)
            connection.send(message)

        def expect_answers_within(self, seconds: float) -> None:
            connection.expect_answers_within(seconds)

        def close(self) -> None:
            connection.close()

    assert consumer._hand_over(Slow(), consumer.dataset)  # type: ignore[arg-type]
    server.wait_heard(m.RegisterPlan, 3)
    assert server.plans[1:] == [order().tolist(), [5, 6, 7]]


def test_an_announcement_to_a_dead_server_is_made_good(server: ScriptedServer, consumer: Consumer) -> None:
    consumer.begin(order())
    consumer.announce(ids(1, 2, 3))
    server.wait_heard(m.RegisterPlan, 2)
    lose_server(server, consumer, NUM_FILES)
    wait_recovered(consumer)
    consumer.begin_announced(ids(1, 2, 3))
    server.wait_heard(m.RegisterPlan, 4)
    assert server.plans[-1] == [1, 2, 3]
    assert server.of(m.RegisterPlan)[-1].upcoming is False  # type: ignore[union-attr]
    assert server.of(m.AdoptUpcoming) == []


def test_without_a_server_nothing_is_left_and_nothing_raised(
    server: ScriptedServer, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    consumer.dataset = NodeDataset(
        number=1,
        url=consumer.dataset.url,
        manifest=consumer.dataset.manifest,
        instance="one",
        config=resolve({}),
    )
    server.stop()
    for _ in range(3):
        consumer.begin(order())
        consumer.extend(ids(1))
        consumer.advance(5)
        consumer.announce(order())
        consumer.begin_announced(order())
    assert not consumer.is_connected
    assert files_in_transit(consumer.dataset.config) == []


def test_a_killed_server_is_started_again_and_continues(config: Config, origin: Path) -> None:
    node = NodeClient.connect(config)
    consumer = Consumer(node, open_node_dataset(node, str(origin), config))
    consumer.begin(order())
    assert wait_until(lambda: node.statistics().resident_objects == NUM_FILES, timeout_seconds=60)
    first = node.status().pid
    with NodeClient.connect(config) as control:
        assert control.clear(None).entries == NUM_FILES
    kill(first)
    assert wait_until(lambda: consumer.advance(30) or not consumer.is_connected, timeout_seconds=60)
    wait_recovered(consumer)
    with NodeClient.connect(config) as control:
        assert control.status().pid != first
        assert wait_until(lambda: control.statistics().resident_objects == NUM_FILES - 30, timeout_seconds=60)
        assert control.status().plans == 1
        consumer.close()
        assert wait_until(lambda: control.status().plans == 0, timeout_seconds=60)


def test_a_lost_server_is_said_once(
    server: ScriptedServer, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.begin(order())
    lose_server(server, consumer, 3)
    wait_recovered(consumer)
    assert [record.getMessage() for record in caplog.records if "is gone" in record.getMessage()] == [
        "prefeed: the node server is gone; until another one runs, objects that are not in memory are read from the origin"
    ]


def test_without_a_server_to_tell_readers_find_no_key_of_the_last_epoch(
    server: ScriptedServer, of_catalogue: Consumer
) -> None:
    catalogue = of_catalogue.dataset.manifest
    with closing(CatalogueWriter.open_or_create(catalogue.directory)) as writer:
        for index in range(2):
            writer.observe(index, "v", 1)
            writer.publish(index)
        assert any(catalogue.keys)
        of_catalogue.begin(ids(0, 1))
        assert any(catalogue.keys), "the server was told, and it is for it to withdraw"
        of_catalogue.read_counts = lambda: None  # type: ignore[method-assign]
        of_catalogue.begin(ids(0, 1))
        assert not any(catalogue.keys)
