"""Catalogues that name the same files: each is opened once, stored once and counted once, and is never older than an epoch."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from nodes import Rig, content, rig
from prefeed.core.actions import Outcome
from prefeed.core.table import RESIDENT
from prefeed.server.datasets import Dataset
from prefeed.sources.manifest import entry_key
from prefeed.sources.posix import stat_files
from prefeed.sources.views import View
from prefeed.store.log import stored_bytes
from sandbox import Sandbox

NUM_FILES = 6
COST = stored_bytes(5000)
ALL = range(NUM_FILES)
ONE, OTHER, THIRD = 7, 8, 9


@pytest.fixture
def node(sandbox: Sandbox) -> Iterator[Rig]:
    with rig(sandbox.home) as made:
        yield made


@pytest.fixture
def files(sandbox: Sandbox) -> list[Path]:
    directory = sandbox.root / "origin"
    directory.mkdir()
    paths = [directory / f"{index:05d}.bin" for index in ALL]
    for index, path in enumerate(paths):
        path.write_bytes(content(index))
    return paths


def found(node: Rig, dataset: Dataset) -> list[bytes | None]:
    """Return what readers find who ask nobody."""
    assert dataset.catalogue is not None
    entries = [node.tier.get(dataset.catalogue.key(index)) for index in range(dataset.catalogue.num_objects)]
    return [None if entry is None else bytes(entry) for entry in entries]


def opened(node: Rig) -> int:
    """Return how many files were opened at the origin."""
    return node.node.statistics().origin_requests


def read(node: Rig, consumer: int, dataset: Dataset, ids: range | list[int] = ALL) -> None:
    """Read an epoch."""
    node.begin(consumer, dataset, ids)
    node.deliver_all()
    node.consume(consumer, dataset, ids)


@pytest.mark.parametrize("has_ended", [False, True])
def test_one_after_the_other(node: Rig, files: list[Path], has_ended: bool) -> None:
    one = node.open_catalogue(*files, name="one")
    read(node, ONE, one)
    if has_ended:
        node.node.end_consumer(ONE)
    other = node.open_catalogue(*reversed(files), name="other")
    read(node, OTHER, other)
    assert opened(node) == NUM_FILES
    assert has_ended or found(node, one) == [content(index) for index in ALL]
    assert found(node, other) == [content(index) for index in reversed(ALL)]
    statistics = node.node.statistics()
    assert (statistics.resident_objects, statistics.resident_bytes) == (NUM_FILES, NUM_FILES * COST)


def test_at_once(node: Rig, files: list[Path]) -> None:
    catalogues = [node.open_catalogue(*files, name=name) for name in ("one", "other", "third")]
    for consumer, catalogue in zip((ONE, OTHER, THIRD), catalogues, strict=True):
        node.begin(consumer, catalogue, ALL)
    waiting = [node.demand(catalogue, 3, consumer=ONE) for catalogue in catalogues]
    assert len(node.fetchers.jobs) == NUM_FILES
    node.deliver_all()
    assert opened(node) == NUM_FILES
    assert [found(node, catalogue) for catalogue in catalogues] == [[content(index) for index in ALL]] * 3
    assert [reader.outcome for reader in waiting] == [Outcome.STORED] * 3
    assert node.node.statistics().resident_bytes == NUM_FILES * COST


def test_a_path_that_is_listed_twice(node: Rig, files: list[Path]) -> None:
    """As in a list that is longer than its files, so that some are drawn more often."""
    dataset = node.open_catalogue(*files, *files)
    read(node, ONE, dataset, range(2 * NUM_FILES))
    assert opened(node) == NUM_FILES
    assert found(node, dataset) == [content(index) for index in ALL] * 2
    assert node.node.statistics().resident_bytes == NUM_FILES * COST


def test_files_that_one_opens_by_path(node: Rig, files: list[Path]) -> None:
    listed = node.open_catalogue(*files, name="listed")
    learned = node.open_catalogue(name="learned", num_samples=NUM_FILES)
    node.begin(ONE, listed, ALL)
    asked = [node.demand_file(learned, path, consumer=OTHER) for path in files]
    node.deliver_all()
    assert opened(node) == NUM_FILES
    assert [one.outcome for one in asked] == [Outcome.STORED] * NUM_FILES
    assert found(node, learned) == [content(index) for index in ALL]


def test_a_file_that_has_changed_is_opened_once_more(node: Rig, files: list[Path]) -> None:
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    read(node, ONE, one)
    files[2].write_bytes(b"changed")
    read(node, OTHER, other)
    assert opened(node) == NUM_FILES + 1
    assert found(node, other)[2] == b"changed"
    read(node, ONE, one)
    reader = node.demand(one, 2, consumer=ONE)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert found(node, one)[2] == b"changed"
    assert opened(node) == NUM_FILES + 1
    assert node.node.statistics().resident_objects == NUM_FILES


def test_a_file_that_changes_while_another_waits_for_it(node: Rig, files: list[Path]) -> None:
    """The request of the first began before the epoch of the second: its bytes are those of the file as it was."""
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    node.begin(ONE, one, [4])
    node.fetchers.make()
    files[4].write_bytes(b"changed")
    node.begin(OTHER, other, [4])
    node.deliver_all()
    assert opened(node) == 2
    assert found(node, other)[4] == b"changed"


def test_what_one_leaves_stays_for_the_other(sandbox: Sandbox, files: list[Path]) -> None:
    """A job has ended, and its files make room: those that the next job reads as well are that one's now."""
    more = [sandbox.root / "origin" / f"more{index}.bin" for index in ALL]
    for index, path in enumerate(more):
        path.write_bytes(content(100 + index))
    with rig(sandbox.home, capacity=(NUM_FILES + 4) * COST) as node:
        one = node.open_catalogue(*files, name="one")
        read(node, ONE, one)
        node.node.end_consumer(ONE)
        other = node.open_catalogue(*files[:3], *more, name="other")
        read(node, OTHER, other, range(NUM_FILES + 3))
        read(node, OTHER, other, range(NUM_FILES + 3))
        assert found(node, other) == [content(index) for index in (0, 1, 2, *range(100, 106))]
        assert opened(node) == 2 * NUM_FILES
        statistics = node.node.statistics()
        assert statistics.resident_bytes == statistics.resident_objects * COST == node.tier.used_bytes


