"""Real runs, short ones; nothing here depends on how long anything took."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

import prefeed
from prefeed.diagnose.loader_clones import Batches
from prefeed.diagnose.tune.search import Ask, Settings, with_workers
from prefeed.diagnose.tune.trials import Free, Supply, Trials
from unit.diagnose.loads import Failing, Files, Instant, Stream, Unpicklable

pytestmark = pytest.mark.usefixtures("sandbox")

NONE = Settings(num_workers=0)
TWO = with_workers(NONE, 2)
PLENTY = Free(memory_bytes=1 << 40, shared_bytes=1 << 40)
SECONDS = 0.01


def endless(loader: DataLoader[Any]) -> Supply:
    batches = Batches(loader)
    return Supply(iter(lambda: batches.take(1)[0], None))


def trials_of(loader: DataLoader[Any], seen: list[Any] | None = None, *, free: Free = PLENTY) -> Trials:
    supply = Supply(()) if isinstance(loader.dataset, Stream) else endless(loader)
    return Trials(loader, ([] if seen is None else seen).append, supply, free=lambda: free)


def ask(settings: Settings) -> Ask:
    return Ask(settings=settings, seconds=SECONDS)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_run(workers: int) -> None:
    seen: list[Any] = []
    settings = with_workers(NONE, workers)
    run = trials_of(DataLoader(Instant(), batch_size=4), seen).run(ask(settings))
    assert run.reason is None
    assert run.settings == settings
    assert run.batches >= 2
    assert run.batches % max(1, workers) == 0  # whole waves
    assert len(seen) > run.batches  # those that filled the queues are not timed
    assert 0 < run.waited_seconds <= run.seconds < run.cost_seconds
    assert run.memory_bytes > 0 if workers else run.memory_bytes == 0


def test_runs_continue_where_the_last_one_ended() -> None:
    """A sample is read again only when all have been read, for the page cache must help no run more than another."""
    seen: list[Any] = []
    trials = trials_of(DataLoader(Instant(100_000), batch_size=2), seen)
    for settings in (NONE, TWO, NONE):
        trials.run(ask(settings))
    indices = torch.cat(seen)[:, 0].tolist()
    assert len(set(indices)) == len(indices)
    ahead = TWO.batches_ahead * 2
    assert max(indices) < len(indices) + ahead  # nothing but what workers had made ahead was left out
    assert trials.supply.take(1)[0][0] <= max(indices) + ahead + 1


def test_workers_have_ended_when_a_run_returns() -> None:
    trials_of(DataLoader(Instant(), batch_size=4)).run(ask(TWO))
    assert multiprocessing.active_children() == []


def test_settings_are_those_of_the_run() -> None:
    threads: list[int] = []
    loader = DataLoader(Instant(), batch_size=4)
    before = torch.get_num_threads()
    trials = Trials(loader, lambda batch: threads.append(torch.get_num_threads()), endless(loader), free=lambda: PLENTY)
    trials.run(ask(Settings(num_workers=0, threads=before + 1)))
    assert set(threads) == {before + 1}
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (MemoryError("no room"), "MemoryError: no room"),
        (signal.SIGKILL, "DataLoader worker"),
    ],
    ids=["descriptors", "memory", "killed"],
)
def test_loader_that_fails_is_a_run_with_a_reason(how: Any, reason: str) -> None:
    trials = trials_of(DataLoader(Failing(how, from_workers=2), batch_size=4))
    failed = trials.run(ask(TWO))
    assert failed.reason is not None
    assert reason in failed.reason
    assert "\n" not in failed.reason
    assert failed.cost_seconds > 0
    assert multiprocessing.active_children() == []
    assert trials.run(ask(with_workers(NONE, 1))).reason is None


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_what_cannot_be_pickled() -> None:
    loader = DataLoader(Unpicklable(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
    run = trials_of(loader).run(ask(TWO))
    assert run.reason is not None
    assert "pickle" in run.reason


def test_error_of_the_step_is_the_users() -> None:
    loader = DataLoader(Instant(), batch_size=4)

    def step(batch: Any) -> None:
        raise ZeroDivisionError("in the step")

    trials = Trials(loader, step, endless(loader), free=lambda: PLENTY)
    with pytest.raises(ZeroDivisionError, match="in the step"):
        trials.run(ask(TWO))
    assert multiprocessing.active_children() == []


def test_no_run_is_started_that_does_not_fit() -> None:
    seen: list[Any] = []
    trials = trials_of(DataLoader(Instant(), batch_size=4), seen, free=Free(memory_bytes=1 << 20, shared_bytes=1 << 40))
    trials.run(ask(NONE))
    number = len(seen)
    run = trials.run(ask(TWO))
    assert run.reason is not None
    assert "not tried" in run.reason
    assert len(seen) == number


def test_workers_are_estimated_by_those_that_were_seen() -> None:
    """Until then by what torch alone may take, which is more than these."""
    trials = trials_of(
        DataLoader(Instant(), batch_size=4), free=Free(memory_bytes=400 << 20, shared_bytes=1 << 40)
    )  # fmt: skip
    trials.run(ask(NONE))
    assert trials.run(ask(with_workers(NONE, 1))).reason is not None
    roomy = trials_of(DataLoader(Instant(), batch_size=4), free=Free(memory_bytes=700 << 20, shared_bytes=1 << 40))
    roomy.run(ask(NONE))
    assert roomy.run(ask(with_workers(NONE, 1))).reason is None
    assert roomy.run(ask(with_workers(NONE, 3))).reason is None


def test_bytes_of_files(tmp_path: Path) -> None:
    trials = trials_of(DataLoader(Files(tmp_path, 32, size=100_000), batch_size=4))
    for settings in (NONE, with_workers(NONE, 1)):
        trials.run(ask(settings))
        assert 300_000 < trials.batch_file_bytes < 1_500_000


def test_loader_without_automatic_batches() -> None:
    seen: list[Any] = []
    run = trials_of(DataLoader(Instant(), batch_size=None), seen).run(ask(TWO))
    assert run.reason is None
    assert seen[0].shape == (4,)


def test_stream() -> None:
    seen: list[Any] = []
    trials = trials_of(DataLoader(Stream(100_000), batch_size=4), seen)
    trials.look_at_stream(NONE)
    assert trials.run(ask(TWO)).reason is None
    assert seen[0][:, 0].tolist() == [0, 2, 4, 6]
    assert seen[1][:, 0].tolist() == [1, 3, 5, 7]


def test_stream_that_is_not_split() -> None:
    trials = trials_of(DataLoader(Stream(100_000, is_split=False), batch_size=4))
    trials.look_at_stream(TWO)
    assert trials.run(ask(with_workers(NONE, 1))).reason is None
    run = trials.run(ask(TWO))
    assert run.reason is not None
    assert "get_worker_info" in run.reason


def test_stream_that_ends_too_soon() -> None:
    run = trials_of(DataLoader(Stream(4), batch_size=4)).run(ask(NONE))
    assert run.reason is not None
    assert "end after 1 batches" in run.reason


def test_step_alone_is_given_the_last_batch() -> None:
    seen: list[Any] = []
    trials = trials_of(DataLoader(Instant(), batch_size=4), seen)
    trials.run(ask(NONE))
    number, last = len(seen), seen[-1]
    assert trials.step_alone(0.001) > 0
    assert len(seen) - number >= 3
    assert all(batch is last for batch in seen[number:])


def test_lookahead_is_tried_in_a_cache_of_its_own(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(bytes(1000))
    objects = prefeed.datasets.Objects(tmp_path, decode=len)
    trials = trials_of(prefeed.DataLoader(objects, batch_size=4))
    assert trials.run(ask(NONE)).reason is None
    before = prefeed.statistics()
    for dataset in (objects, Subset(objects, range(20))):
        trials = trials_of(prefeed.DataLoader(dataset, batch_size=4))
        assert trials.run(ask(Settings(num_workers=1, prefetch_factor=2, lookahead=1 << 20))).reason is None
    after = prefeed.statistics()
    assert (after.reads, after.origin_requests) == (before.reads, before.origin_requests)


def test_lookahead_without_a_plan() -> None:
    trials = trials_of(prefeed.DataLoader(Instant(), batch_size=4))
    assert "no plan" in (trials.run(ask(Settings(num_workers=0, lookahead=1 << 20))).reason or "")
