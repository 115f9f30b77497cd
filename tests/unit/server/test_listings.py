"""Who asks for a listing at which moment shares which one: clients of one server, an origin that waits for the test."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from desk import Client, Desk, desk
from fake_sources import MemorySource
from prefeed.config import Config
from prefeed.errors import AccessDeniedError, TransientSourceError
from prefeed.server import dataset_opener
from prefeed.sources import known_directories, library, urls
from prefeed.sources.manifest import Manifest
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.views import View
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

    def open_source(_: str, __: Config, **___: Any) -> Source:
        return held

    monkeypatch.setattr(dataset_opener, "open_source", open_source)
    return held


def ask(client: Client, *, listing_age: float = 0.0, ranks: int = 1) -> None:
    client.say(m.OpenDataset(1, URL, listing_age, ranks))


def read(server: Desk) -> None:
    """The server has read what was sent."""
    server.connect().ask(m.GetStatus(), m.StatusReport)


def num_waiting(server: Desk) -> int:
    """Return how many wait for a listing, one that runs or the next."""
    return sum(len(one.running) + len(one.waiting) for one in server.handlers._openings._listings.values())


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


class InTwoParts(Held):
    """Lists one object, and the next one when the test says so."""

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        yield from MemorySource({"a": b"1"}).list_objects()
        self.go_on.acquire()
        yield from MemorySource({"b": b"1"}).list_objects()


def test_node_hears_of_a_listing_before_it_is_done(
    server: Desk, clock: Seconds, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = InTwoParts()
    monkeypatch.setattr(dataset_opener, "open_source", lambda *_, **__: origin)
    heard: list[tuple[Source, int]] = []
    # Not through monkeypatch, which would keep the node until after the search for leaks.
    server.node.fetchers.expect = lambda source, number: heard.append((source, number))  # type: ignore[method-assign]
    client = server.connect()
    ask(client)
    read(server)
    clock.now += 0.12
    server.turn_until(lambda: bool(heard))
    assert heard == [(origin, 1)]
    origin.go_on.release()
    assert listed(client) == 2


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
    server.turn_until(lambda: num_waiting(server) == 3)  # what lies in the home is looked for in threads first
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


class Stores:
    """Stores with a bucket of one name: each account has its own, and a token that has expired is refused."""

    def __init__(self) -> None:
        self.listed_by: list[str] = []
        self.expired: set[str] = set()

    def open(self, _: str, __: Config, *, access: StoreAccess | None, view: View | None) -> Source:
        assert access is not None
        assert view is None
        return Spoken(self, **access.options)


class Spoken(MemorySource):
    def __init__(self, stores: Stores, account: str, token: str) -> None:
        super().__init__({"a": account.encode()}, url=URL)
        self.stores, self.token, self.mark = stores, token, account

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        if self.token in self.stores.expired:
            raise AccessDeniedError(f"{self.token} has expired")
        self.stores.listed_by.append(self.token)
        yield from super().list_objects()


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> Stores:
    made = Stores()
    monkeypatch.setattr(dataset_opener, "open_source", made.open)
    return made


def test_only_who_speaks_to_the_same_account_shares_a_listing(server: Desk, clock: Seconds, stores: Stores) -> None:
    """The last token is used, and that of another who asked when it is refused; it is also renewed where nothing is listed."""

    def opened(client: Client) -> m.DatasetOpened:
        while isinstance(answer := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(answer, m.DatasetOpened), answer
        return answer

    def source_of(answer: m.DatasetOpened) -> Spoken:
        source = server.node.datasets[answer.dataset].source
        assert isinstance(source, Spoken)
        return source

    stores.expired = {"old"}
    clients = [server.connect() for _ in range(3)]
    told = [{"account": "aa", "token": "new"}, {"account": "aa", "token": "old"}, {"account": "bb", "token": "other"}]
    for client, options in zip(clients, told, strict=True):
        client.say(m.OpenDataset(1, URL, options=options))
    read(server)
    clock.now += 1
    first, second, third = map(opened, clients)
    assert sorted(stores.listed_by) == ["new", "other"]
    assert (first.dataset, first.manifest_dir) == (second.dataset, second.manifest_dir)
    assert first.dataset != third.dataset
    assert Manifest.open(first.manifest_dir).key(0) != Manifest.open(third.manifest_dir).key(0)
    assert (source_of(first).mark, source_of(third).mark) == ("aa", "bb")
    clients[1].say(m.OpenDataset(2, URL, math.inf, options={"account": "aa", "token": "newer"}))
    assert opened(clients[1]).dataset == first.dataset
    assert source_of(first).token == "newer"
    clients[2].say(m.OpenDataset(3, URL, manifest_dir=first.manifest_dir, options=told[2]))
    assert "another endpoint or account" in clients[2].hear(m.Refused).text
    assert sorted(stores.listed_by) == ["new", "other"]


def test_a_directory_of_this_machine_is_listed_at_once(server: Desk) -> None:
    client = server.connect()
    root = server.config.home / "data"
    root.mkdir()
    (root / "a").write_bytes(b"1")
    client.say(m.OpenDataset(1, str(root), 0.0, 8))
    assert listed(client) == 1  # the clock stands still


# ------------------------------------------------------------ names first


@pytest.fixture
def files(server: Desk) -> Path:
    root = server.config.home / "data"
    root.mkdir(parents=True)
    for name in "abc":
        (root / name).write_bytes(name.encode())
    os.utime(root, (0, time.time() - 3600))
    return root


def ask_by_names(client: Client, root: Path) -> m.DatasetOpened:
    client.say(m.OpenDataset(1, str(root), by_names=True))
    while isinstance(answer := client.hear(m.Message), m.Listing):
        pass
    assert isinstance(answer, m.DatasetOpened), answer
    return answer


def settled(client: Client, named: m.DatasetOpened, root: Path) -> m.DatasetOpened:
    return client.ask(m.OpenDataset(9, str(root), manifest_dir=named.manifest_dir, settle=True), m.DatasetOpened)


def is_of_mere_names(opened: m.DatasetOpened) -> bool:
    return not opened.is_settled and not Manifest.open(opened.manifest_dir).is_settled


def test_another_file_behind_a_link_is_another_though_size_and_time_are_the_same(server: Desk, files: Path) -> None:
    target = files.with_name("target")
    target.write_bytes(b"1")
    (files / "link").symlink_to(target)
    for path in (target, files):
        os.utime(path, (0, time.time() - 3600))
    client = server.connect()
    first = settled(client, ask_by_names(client, files), files)
    new = files.with_name("new")
    new.write_bytes(b"2")
    os.utime(new, ns=(0, target.stat().st_mtime_ns))
    new.replace(target)
    named = ask_by_names(client, files)
    assert (named.is_settled, named.manifest_dir) == (False, first.manifest_dir)
    before, now = Manifest.open(first.manifest_dir), Manifest.open(settled(client, named, files).manifest_dir)
    changed = [now.path(index) for index in range(4) if before.key(index) != now.key(index)]
    assert changed == ["link"]


def test_sizes_are_asked_for_again_for_who_found_the_names_meanwhile(
    server: Desk, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that changes after it was asked, and before another client makes its dataset, is new for that one."""
    asked, go_on = threading.Semaphore(0), threading.Semaphore(0)
    files_now = library.files_now

    def held(manifest: Manifest) -> Any:
        found = files_now(manifest)
        asked.release()
        assert go_on.acquire(timeout=60)
        return found

    first, second = server.connect(), server.connect()
    listed = settled(first, ask_by_names(first, files), files)
    monkeypatch.setattr(library, "files_now", held)
    found = ask_by_names(first, files)
    assert (found.is_settled, found.manifest_dir) == (False, listed.manifest_dir)
    assert asked.acquire(timeout=60)
    (files / "b").write_bytes(b"longer")
    assert not ask_by_names(second, files).is_settled
    second.say(m.OpenDataset(2, str(files), manifest_dir=found.manifest_dir, settle=True))
    first.say(m.OpenDataset(2, str(files), manifest_dir=found.manifest_dir, settle=True))
    read(server)
    go_on.release()
    go_on.release()
    told = [Manifest.open(client.hear(m.DatasetOpened).manifest_dir) for client in (first, second)]
    assert [manifest.size(1) for manifest in told] == [6, 6]
    assert told[0].key(0) == Manifest.open(listed.manifest_dir).key(0)
    first.say(m.OpenDataset(3, str(files), manifest_dir=found.manifest_dir, settle=True))  # a copy of it, later
    assert first.hear(m.DatasetOpened).manifest_dir == str(told[0].directory)


