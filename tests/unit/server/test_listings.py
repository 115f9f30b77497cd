"""Who asks for a listing at which moment shares which one: clients of one server, an origin that waits for the test."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest

import prefeed.server.openings as openings
from desk import Client, Desk, desk
from prefeed.config import Config
from prefeed.errors import TransientSourceError
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.testing.sources import MemorySource
from prefeed.types import ObjectInfo
from prefeed.wire import messages as m

pytestmark = pytest.mark.usefixtures("sandbox")

URL = "s3://bucket/train"


class Held(MemorySource):
    """Lists at once what is there, and gives it away when the test says so."""

    def __init__(self) -> None:
        super().__init__({"a": b"1"}, url=URL)
        self.listings = 0
        self.go_on = threading.Semaphore(0)
        self.is_down = False

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        found = list(super().list_objects())
        self.listings += 1
        self.go_on.acquire()
        if self.is_down:
            raise TransientSourceError("no connection")
        yield from found


class Seconds:
    """A clock that stands still."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture
def server(clock: Seconds) -> Iterator[Desk]:
    with desk(clock=clock) as made:
        yield made


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Held:
    held = Held()

    def open_source(_: str, __: Config) -> Source:
        return held

    monkeypatch.setattr(openings, "open_source", open_source)
    return held


def ask(client: Client, *, listing_age: float = 0.0, ranks: int = 1) -> None:
    client.say(m.OpenDataset(1, URL, listing_age, ranks))


def read(server: Desk) -> None:
    """The server has read what was sent."""
    server.connect().ask(m.GetStatus(), m.StatusReport)


def pass_time(server: Desk, clock: Seconds, seconds: float) -> None:
    clock.now += seconds
    read(server)


def listed(client: Client) -> int:
    while isinstance(answer := client.hear(m.Message), m.Listing):
        pass
    assert isinstance(answer, m.DatasetOpened), answer
    return Manifest.open(answer.manifest_dir).num_objects


def test_eight_that_ask_at_the_same_time_list_once(server: Desk, clock: Seconds, origin: Held) -> None:
    clients = [server.connect() for _ in range(8)]
    for client in clients:
        ask(client)
        pass_time(server, clock, 0.01)
    assert origin.listings == 0
    clock.now += 0.05
    server.turn_until(lambda: origin.listings == 1)
    origin.go_on.release()
    assert [listed(client) for client in clients] == [1] * 8
    assert origin.listings == 1


def test_ranks_list_once_when_the_last_one_has_asked(server: Desk, clock: Seconds, origin: Held) -> None:
    clients = [server.connect() for _ in range(8)]
    for client in clients:
        pass_time(server, clock, 0.12)
        assert origin.listings == 0
        ask(client, ranks=8)
    server.turn_until(lambda: origin.listings == 1)
    origin.go_on.release()
    assert [listed(client) for client in clients] == [1] * 8
    assert origin.listings == 1


def test_a_rank_that_asks_alone_waits_a_second(server: Desk, clock: Seconds, origin: Held) -> None:
    client = server.connect()
    ask(client, ranks=8)
    read(server)
    pass_time(server, clock, 0.99)
    assert origin.listings == 0
    clock.now += 0.02
    server.turn_until(lambda: origin.listings == 1)
    origin.go_on.release()
    assert listed(client) == 1


def test_who_asks_while_one_runs_sees_what_was_written_since(server: Desk, clock: Seconds, origin: Held) -> None:
    first, *later = [server.connect() for _ in range(4)]
    ask(first)
    read(server)
    clock.now += 1
    server.turn_until(lambda: origin.listings == 1)
    origin.put("b", b"2")
    for client in later:
        ask(client)
        pass_time(server, clock, 5)
    assert origin.listings == 1
    origin.go_on.release()
    assert listed(first) == 1
    server.turn_until(lambda: origin.listings == 2)
    origin.go_on.release()
    assert [listed(client) for client in later] == [2, 2, 2]
    assert origin.listings == 2


def test_who_allows_an_age_shares_the_one_that_runs(server: Desk, clock: Seconds, origin: Held) -> None:
    first, young, old = [server.connect() for _ in range(3)]
    ask(first)
    read(server)
    clock.now += 1
    server.turn_until(lambda: origin.listings == 1)
    clock.now += 10
    ask(young, listing_age=5)
    ask(old, listing_age=20)
    read(server)
    origin.put("b", b"2")
    origin.go_on.release()
    origin.go_on.release()
    assert (listed(first), listed(old), listed(young)) == (1, 1, 2)
    assert origin.listings == 2
    ask(old, listing_age=math.inf)
    assert listed(old) == 2
    assert origin.listings == 2


def test_one_that_fails_is_told_to_those_who_waited_for_it(server: Desk, clock: Seconds, origin: Held) -> None:
    first, later = server.connect(), server.connect()
    ask(first)
    read(server)
    clock.now += 1
    server.turn_until(lambda: origin.listings == 1)
    origin.is_down = True
    ask(later)
    read(server)
    origin.go_on.release()
    assert "no connection" in first.hear(m.Refused).text
    server.turn_until(lambda: origin.listings == 2)
    origin.is_down = False
    origin.go_on.release()
    assert listed(later) == 1


def test_a_directory_of_this_machine_is_listed_at_once(server: Desk) -> None:
    client = server.connect()
    root = server.config.home / "data"
    root.mkdir()
    (root / "a").write_bytes(b"1")
    client.say(m.OpenDataset(1, str(root), 0.0, 8))
    assert listed(client) == 1  # the clock stands still