def test_what_is_read_once_leaves_what_others_keep(sandbox: Sandbox, files: list[Path]) -> None:
    with rig(sandbox.home) as node:
        one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
        read(node, ONE, one)
        node.node.begin_plan(
            OTHER, other.number, np.asarray(ALL, np.int64), upcoming=False, resident=False, recheck=True
        )
        node.deliver_all()
        node.consume(OTHER, other, ALL)
        node.node.end_consumer(OTHER)
        node.deliver_all()
        assert found(node, one) == [content(index) for index in ALL]
        assert opened(node) == NUM_FILES


def test_clearing_frees_it_for_all(node: Rig, files: list[Path]) -> None:
    catalogues = [node.open_catalogue(*files, name=name) for name in ("one", "other")]
    for consumer, catalogue in zip((ONE, OTHER), catalogues, strict=True):
        read(node, consumer, catalogue)
    cleared = node.node.clear(None)
    assert (cleared.entries, cleared.bytes) == (NUM_FILES, NUM_FILES * COST)
    assert list(node.tier.entries()) == []
    assert node.node.statistics().resident_bytes == 0
    node.node.validate()


def test_a_file_that_is_not_there_is_missing_for_all(node: Rig, files: list[Path]) -> None:
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    files[1].unlink()
    readers = [node.demand(one, 1, consumer=ONE), node.demand(other, 1, consumer=OTHER)]
    node.deliver_all()
    assert [(reader.outcome, reader.code) for reader in readers] == [(Outcome.FAILED, "object-not-found")] * 2


def test_an_entry_that_goes_meanwhile_is_fetched(node: Rig, files: list[Path]) -> None:
    """Nothing stands where its bytes should be."""
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    read(node, ONE, one)
    node.begin(OTHER, other, ALL)
    node.fetchers.make()  # all are as they were
    node.node.clear(None)
    node.deliver_all()
    assert found(node, other) == [content(index) for index in ALL]
    assert opened(node) == 2 * NUM_FILES


def test_without_room_each_gets_the_bytes(sandbox: Sandbox, files: list[Path]) -> None:
    with rig(sandbox.home, capacity=0) as node:
        one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
        readers = [node.demand(one, 1, consumer=ONE), node.demand(other, 1, consumer=OTHER)]
        node.deliver_all()
        assert [(reader.outcome, reader.data) for reader in readers] == [(Outcome.INLINE, content(1))] * 2
        assert opened(node) == 1