@pytest.mark.parametrize("change", ["add", "unpack", "remove", "touch", "young", "link", "other file system"])
def test_names_are_listed_where_the_directory_does_not_say_that_they_are_the_same(
    server: Desk, files: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.connect()
    if change == "link":
        (files / "later").symlink_to(files.parent / "not there yet")
        os.utime(files, (0, time.time() - 3600))
    settled(client, ask_by_names(client, files), files)
    if change == "add":
        (files / "d").write_bytes(b"d")
    elif change == "unpack":  # archives say what time the directory is to have, each of them the same
        before = files.stat()
        (files / "d").write_bytes(b"d")
        os.utime(files, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "remove":
        (files / "a").unlink()
    elif change == "touch":
        os.utime(files, (0, time.time() - 1800))
    elif change == "young":
        os.utime(files)
        settled(client, ask_by_names(client, files), files)
    elif change == "link":
        (files.parent / "not there yet").write_bytes(b"now")
    else:
        monkeypatch.setattr(known_directories, "mount_type", lambda _: "fuse.something")
    opened = ask_by_names(client, files)
    assert opened.is_settled if change == "other file system" else is_of_mere_names(opened)
    settled(client, opened, files)
    expected = {"add": 4, "unpack": 4, "remove": 2, "link": 4}.get(change, 3)
    assert Manifest.open(opened.manifest_dir).num_objects == expected


class Asking:
    """Files are asked when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)
        files_now = library.files_now

        def held(manifest: Manifest) -> Any:
            self.begun.release()
            assert self.go_on.acquire(timeout=60)
            return files_now(manifest)

        monkeypatch.setattr(library, "files_now", held)


def test_the_first_dataset_of_a_directory_is_there_before_a_file_was_asked(
    server: Desk, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its names alone nothing can be read or planned; who allows an age, or wants all at once, gets the first listing too."""
    asking = Asking(monkeypatch)
    first, aged, whole = server.connect(), server.connect(), server.connect()
    named = ask_by_names(first, files)
    assert is_of_mere_names(named)
    assert named.dataset == 0
    manifest = Manifest.open(named.manifest_dir)
    assert [manifest.path(index) for index in range(3)] == ["a", "b", "c"]
    assert [manifest.size(0), manifest.total_bytes, any(manifest.keys)] == [None, 0, False]
    assert asking.begun.acquire(timeout=60)
    assert "names alone" in first.ask(m.OpenDataset(3, str(files), manifest_dir=named.manifest_dir), m.Refused).text
    assert "does not have" in first.ask(m.Demand(4, 0, 0, 0), m.Refused).text
    (files / "d").write_bytes(b"since")
    aged.say(m.OpenDataset(1, str(files), math.inf))
    read(server)
    first.say(m.OpenDataset(2, str(files), manifest_dir=named.manifest_dir, settle=True))
    asking.go_on.release()
    told = [first.hear(m.DatasetOpened), aged.hear(m.DatasetOpened)]
    assert (told[0].dataset, told[0].manifest_dir) == (told[1].dataset, told[1].manifest_dir)
    assert (told[0].listed_at, told[0].is_settled) == (pytest.approx(named.listed_at), True)
    now = Manifest.open(told[0].manifest_dir)
    assert (now.num_objects, now.sizes.tolist(), all(now.version_hashes)) == (3, [1, 1, 1], True)
    assert first.ask(m.Demand(7, 0, told[0].dataset, 1), m.Answered).token == 7
    whole.say(m.OpenDataset(1, str(files)))
    assert listed(whole) == 4
    aged.say(m.OpenDataset(1, str(files), math.inf))
    assert listed(aged) == 4


def test_what_was_added_after_the_names_were_listed_is_in_the_next_listing(
    server: Desk, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late sizes are known: the listing is as old as its names."""
    asking = Asking(monkeypatch)
    client = server.connect()
    before = time.time()
    named = ask_by_names(client, files)
    assert asking.begun.acquire(timeout=60)
    known_at = time.time()
    (files / "later").write_bytes(b"1")
    asking.go_on.release()
    settled(client, named, files)
    found = library.ManifestLibrary(server.config.home).find(
        str(files), math.inf, mark=urls.listing_mark(PosixSource(str(files)))
    )
    assert found is not None
    assert before <= found.began_at <= known_at


def test_a_file_that_is_gone_when_it_is_asked_keeps_its_place_and_nothing_is_kept_of_it(
    server: Desk, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking(monkeypatch)
    client = server.connect()
    named = ask_by_names(client, files)
    assert asking.begun.acquire(timeout=60)
    (files / "b").unlink()
    asking.go_on.release()
    opened = settled(client, named, files)
    now = Manifest.open(opened.manifest_dir)
    assert [now.path(index) for index in range(3)] == ["a", "b", "c"]
    assert [now.size(index) for index in range(3)] == [1, None, 1]
    refused = client.ask(m.Demand(5, 0, opened.dataset, 1), m.Answered)
    assert (refused.code, refused.data) == ("object-not-found", b"")
    (files / "b").write_bytes(b"back")
    again = ask_by_names(client, files)
    assert is_of_mere_names(again)
    asking.go_on.release()
    assert Manifest.open(settled(client, again, files).manifest_dir).key(1) != now.key(1)


@pytest.mark.parametrize("column", ["paths", "offsets", "sizes", "keys"])
def test_a_listing_that_is_damaged_under_a_server_is_made_again(
    server: Desk, files: Path, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server has it mapped and goes on with a whole one; one line says so, and nobody opens the damaged one."""
    client = server.connect()
    first = settled(client, ask_by_names(client, files), files)
    kept = Manifest.open(first.manifest_dir)
    data = Path(first.manifest_dir, "columns").read_bytes()
    inside = {"paths": kept.path_blob, "offsets": kept.offsets.data, "sizes": kept.sizes.data, "keys": kept.keys}
    at = data.rindex(bytes(inside[column]))
    with open(Path(first.manifest_dir, "columns"), "r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 1]))
    again = ask_by_names(client, files)
    opened = settled(client, again, files)
    lines = [record.getMessage() for record in caplog.records if "damaged" in record.getMessage()]
    assert len(lines) == 1
    assert f"{first.manifest_dir}/columns is damaged: its column '{column}'" in lines[0]
    assert "listed again" in lines[0]
    assert (opened.dataset, opened.manifest_dir) == (first.dataset, first.manifest_dir)
    assert [Manifest.open(opened.manifest_dir).path(index) for index in range(3)] == ["a", "b", "c"]
    assert [server.node.datasets[opened.dataset].manifest.path(index) for index in range(3)] == ["a", "b", "c"]


# ------------------------------------------------------------ older listings


def test_listings_that_are_not_open_are_let_go_of(server: Desk, clock: Seconds, files: Path) -> None:
    """A server that sees many listings of one root keeps those that are in use, and what they have in common."""
    client = server.connect()

    def renew(number: int) -> m.DatasetOpened:
        clock.now += 601
        (files / f"new-{number}").write_bytes(b"1")
        client.say(m.OpenDataset(1, str(files)))
        while isinstance(answer := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(answer, m.DatasetOpened)
        return answer

    def fetch(dataset: int) -> None:
        for object_id in range(3):
            client.ask(m.Demand(7, 0, dataset, object_id), m.Answered)

    first = renew(0)
    kept = Manifest.open(first.manifest_dir)
    fetch(first.dataset)
    datasets = [renew(number).dataset for number in range(1, 6)]
    assert set(server.node.datasets) == {first.dataset, *datasets[-1:]}
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.origin_requests == 3
    fetch(datasets[-1])
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.origin_requests == 3
    del kept
    last = renew(6).dataset
    assert set(server.node.datasets) == {last}
    assert last not in {first.dataset, *datasets}
    server.node.validate()
