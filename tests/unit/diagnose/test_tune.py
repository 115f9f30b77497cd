"""``prefeed.tune``, on small loaders; the decisions of the search are in test_search.py."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

import prefeed
from prefeed.diagnose import loader_clone, trials
from prefeed.diagnose.report import LoaderReport
from prefeed.diagnose.search import Settings
from prefeed.errors import CannotExamineError
from unit.diagnose.loads import Clock, Failing, Files, Instant, Stream, Unpicklable

pytestmark = pytest.mark.usefixtures("sandbox")

BUDGET = 1.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What is tried in the budget does not depend on the machine."""
    clock = Clock()
    for module in (trials, loader_clone, importlib.import_module("prefeed.diagnose.tune")):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return clock


def short(loader: DataLoader[Any], step: Any = None, **arguments: Any) -> LoaderReport:
    return prefeed.tune(loader, step, budget=BUDGET, **arguments)


def test_present_settings() -> None:
    assert Settings.of(DataLoader(Instant())) == Settings(num_workers=0)
    loader = DataLoader(Instant(), num_workers=3, prefetch_factor=5, pin_memory=True)
    assert Settings.of(loader) == Settings(num_workers=3, prefetch_factor=5, pin_memory=True)
    assert Settings.of(DataLoader(Instant(), num_workers=1)).prefetch_factor == 2


def test_says_what_it_tries_and_reports_it() -> None:
    said: list[str] = []
    report = short(DataLoader(Instant(400), batch_size=4), say=said.append)
    assert report.trials[0].settings == report.loader.settings == Settings(num_workers=0)
    assert [trial.name for trial in report.trials] == list(dict.fromkeys(said[1:]))


def test_loader_is_not_changed() -> None:
    loader = DataLoader(Instant(400), batch_size=4, num_workers=1)
    before = dict(vars(loader))
    short(loader)
    assert vars(loader) == before


def test_random_generators_are_as_before() -> None:
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(Instant(400), batch_size=4, shuffle=True, generator=generator)
    states = [
        random.getstate(),
        str(np.random.get_state()),
        torch.get_rng_state().tolist(),
        generator.get_state().tolist(),
    ]
    order = [
        batch[:, 0].tolist()
        for batch in DataLoader(Instant(), shuffle=True, generator=torch.Generator().manual_seed(3))
    ]
    short(loader, lambda batch: (random.random(), np.random.random(), torch.rand(1)))
    assert states == [
        random.getstate(),
        str(np.random.get_state()),
        torch.get_rng_state().tolist(),
        generator.get_state().tolist(),
    ]
    assert [batch[:, 0].tolist() for batch in DataLoader(Instant(), shuffle=True, generator=generator)] == order


def test_small_data_set_is_read_once_before(tmp_path: Path) -> None:
    assert "All samples had been read once before" in short(DataLoader(Files(tmp_path, 20), batch_size=4)).text


def test_large_data_set_is_read_on_and_on(tmp_path: Path) -> None:
    """A sample is read again only when all have been read, because the page cache must help no trial more than another."""
    seen: list[float] = []
    report = short(DataLoader(Instant(100_000), batch_size=2), lambda batch: seen.append(batch[0, 0].item()))
    assert "no trial had read before" in report.text
    assert len(set(seen)) > len(seen) / 2  # the step alone is given one batch again and again


def test_batches_of_the_ends_of_epochs_are_left_out() -> None:
    """A short batch is a quick one."""
    sizes: set[int] = set()
    short(DataLoader(Instant(10), batch_size=4), lambda batch: sizes.add(len(batch)))
    assert sizes == {4}


def test_data_set_smaller_than_a_batch() -> None:
    assert short(DataLoader(Instant(3), batch_size=4)).trials[0].samples_s


def test_epoch_smaller_than_a_batch() -> None:
    sampler = RandomSampler(Instant(100), num_samples=3)
    assert short(DataLoader(Instant(100), batch_size=8, sampler=sampler)).trials[0].samples_s


