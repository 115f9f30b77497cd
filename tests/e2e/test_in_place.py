"""Epochs that begin in place: without a server while storage is quick, and until the server answers."""

from __future__ import annotations

import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import prefeed
from e2e.hashed import Hashed, HashedInBatches, kept, write_hashed
from leaks import wait_until
from limits import set_limits
from prefeed.client import in_place
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.core import in_place as core_in_place
from prefeed.errors import ServerUnavailableError
from prefeed.torch import place as torch_place
from prefeed.torch.loader import _attachment_of
from prefeed.torch.place import NOT_READY, QUICK
from sandbox import Sandbox, end_all, servers_of

pytestmark = pytest.mark.timeout(300)

NUM_SAMPLES = 160
BATCH_SIZE = 8
ALWAYS_SLOW = -(1 << 62)
ALWAYS_QUICK = 1 << 62

workers = pytest.mark.parametrize(
    "workers",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["0", "2", "2-kept"],
)


class Declared(Hashed):
    """The same, and it says which files it opens."""

    def train_data_list(self) -> list[str]:
        return [os.path.join(self.root, *self.names_of(index)) for index in range(len(self))]


KEPT = {"num_workers": 2, "persistent_workers": True}
kinds = pytest.mark.parametrize(
    ("cls", "workers"),
    [
        (Hashed, {"num_workers": 0}),
        (Hashed, {"num_workers": 2}),
        pytest.param(Hashed, KEPT, marks=pytest.mark.whole),
        (HashedInBatches, {"num_workers": 2}),
        pytest.param(Declared, {"num_workers": 0}, marks=pytest.mark.whole),
        (Declared, KEPT),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "-".join(map(str, value.values())),
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = write_hashed(tmp_path / "data", Hashed(tmp_path / "data", NUM_SAMPLES))
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    set_limits(monkeypatch, read_in_place=True, start_ahead=True)
    return root


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage is as a test says, and not as the machine is."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_QUICK)
    monkeypatch.setattr(core_in_place, "SHORT_SECONDS", 0.0)
    monkeypatch.setattr(torch_place, "_stayed", set())


def loader_of(dataset: Any, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return cls(dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=kept, generator=generator, **kwargs)


def truth_of(dataset: Any, **kwargs: Any) -> Any:
    """Return torch's own loader, over the same files."""
    return loader_of(dataset, DataLoader, **kwargs)


def has_joined(loader: Any) -> bool:
    place = _attachment_of(loader, explicit=True)._place
    return place is not None and place.is_joined


def joined(loader: Any) -> None:
    assert wait_until(lambda: has_joined(loader), timeout_seconds=120)


def slow_down(loader: Any) -> None:
    """Let the reads of other workers have been slow."""
    place = _attachment_of(loader, explicit=True)._place
    assert place is not None
    for row in range(10, 20):
        for _ in range(in_place.MOST_MEASURED):
            place.state.measured(row, is_slow=True)


def epoch(loader: Any, *, until_joined_after: int) -> list[Any]:
    """Return the batches of an epoch; the loop pauses after so many, until the loader has joined."""
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == until_joined_after:
            joined(loader)
    return batches


def num_reads() -> int:
    try:
        with NodeClient.connect(resolve(), autostart=False) as node:
            return node.statistics().reads
    except ServerUnavailableError:
        return 0


@kinds
def test_quick_storage_needs_no_server(
    root: Path, sandbox: Sandbox, workers: dict[str, Any], cls: type[Hashed], caplog: pytest.LogCaptureFixture
) -> None:
    ours, truth = loader_of(cls(root, NUM_SAMPLES), **workers), truth_of(Hashed(root, NUM_SAMPLES), **workers)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        for _ in range(3):
            assert list(ours) == list(truth)
    assert not servers_of(sandbox)
    assert len([record for record in caplog.records if QUICK in record.getMessage()]) == 1


def test_a_server_that_listens_hears_what_was_read_in_place(root: Path) -> None:
    """Without one, the program itself knows; nobody is told twice."""
    ours = loader_of(Declared(root, NUM_SAMPLES))
    list(ours)
    (alone,) = prefeed.statistics().origins
    assert (alone.in_place, alone.samples, alone.round_trip_seconds) == (True, NUM_SAMPLES, None)
    with NodeClient.connect(resolve()) as node:
        list(ours)
        for told in (prefeed.statistics(), node.statistics()):
            (reads,) = told.origins
            assert (reads.origin, reads.in_place) == (str(root), True)
            assert (reads.samples, reads.files) == (2 * NUM_SAMPLES, 2 * alone.files)
            assert reads.round_trip_seconds is not None
            assert [epoch.epoch for epoch in told.epochs] == [1, 2]


@kinds
def test_slow_storage_is_joined_in_the_middle_of_the_epoch(
    root: Path, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any], cls: type[Hashed]
) -> None:
    """The rest of the epoch is read through the cache, and so is the next one, whole."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    ours, truth = loader_of(cls(root, NUM_SAMPLES), **workers), truth_of(Hashed(root, NUM_SAMPLES), **workers)
    assert epoch(ours, until_joined_after=1) == list(truth)
    # Batches that workers had made before are the only others.
    batches_ahead = 1 + 2 * workers["num_workers"]
    least = NUM_SAMPLES - (batches_ahead + workers["num_workers"]) * BATCH_SIZE
    assert wait_until(lambda: num_reads() == NUM_SAMPLES, timeout_seconds=60)
    with NodeClient.connect(resolve(), autostart=False) as node:
        (reads,) = node.statistics().origins
    assert (reads.in_place, reads.why) == (False, "storage is slow")
    assert reads.open_seconds is not None
    assert 0 < reads.samples <= NUM_SAMPLES - least
    assert list(ours) == list(truth)
    assert has_joined(ours)
    assert wait_until(lambda: num_reads() == 2 * NUM_SAMPLES, timeout_seconds=60)
    assert prefeed.statistics().direct_reads >= reads.samples


@workers
def test_storage_that_slows_down(root: Path, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any]) -> None:
    """An epoch is in place; the next one slows down, and is joined; the one after that begins in place again."""
    ours, truth = loader_of(Hashed(root, NUM_SAMPLES), **workers), truth_of(Hashed(root, NUM_SAMPLES), **workers)
    assert list(ours) == list(truth)
    assert not has_joined(ours)
    batches, expected = iter(ours), list(truth)
    seen = [next(batches) for _ in range(4)]  # of which sixteen reads and more were measured
    slow_down(ours)
    seen.append(next(batches))
    joined(ours)
    assert seen + list(batches) == expected
    assert num_reads() > 0 or wait_until(lambda: num_reads() > 0, timeout_seconds=60)
    expected, seen = list(truth), []
    for batch in ours:
        seen.append(batch)
        assert not has_joined(ours)
    assert seen == expected


def test_the_loop_does_not_wait_for_a_server(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch begins and ends while the server starts; a later one joins it."""
    set_limits(monkeypatch, read_in_place=False)
    ours, truth = loader_of(Hashed(root, NUM_SAMPLES)), truth_of(Hashed(root, NUM_SAMPLES))
    assert epoch(ours, until_joined_after=1) == list(truth)
    assert wait_until(lambda: num_reads() == NUM_SAMPLES, timeout_seconds=60)
    assert list(ours) == list(truth)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_short_epoch_over_slow_storage_stays_in_place_and_the_next_one_is_planned_by_what_it_opened(
    root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    monkeypatch.setattr(core_in_place, "SHORT_SECONDS", 1e9)
    dataset = Hashed(root, NUM_SAMPLES, parts=[1, 2])
    write_hashed(root, dataset)
    ours, truth = loader_of(dataset, num_workers=num_workers), truth_of(dataset, num_workers=num_workers)
    expected, seen, batches = list(truth), [], iter(ours)
    seen.append(next(batches))
    place = _attachment_of(ours, explicit=True)._place
    assert place is not None
    assert wait_until(lambda: place.state.stays, timeout_seconds=60)
    assert seen + list(batches) == expected
    assert not servers_of(sandbox)

    expected, batches = list(truth), iter(ours)
    seen = [next(batches)]
    joined(ours)
    access = _attachment_of(ours, explicit=True)._access
    assert access is not None
    assert access.learned is not None
    drawn = {index for batch in expected[: 2 + 2 * num_workers] for index, _ in batch}
    rest = np.array(sorted(set(range(NUM_SAMPLES)) - drawn))

    def are_planned() -> bool:
        access.refresh()
        return bool(access.learned.have_records(rest).all())

    assert wait_until(are_planned, timeout_seconds=60)  # the loop waits: nothing of these was read through the server
    assert seen + list(batches) == expected


@pytest.mark.parametrize("num_learned", [0, NUM_SAMPLES // 2, NUM_SAMPLES])
def test_a_short_first_epoch_joins_if_an_earlier_run_learned_the_dataset(
    root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, num_learned: int
) -> None:
    """No server runs, and a new one begins with what the earlier one learned; of another dataset nothing is known."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    dataset = Hashed(root, NUM_SAMPLES)
    epoch(
        loader_of(Subset(dataset, range(num_learned)) if num_learned else Hashed(root, NUM_SAMPLES - 1)),
        until_joined_after=1,
    )
    with NodeClient.connect(resolve(), autostart=False) as node:
        node.stop()
    assert wait_until(lambda: not servers_of(sandbox), timeout_seconds=60)
    monkeypatch.setattr(core_in_place, "SHORT_SECONDS", 1e9)
    monkeypatch.setattr(core_in_place, "START_SECONDS", 0.0)

    ours, truth = loader_of(dataset), list(truth_of(dataset))
    batches = iter(ours)
    seen = [next(batches)]
    place = _attachment_of(ours, explicit=True)._place
    assert place is not None
    assert wait_until(lambda: place.is_joined or place.state.stays, timeout_seconds=120)
    assert place.is_joined == bool(num_learned)
    assert seen + list(batches) == truth


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataset_of_prefeed_is_read_while_its_server_starts(root: Path, sandbox: Sandbox, num_workers: int) -> None:
    """Its objects are known, so it joins as soon as the server answers; storage is not measured."""
    dataset = prefeed.datasets.Objects(root)
    end_all(servers_of(sandbox))
    truth = [path.read_bytes() for path in sorted(root.rglob("*.bin"))]
    ours = prefeed.DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=kept, num_workers=num_workers)
    for _ in range(2):
        assert sorted(sample for batch in epoch(ours, until_joined_after=1) for sample in batch) == sorted(truth)
    assert wait_until(lambda: num_reads() > 0, timeout_seconds=60)
    prefeed.datasets._readers.close()


def test_a_server_that_runs_is_asked_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, read_in_place=False)
    NodeClient.connect(resolve()).close()
    ours, truth = loader_of(Hashed(root, NUM_SAMPLES)), truth_of(Hashed(root, NUM_SAMPLES))
    assert list(ours) == list(truth)
    assert wait_until(lambda: num_reads() == NUM_SAMPLES, timeout_seconds=60)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_server_that_cannot_be_had(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, num_workers: int
) -> None:
    """Slow storage is read in place, and the log says why; no epoch waits."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    ours = loader_of(Hashed(root, NUM_SAMPLES), num_workers=num_workers)
    truth = truth_of(Hashed(root, NUM_SAMPLES), num_workers=num_workers)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        for _ in range(2):
            assert list(ours) == list(truth)
        said = lambda: [one.getMessage() for one in caplog.records]  # noqa: E731
        assert wait_until(lambda: any("no server runs" in text for text in said()), timeout_seconds=60)
        assert any(NOT_READY in text for text in said())


@workers
def test_the_server_is_killed_after_the_loader_has_joined(
    root: Path,
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    workers: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    caplog.set_level(logging.INFO, logger="prefeed")
    ours, truth = loader_of(Hashed(root, NUM_SAMPLES), **workers), truth_of(Hashed(root, NUM_SAMPLES), **workers)
    batches, expected = iter(ours), list(truth)
    seen = [next(batches)]
    joined(ours)
    seen.append(next(batches))
    for pid in servers_of(sandbox):
        os.kill(pid, signal.SIGKILL)
    assert seen + list(batches) == expected
    assert epoch(ours, until_joined_after=1) == list(truth)  # another server
    lines = [one.getMessage() for one in caplog.records if "spent waiting for data" in one.getMessage()]
    assert [re.findall(r"hit ratio [\d.]+ of (\d+) reads", line) for line in lines] == [[str(NUM_SAMPLES)]] * 2


def test_a_file_that_is_written_is_read_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it was open for writing before the loader joined, and is written afterwards."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    dataset = Hashed(root, NUM_SAMPLES)
    ours = DataLoaderInOrder(dataset)
    batches = iter(ours)
    seen = [next(batches)]
    last = root / dataset.names_of(NUM_SAMPLES - 1)[0]
    with open(last, "wb") as file:
        joined(ours)
        seen.append(next(batches))
        file.write(b"written")
    seen += list(batches)
    assert seen[-1][-1] == (NUM_SAMPLES - 1, [b"written"])
    assert seen[0][0] == dataset[0]


def DataLoaderInOrder(dataset: Any) -> Any:  # noqa: N802 - in place of a class
    return prefeed.DataLoader(dataset, batch_size=BATCH_SIZE, collate_fn=kept)


def test_a_loop_that_leaves_the_epoch_and_lets_the_loader_go(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that was about to join ends, and leaves nothing open: the sandbox looks for it."""
    monkeypatch.setattr(in_place, "QUICK_NS", ALWAYS_SLOW)
    for num_workers in (0, 2):
        ours = loader_of(Hashed(root, NUM_SAMPLES), num_workers=num_workers)
        next(iter(ours))
        place = _attachment_of(ours, explicit=True)._place
        assert place is not None
        joining = place.joining
        assert joining is not None
        del ours, place
        assert wait_until(lambda joining=joining: not joining.is_running, timeout_seconds=60)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(root: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The shared memory goes with the dataset; a worker opens what the loader has opened."""
    ours = loader_of(Hashed(root, NUM_SAMPLES), num_workers=1, multiprocessing_context=method)
    truth = truth_of(Hashed(root, NUM_SAMPLES))
    batches, expected = iter(ours), list(truth)
    seen = [next(batches)]
    slow_down(ours)
    seen.append(next(batches))
    joined(ours)
    assert seen + list(batches) == expected
    assert wait_until(lambda: num_reads() > 0, timeout_seconds=60)


class Rewriting(Hashed):
    """The same; once there is a file ``gate`` beside the root, making sample 40 writes to the file of the last sample."""

    def __getitem__(self, index: int) -> Any:
        if index == 40 and os.path.exists(f"{self.root}.gate"):
            with open(os.path.join(self.root, *self.names_of(len(self) - 1)), "wb") as file:
                file.write(b"written in place")
        return super().__getitem__(index)


def test_what_a_new_worker_writes_in_place_is_read_as_it_is_after_joining_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told of these writes, and ``revalidate = 0`` asks files once: so joining after an epoch in place asks them too."""
    monkeypatch.setenv("PREFEED_REVALIDATE", "0")
    ours = prefeed.DataLoader(
        Rewriting(root, NUM_SAMPLES), batch_size=BATCH_SIZE, collate_fn=kept, num_workers=1,
        multiprocessing_context="spawn",
    )  # fmt: skip
    before, last = Hashed(root, NUM_SAMPLES)[NUM_SAMPLES - 1][1], []
    for _ in range(2):
        batches = iter(ours)
        assert not has_joined(ours)
        for _ in range(7):  # sixteen reads were quick, and sample 40 is made
            next(batches)
        slow_down(ours)
        next(batches)
        joined(ours)
        last.append(list(batches)[-1][-1])
        Path(f"{root}.gate").touch()
    assert last[0] == (NUM_SAMPLES - 1, before)
    assert last[1] == (NUM_SAMPLES - 1, [b"written in place"])
