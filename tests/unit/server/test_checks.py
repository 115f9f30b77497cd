"""Files of a catalogue are asked once an epoch whether they have changed, ahead of their readers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from nodes import PLENTY, Rig, content, memory_source, rig
from prefeed.core.actions import Outcome
from prefeed.core.checks import FIRST_BATCH
from prefeed.server.checks import _MAX_BATCHES
from prefeed.server.datasets import Dataset
from prefeed.store.layout import stored_bytes
from prefeed.testing.sources import Fault, FaultySource
from sandbox import Sandbox

READER = 7
OTHER = 8
NUM_FILES = 6
COST = stored_bytes(5000)


@pytest.fixture
def node(sandbox: Sandbox) -> Iterator[Rig]:
    with rig(sandbox.home) as made:
        yield made


@pytest.fixture
def files(sandbox: Sandbox) -> list[Path]:
    return write_files(sandbox.root / "origin", NUM_FILES)


def write_files(directory: Path, count: int) -> list[Path]:
    directory.mkdir()
    paths = [directory / f"{index:05d}.bin" for index in range(count)]
    for index, path in enumerate(paths):
        path.write_bytes(content(index))
    return paths


def published(dataset: Dataset) -> list[int]:
    assert dataset.catalogue is not None
    return [index for index in range(dataset.catalogue.num_objects) if dataset.catalogue.is_published(index)]


def first_epoch(node: Rig, dataset: Dataset) -> None:
    """Everything is fetched, and known to be as it is."""
    node.begin(READER, dataset, range(NUM_FILES))
    node.deliver_all()
    node.consume(READER, dataset, range(NUM_FILES))
    assert published(dataset) == list(range(NUM_FILES))


def touch(path: Path) -> None:
    """Give the file another time, and the same bytes."""
    os.utime(path, ns=(1, 1))


def held(node: Rig, dataset: Dataset, object_id: int) -> bytes | None:
    """Return what a reader finds that looks as readers do: under the published key."""
    assert dataset.catalogue is not None
    data = node.tier.get(dataset.catalogue.key(object_id))
    return None if data is None else bytes(data)


# ------------------------------------------------------------ an epoch begins


def test_what_was_fetched_is_published_and_asked_nothing(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    node.begin(READER, dataset, range(NUM_FILES))
    assert published(dataset) == []
    node.deliver()
    assert node.fetchers.checks == []
    assert [held(node, dataset, index) for index in range(NUM_FILES)] == [content(i) for i in range(NUM_FILES)]


def test_keys_are_withdrawn_when_an_epoch_begins_and_published_again_after_a_look(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, [4, 2])
    assert published(dataset) == [0, 1, 3, 5]
    assert [held(node, dataset, index) for index in (4, 2)] == [None, None]
    assert node.check() == [[4, 2]]
    assert published(dataset) == list(range(NUM_FILES))
    assert node.node.statistics().origin_requests == NUM_FILES


def test_without_a_recheck_nothing_is_withdrawn(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES), recheck=False)
    assert published(dataset) == list(range(NUM_FILES))
    assert node.fetchers.checks == []


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_freed_and_fetched_again_before_its_reader_comes(
    node: Rig, files: list[Path], change: str
) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    old_key = dataset.key(3)
    if change == "size":
        files[3].write_bytes(b"changed")
        os.utime(files[3], ns=(1, os.stat(files[2]).st_mtime_ns))
    else:
        files[3].write_bytes(b"y" * 5000)
        touch(files[3])
    node.begin(READER, dataset, range(NUM_FILES))
    node.deliver_all()
    assert old_key in node.tier.deleted
    assert held(node, dataset, 3) == files[3].read_bytes()
    reader = node.demand(dataset, 3, consumer=READER)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert held(node, dataset, 3) == files[3].read_bytes()
    assert node.node.statistics().origin_requests == NUM_FILES + 1
    assert node.tier.get(old_key) is None


def test_a_reader_that_comes_before_the_answer_gets_the_new_bytes(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    files[3].write_bytes(b"changed")
    node.begin(READER, dataset, range(NUM_FILES))
    reader = node.demand(dataset, 3, consumer=READER)
    assert reader.outcome is None
    assert node.fetchers.jobs == []  # nobody knows yet that it has to be fetched
    node.deliver_all()
    assert (reader.outcome, reader.times) == (Outcome.STORED, 1)
    assert held(node, dataset, 3) == b"changed"


def test_a_reader_that_comes_before_the_answer_gets_what_is_still_right(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES))
    readers = [node.demand(dataset, 3, consumer=READER) for _ in range(3)]
    assert [reader.outcome for reader in readers] == [None] * 3
    node.deliver_all()
    assert [(reader.outcome, reader.times) for reader in readers] == [(Outcome.STORED, 1)] * 3
    assert held(node, dataset, 3) == content(3)
    assert node.node.statistics().origin_requests == NUM_FILES


def test_a_reader_of_what_no_plan_names_is_answered_too(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    dataset.catalogue.withdraw(None)  # type: ignore[union-attr]
    files[2].write_bytes(b"changed")
    same, changed = node.demand(dataset, 1), node.demand(dataset, 2)
    assert node.check() == [[1], [2]]
    node.deliver_all()
    assert (same.outcome, changed.outcome) == (Outcome.STORED, Outcome.STORED)
    assert (held(node, dataset, 1), held(node, dataset, 2)) == (content(1), b"changed")


def test_arrivals_wake_the_loop_while_a_reader_waits_for_a_look(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, [1])
    assert not node.fetchers.is_urgent
    node.demand(dataset, 1, consumer=READER)
    assert node.fetchers.is_urgent
    node.deliver_all()
    assert not node.fetchers.is_urgent


def test_a_removed_file_is_the_error_it_would_be_and_its_bytes_are_gone(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    files[3].unlink()
    node.begin(READER, dataset, range(NUM_FILES))
    reader = node.demand(dataset, 3, consumer=READER)
    node.deliver_all()
    assert (reader.outcome, reader.code) == (Outcome.FAILED, "object-not-found")
    assert str(files[3]) in reader.text
    assert len(list(node.tier.entries())) == NUM_FILES - 1


def test_a_transient_is_asked_as_well(sandbox: Sandbox) -> None:
    with rig(sandbox.home, capacity=60 * COST) as node:
        dataset = node.open_catalogue(*write_files(sandbox.root / "origin", 100))
        node.begin(READER, dataset, range(100))
        node.deliver_all()
        transient = next(i for i in published(dataset) if i not in node.node.registry.resident_ids(dataset.number))
        node.begin(OTHER, dataset, [transient])
        assert not dataset.catalogue.is_published(transient)  # type: ignore[union-attr]
        assert node.check() == [[transient]]
        assert dataset.catalogue.is_published(transient)  # type: ignore[union-attr]


def test_a_transient_that_changed_is_fetched_again(sandbox: Sandbox) -> None:
    with rig(sandbox.home, capacity=60 * COST) as node:
        files = write_files(sandbox.root / "origin", 100)
        dataset = node.open_catalogue(*files)
        node.begin(READER, dataset, range(100))
        node.deliver_all()
        transient = next(i for i in published(dataset) if i not in node.node.registry.resident_ids(dataset.number))
        files[transient].write_bytes(b"changed")
        node.begin(OTHER, dataset, [transient])
        reader = node.demand(dataset, transient, consumer=OTHER)
        node.deliver_all()
        assert (reader.data or held(node, dataset, transient)) == b"changed"


def test_a_file_that_no_plan_names_is_asked_when_it_is_opened(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue()
    node.begin(READER, dataset, [])
    for path in files[:2]:
        node.demand_file(dataset, path, consumer=READER)
    node.deliver_all()
    node.begin(READER, dataset, [0])
    node.deliver_all()
    assert published(dataset) == [0, 1]
    files[1].write_bytes(b"changed")
    reader = node.demand_file(dataset, files[1], consumer=READER)
    node.deliver_all()
    assert (reader.object_id, reader.outcome) == (1, Outcome.STORED)
    assert held(node, dataset, 1) == b"changed"


def test_a_file_that_no_plan_names_is_taken_as_it_was_without_a_recheck(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue()
    node.begin(READER, dataset, [], recheck=False)
    node.demand_file(dataset, files[1], consumer=READER)
    node.deliver_all()
    reader = node.demand_file(dataset, files[1], consumer=READER)
    assert (reader.outcome, node.fetchers.checks) == (Outcome.STORED, [])


# ------------------------------------------------------------ epochs that were announced


def test_an_announced_epoch_is_asked_when_it_begins(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES), upcoming=True, recheck=False)
    assert published(dataset) == list(range(NUM_FILES))
    node.node.adopt_upcoming(READER, recheck=True)
    node.node.pump()
    assert published(dataset) == []
    assert node.check() == [list(range(NUM_FILES))]
    assert published(dataset) == list(range(NUM_FILES))


def test_an_announced_epoch_without_recheck_is_asked_only_what_is_not_known(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES), upcoming=True, recheck=False)
    dataset.catalogue.withdraw(np.array([5]))  # type: ignore[union-attr]
    node.node.adopt_upcoming(READER, recheck=False)
    node.node.pump()
    assert node.check() == [[5]]


def test_an_epoch_that_is_about_to_begin_is_asked_at_once_and_not_again(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES), upcoming=True, recheck=True)
    assert node.check() == [list(range(NUM_FILES))]
    node.node.adopt_upcoming(READER, recheck=False)
    node.node.pump()
    assert node.fetchers.checks == []
    assert published(dataset) == list(range(NUM_FILES))


def test_an_announcement_that_was_wrong_is_forgotten(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, [0, 1], upcoming=True, recheck=False)
    node.begin(READER, dataset, [2], recheck=True)
    node.node.adopt_upcoming(READER, recheck=True)  # of a client that is confused
    node.node.pump()
    assert node.check() == [[2]]


def test_what_the_sampler_drew_late_is_asked_at_once(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    dataset.catalogue.withdraw(None)  # type: ignore[union-attr]
    node.begin(READER, dataset, [])
    node.node.extend_plan(READER, np.array([4, 1, 4]))
    assert node.check() == [[1, 4]]
    assert published(dataset) == [1, 4]


def test_an_order_that_continues_has_its_files_asked_ahead_of_each_window(node: Rig, files: list[Path]) -> None:
    """Which files the later windows name is not known when the epoch begins: no reader finds any of before."""
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    for path in files[2:4]:
        path.write_bytes(b"changed")
    node.node.begin_plan(
        READER, dataset.number, np.array([0, 1]), upcoming=False, resident=True, recheck=True, goes_on=True
    )
    assert published(dataset) == []
    node.node.pump()
    assert node.check() == [[0, 1]]
    node.node.extend_plan(READER, np.array([2, 3]), is_read_soon=False)
    node.node.pump()
    assert node.check() == [[2, 3]]
    assert published(dataset) == [0, 1]
    assert [held(node, dataset, object_id) for object_id in (2, 3)] == [None, None]


def test_what_the_sampler_drew_late_counts_as_it_is_in_this_epoch(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    files[4].write_bytes(b"changed")
    node.begin(READER, dataset, [], recheck=True)
    node.node.extend_plan(READER, np.array([4, 1]))
    reader = node.demand(dataset, 4, consumer=READER)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert held(node, dataset, 4) == b"changed"
    assert held(node, dataset, 1) == content(1)


def test_what_the_sampler_drew_late_is_taken_as_it_was_without_a_recheck(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, [], recheck=False)
    node.node.extend_plan(READER, np.array([4, 1]))
    assert node.fetchers.checks == []
    assert published(dataset) == list(range(NUM_FILES))


# ------------------------------------------------------------ bounds and ends


def test_files_that_are_asked_at_a_time_have_a_limit(sandbox: Sandbox) -> None:
    count = 2 * FIRST_BATCH * _MAX_BATCHES
    with rig(sandbox.home, capacity=PLENTY) as node:
        files = write_files(sandbox.root / "origin", count)
        dataset = node.open_catalogue(*files)
        node.begin(READER, dataset, range(count))
        node.deliver_all()
        node.begin(READER, dataset, range(count))
        assert (FIRST_BATCH, _MAX_BATCHES) == (16, 128)
        assert [len(job.ids) for job in node.fetchers.checks] == [FIRST_BATCH] * _MAX_BATCHES
        asked = node.check(1)
        assert len(node.fetchers.checks) == _MAX_BATCHES
        while batches := node.check():
            asked += batches
        assert [index for batch in asked for index in batch] == list(range(count))
        assert len(published(dataset)) == count


def test_the_files_of_a_consumer_that_is_gone_are_left_alone(node: Rig, sandbox: Sandbox) -> None:
    count = FIRST_BATCH * _MAX_BATCHES + 50
    files = write_files(sandbox.root / "many", count)
    dataset = node.open_catalogue(*files)
    node.begin(READER, dataset, range(count))
    node.deliver_all()
    node.begin(READER, dataset, range(count))
    node.node.end_consumer(READER)
    node.check()
    assert node.fetchers.checks == []
    assert len(published(dataset)) == count - 50
    reader = node.demand(dataset, count - 1)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED


def test_what_its_reader_has_passed_is_not_asked(node: Rig, sandbox: Sandbox) -> None:
    count = FIRST_BATCH * _MAX_BATCHES + 50
    files = write_files(sandbox.root / "many", count)
    dataset = node.open_catalogue(*files)
    node.begin(READER, dataset, range(count))
    node.deliver_all()
    node.begin(READER, dataset, range(count))
    node.node.advance(READER, count - 10)
    node.check()
    assert [index for job in node.fetchers.checks for index in job.ids] == list(range(count - 10, count))
    node.check()


def test_a_manifest_is_never_asked(node: Rig, sandbox: Sandbox) -> None:
    dataset = node.open(memory_source(4))
    node.begin(READER, dataset, range(4))
    node.deliver_all()
    node.begin(READER, dataset, range(4))
    node.node.extend_plan(READER, np.array([1]))
    reader = node.demand(dataset, 1, consumer=READER)
    assert reader.outcome == Outcome.STORED
    assert node.fetchers.checks == []


def test_an_answer_about_what_was_freed_meanwhile_publishes_nothing(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, [3])
    node.node.clear(None)
    node.check()
    assert 3 not in published(dataset)


def test_through_the_threads(sandbox: Sandbox, files: list[Path]) -> None:
    with rig(sandbox.home, threads=True) as node:
        dataset = node.open_catalogue(*files)
        for _ in range(2):
            node.begin(READER, dataset, range(NUM_FILES))
            node.pump_until(lambda: len(published(dataset)) == NUM_FILES)
        files[3].write_bytes(b"changed")
        node.begin(READER, dataset, range(NUM_FILES))
        reader = node.demand(dataset, 3, consumer=READER)
        node.pump_until(lambda: reader.outcome is not None)
        assert (reader.outcome, held(node, dataset, 3)) == (Outcome.STORED, b"changed")


# ------------------------------------------------------------ requests of the last epoch


@pytest.mark.parametrize("looks_first", [True, False], ids=["look, then bytes", "bytes, then look"])
@pytest.mark.parametrize("changed", [False, True], ids=["as it was", "changed meanwhile"])
def test_a_request_of_the_last_epoch_is_checked_before_its_reader_is_answered(
    node: Rig, files: list[Path], looks_first: bool, changed: bool
) -> None:
    dataset = node.open_catalogue(*files)
    node.begin(READER, dataset, range(NUM_FILES), upcoming=True, recheck=False)
    assert len(node.fetchers.jobs) == NUM_FILES
    node.fetchers.make(1)  # it is read, and nobody has heard of it yet
    if changed:
        files[0].write_bytes(b"changed")
    node.node.adopt_upcoming(READER, recheck=True)
    if looks_first:
        results, node.fetchers._results = node.fetchers._results, []
        asked = node.demand(dataset, 0, consumer=READER)
        node.check()
        node.fetchers._results += results
        node.node.pump()
    else:
        asked = node.demand(dataset, 0, consumer=READER)
        node.node.pump()
        assert asked.outcome is None
    node.deliver_all()
    assert (asked.outcome, asked.times) == (Outcome.STORED, 1)
    if changed and looks_first:
        assert held(node, dataset, 0) is None  # its reader reads the file itself
    else:
        assert held(node, dataset, 0) == files[0].read_bytes()
    assert published(dataset)[-1] == NUM_FILES - 1


def test_a_request_of_the_last_epoch_that_failed_leaves_no_reader_waiting(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    files[0].unlink()
    node.begin(READER, dataset, [0], upcoming=True, recheck=False)
    node.fetchers.make(1)
    node.node.adopt_upcoming(READER, recheck=True)
    asked = node.demand(dataset, 0, consumer=READER)
    node.deliver_all()
    assert (asked.outcome, asked.code) == (Outcome.FAILED, "object-not-found")
    files[0].write_bytes(b"back")
    node.begin(READER, dataset, [0])
    node.deliver_all()
    again = node.demand(dataset, 0, consumer=READER)
    node.deliver_all()
    assert (again.outcome, held(node, dataset, 0)) == (Outcome.STORED, b"back")


def test_who_opens_a_file_that_cannot_be_read_is_not_held_up_by_retries(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    dataset.source = FaultySource(dataset.source, {str(files[0]): Fault("error")})
    reader = node.demand(dataset, 0)
    node.deliver_all()
    assert reader.outcome == Outcome.READ_ORIGIN
    assert node.timers.waiting == []


# ------------------------------------------------------------ answers of the last epoch


def rewrite(file: Path) -> None:
    file.write_bytes(b"x" * len(file.read_bytes()))
    os.utime(file, ns=(1, 1))


def test_an_answer_of_the_last_epoch_publishes_nothing_in_this_one(node: Rig, files: list[Path]) -> None:
    """The epoch was broken off while a file was asked; it changed before the next one began."""
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES))
    node.fetchers.check()  # answered, and not taken yet
    rewrite(files[2])
    node.begin(READER, dataset, range(NUM_FILES))
    assert published(dataset) == []
    reader = node.demand(dataset, 2)
    node.check()
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert published(dataset) == list(range(NUM_FILES))


def test_who_waits_for_an_answer_of_the_last_epoch_gets_one_of_this(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    first_epoch(node, dataset)
    node.begin(READER, dataset, range(NUM_FILES))
    reader = node.demand(dataset, 2)
    node.fetchers.check()
    rewrite(files[2])
    node.begin(READER, dataset, range(NUM_FILES))
    assert reader.outcome is None
    node.check()
    node.deliver_all()
    assert reader.outcome == Outcome.STORED


def test_bytes_of_the_last_epoch_do_not_reach_a_reader_past_the_tier(sandbox: Sandbox) -> None:
    """There is no room; the request was made before the epoch began, the question whether it changed answered before."""
    with rig(sandbox.home, capacity=0) as node:
        files = write_files(sandbox.root / "origin", 1)
        dataset = node.open_catalogue(*files)
        first = node.demand(dataset, 0)
        node.fetchers.make()
        held, node.fetchers._results = node.fetchers._results, []
        rewrite(files[0])
        node.begin(READER, dataset, [0])
        node.check()
        second = node.demand(dataset, 0)
        node.fetchers._results = held
        node.node.pump()
        assert (first.outcome, second.outcome) == (Outcome.READ_ORIGIN, Outcome.READ_ORIGIN)