def test_paths_of_another_mount_namespace_are_other_files(node: Rig, files: list[Path]) -> None:
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    other.view = object.__new__(View)
    assert node.node.registry.twins(one.number, 0) == []
    other.view = None
    assert node.node.registry.twins(one.number, 0) == [(other.number, 0)]


def test_what_another_mount_namespace_has_left_is_not_taken_over(node: Rig, files: list[Path]) -> None:
    """The same paths may be other files there."""
    one = node.open_catalogue(*files, name="one")
    read(node, ONE, one)
    node.node.end_consumer(ONE)
    one.view = object.__new__(View)
    other = node.open_catalogue(*files, name="other")
    read(node, OTHER, other)
    assert opened(node) == 2 * NUM_FILES
    one.view = None


def test_a_file_without_versions_is_not_shared_after_it_came(node: Rig, files: list[Path]) -> None:
    """Nothing tells old bytes from new ones."""
    one, other = (node.open_catalogue(*files, name=name) for name in ("one", "other"))
    read(node, ONE, one)
    assert one.catalogue is not None
    one.catalogue.observe(0, "", 5000)
    node.begin(OTHER, other, [0])
    node.deliver_all()
    assert opened(node) == NUM_FILES + 1


@pytest.mark.parametrize("seed", range(12))
def test_in_any_order_of_events_entries_and_books_agree(sandbox: Sandbox, files: list[Path], seed: int) -> None:
    """No entry goes that somebody has, none stays that nobody has, each is paid for once, and is the right file's."""
    draw = random.Random(seed)
    with rig(sandbox.home, capacity=draw.choice([0, 3, NUM_FILES, 3 * NUM_FILES]) * COST) as node:
        lists = [draw.choices(files, k=draw.choice([3, NUM_FILES, 9])) for _ in range(3)]
        catalogues = [node.open_catalogue(*listed, name=str(number)) for number, listed in enumerate(lists)]
        for turn in range(60):
            consumer = draw.choice([ONE, OTHER, THIRD])
            happen(node, draw, consumer, catalogues[consumer - ONE], turn=turn, file=draw.choice(files))
            node.node.pump()
            node.node.validate()
        node.deliver_all()
        require_one_entry_each(node, catalogues, lists)


def happen(node: Rig, draw: random.Random, consumer: int, catalogue: Dataset, *, turn: int, file: Path) -> None:
    """Let something happen."""
    ids = list(range(catalogue.manifest.num_objects))
    draw.shuffle(ids)
    order, keeps = np.array(ids[: draw.randrange(1, 9)]), draw.random() < 0.7
    events: dict[str, Callable[[], object]] = {
        "begin": lambda: node.node.begin_plan(
            consumer, catalogue.number, order, upcoming=False, resident=keeps, recheck=True
        ),
        "consume": lambda: node.consume(consumer, catalogue, ids[:4]),
        "make": lambda: node.deliver(draw.randrange(1, 4)),
        "ask": lambda: node.check(1),
        "demand": lambda: node.demand(catalogue, ids[0], consumer=consumer),
        "write": lambda: (file.write_bytes(bytes([turn]) * 5000), os.utime(file, ns=(turn, turn))),
        "end": lambda: node.node.end_consumer(consumer),
        "clear": lambda: node.node.clear(str(file)),
        "all": node.deliver_all,
    }
    events[draw.choice([*events, "begin"])]()


def require_one_entry_each(node: Rig, catalogues: list[Dataset], lists: list[list[Path]]) -> None:
    """Require that the tier has what the books say, and what lies in the files."""
    books = node.node.scheduler.holdings
    held: dict[bytes, list[tuple[int, int]]] = {}
    for catalogue, listed in zip(catalogues, lists, strict=True):
        for object_id, file in enumerate(listed):
            if books.has_entry((catalogue.number, object_id)):
                held.setdefault(catalogue.key(object_id), []).append((catalogue.number, object_id))
                if catalogue.key(object_id) == entry_key("/", str(file), version_of(file)):
                    assert node.tier.get(catalogue.key(object_id)) == file.read_bytes()
    assert {key for key, _, _ in node.tier.entries()} == held.keys()
    residents = [key for key, objects in held.items() if any(books.state(one) == RESIDENT for one in objects)]
    assert node.node.statistics().resident_bytes == len(residents) * COST


def version_of(file: Path) -> str:
    _, (version,) = stat_files([str(file)])
    return version