def test_sampler_that_makes_batches() -> None:
    class Uneven(Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield from ([0, 1], [2], [3, 4])

    assert short(DataLoader(Instant(), batch_sampler=Uneven())).loader.batch_size == 2


def test_data_set_that_makes_batches() -> None:
    class Batched(Instant):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices, dtype=torch.float)

    loader = DataLoader(Batched(), sampler=BatchSampler(range(40), 4, drop_last=False), batch_size=None)
    assert short(loader).loader.batch_size == 4


def test_threads_are_tried_with_a_step_only() -> None:
    before = torch.get_num_threads()
    with_step = short(DataLoader(Instant(), batch_size=4), lambda batch: torch.rand(100, 100) @ torch.rand(100, 100))
    assert torch.get_num_threads() == before
    without = short(DataLoader(Instant(), batch_size=4))
    assert all(trial.settings.threads is None for trial in without.trials)
    assert before == 1 or any(trial.settings.threads is not None for trial in with_step.trials)


def test_stream() -> None:
    tuning = short(DataLoader(Stream(100_000), batch_size=4))
    assert "read the stream from its beginning" in tuning.text
    assert tuning.trials[0].samples_s


def test_stream_whose_workers_repeat_each_other() -> None:
    tuning = short(DataLoader(Stream(100_000, is_split=False), batch_size=4, num_workers=2))
    assert tuning.trials[0].reason is not None
    assert "get_worker_info" in tuning.trials[0].reason
    assert tuning.settings.num_workers < 2


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_present_setting_that_fails() -> None:
    loader = DataLoader(Unpicklable(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    tuning = short(loader)
    assert tuning.settings.num_workers == 0
    assert "fails; 0 workers is the fastest that works" in tuning.text


@pytest.mark.parametrize(
    ("how", "reason"),
    [(OSError(24, "Too many open files"), "Too many open files"), (signal.SIGKILL, "DataLoader worker")],
    ids=["descriptors", "killed"],
)
def test_more_workers_that_fail_are_listed_and_no_more_tried(how: Any, reason: str) -> None:
    tuning = short(DataLoader(Failing(how, from_workers=1), batch_size=4))
    (failed,) = (trial for trial in tuning.trials if trial.settings.num_workers)
    assert failed.settings.num_workers == 1
    assert reason in (failed.reason or "")
    assert "\n" not in (failed.reason or "")
    assert tuning.settings.num_workers == 0
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("free", "reason"), [((1 << 20, 1 << 40), "of memory"), ((1 << 40, 1), "raise --shm-size")])
def test_no_memory_for_workers(free: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "free_memory", lambda: free)
    tuning = short(DataLoader(Instant(400), batch_size=4))
    assert tuning.best is None
    assert (tuning.trials[1].reason or "").startswith("not tried: it needs ")
    assert reason in (tuning.trials[1].reason or "")


def test_memory_of_this_machine() -> None:
    memory, shared = trials.free_memory()
    assert 0 < memory < 1 << 50
    assert shared > 0
    assert trials.private_bytes(os.getpid()) > 1 << 20


def test_nothing_to_be_timed() -> None:
    with pytest.raises(CannotExamineError, match="No such file"):
        short(DataLoader(Failing(FileNotFoundError(2, "No such file", "x.jpg"), from_workers=0), batch_size=4))
    with pytest.raises(CannotExamineError, match="no batches"):
        short(DataLoader(Instant(0), batch_size=4))


def test_error_of_the_step() -> None:
    def step(batch: Any) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        short(DataLoader(Instant(), batch_size=4, num_workers=1), step)


def test_budget_too_small() -> None:
    with pytest.raises(ValueError, match="at least 1 second"):
        prefeed.tune(DataLoader(Instant()), budget=0.5)


def test_loader_of_prefeed(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(bytes(1000))
    short(prefeed.DataLoader(prefeed.datasets.Objects(tmp_path, decode=len), batch_size=4))
    assert prefeed.statistics().hits > 0
