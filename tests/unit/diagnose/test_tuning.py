"""``prefeed.tune``, on small loaders; what the search decides is in test_tuning_plan.py."""

from __future__ import annotations

import itertools
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

import prefeed
from prefeed.diagnose.tune import trials, tuning
from prefeed.diagnose.tune.search import Settings
from prefeed.diagnose.tune.trials import Free
from prefeed.diagnose.tune.tuning import Tuning, present_settings
from prefeed.errors import CannotExamineError
from unit.diagnose.loads import Clock, Failing, Files, Instant, Stream, Unpicklable

pytestmark = pytest.mark.usefixtures("sandbox")

BUDGET = 1.0


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What is tried in the budget does not depend on the machine."""
    clock = Clock()
    for module in (trials, tuning):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    return clock


def short(loader: DataLoader[Any], step: Any = None, **arguments: Any) -> Tuning:
    return prefeed.tune(loader, step, budget=BUDGET, **arguments)


def test_present_settings() -> None:
    assert present_settings(DataLoader(Instant())) == Settings(num_workers=0)
    loader = DataLoader(Instant(), num_workers=3, prefetch_factor=5, pin_memory=True)
    assert present_settings(loader) == Settings(num_workers=3, prefetch_factor=5, pin_memory=True)
    assert present_settings(DataLoader(Instant(), num_workers=1)).prefetch_factor == 2


def test_says_what_it_tries_and_reports_it() -> None:
    said: list[str] = []
    tuning = short(DataLoader(Instant(400), batch_size=4), say=said.append)
    assert tuning.present == Settings(num_workers=0)
    assert tuning.trials[0].settings == tuning.present
    assert [str(trial.settings) for trial in tuning.trials] == list(dict.fromkeys(said[1:]))
    assert tuning.seconds > 0


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
    assert short(DataLoader(Files(tmp_path, 20), batch_size=4)).data == "warm"


def test_part_of_a_data_set_that_memory_holds_is_read_again_and_again(tmp_path: Path) -> None:
    seen: set[float] = set()
    loader = DataLoader(Files(tmp_path, 1000), batch_size=2)
    tuning = short(loader, lambda batch: seen.update(batch[:, 0].tolist()))
    assert tuning.data == "warm"
    assert len(seen) <= 100  # of which a run on and on would read more


def test_data_set_that_memory_does_not_hold_is_read_on_and_on(tmp_path: Path) -> None:
    seen: list[float] = []
    length = 1000
    loader = DataLoader(Files(tmp_path, length, size=2000), batch_size=2)
    small = Free(memory_bytes=length * 2000, shared_bytes=1 << 40)
    tuning = short(loader, lambda batch: seen.append(batch[0, 0].item()), free=lambda: small)
    assert tuning.data == "fresh"
    first = [number for number, _ in itertools.groupby(seen)]  # the step alone is given one batch again and again
    assert len(set(first)) > 20
    assert first == sorted(first) or first.index(0.0, 1) > length / 3


def test_batches_of_the_ends_of_epochs_are_left_out() -> None:
    """A short batch is a quick one."""
    sizes: set[int] = set()
    short(DataLoader(Instant(10), batch_size=4), lambda batch: sizes.add(len(batch)))
    assert sizes == {4}


def test_data_set_smaller_than_a_batch() -> None:
    assert short(DataLoader(Instant(3), batch_size=4)).trials[0].batches_s


def test_epoch_smaller_than_a_batch() -> None:
    sampler = RandomSampler(Instant(100), num_samples=3)
    assert short(DataLoader(Instant(100), batch_size=8, sampler=sampler)).trials[0].batches_s


def test_sampler_that_makes_batches() -> None:
    class Uneven(Sampler[list[int]]):
        def __iter__(self) -> Any:
            yield from ([0, 1], [2], [3, 4])

    tuning = short(DataLoader(Instant(), batch_sampler=Uneven()))
    assert tuning.trials[0].samples_s == pytest.approx(2 * (tuning.trials[0].batches_s or 0))


def test_data_set_that_makes_batches() -> None:
    class Batched(Instant):
        def __getitem__(self, indices: Any) -> torch.Tensor:
            return torch.tensor(indices, dtype=torch.float)

    loader = DataLoader(Batched(), sampler=BatchSampler(range(40), 4, drop_last=False), batch_size=None)
    tuning = short(loader)
    assert tuning.trials[0].samples_s == pytest.approx(4 * (tuning.trials[0].batches_s or 0))


def test_threads_are_tried_with_a_step_only() -> None:
    before = torch.get_num_threads()
    with_step = short(DataLoader(Instant(), batch_size=4), lambda batch: torch.rand(100, 100) @ torch.rand(100, 100))
    assert torch.get_num_threads() == before
    without = short(DataLoader(Instant(), batch_size=4))
    assert all(trial.settings.threads is None for trial in without.trials)
    assert before == 1 or any(trial.settings.threads is not None for trial in with_step.trials)


def test_stream() -> None:
    tuning = short(DataLoader(Stream(100_000), batch_size=4))
    assert tuning.data == "stream"
    assert tuning.trials[0].batches_s


def test_stream_whose_workers_repeat_each_other() -> None:
    tuning = short(DataLoader(Stream(100_000, is_split=False), batch_size=4, num_workers=2))
    assert tuning.trials[0].reason is not None
    assert "get_worker_info" in tuning.trials[0].reason
    assert tuning.settings.num_workers < 2


@pytest.mark.filterwarnings("ignore:Got pickle error:UserWarning")
def test_present_setting_that_fails() -> None:
    loader = DataLoader(Unpicklable(), batch_size=4, num_workers=2, multiprocessing_context="spawn")
    tuning = short(loader)
    assert (tuning.settings.num_workers, tuning.gain) == (0, None)


def test_more_workers_that_fail_are_listed_and_no_more_tried() -> None:
    tuning = short(DataLoader(Failing(OSError(24, "Too many open files"), from_workers=2), batch_size=4))
    numbers = {trial.settings.num_workers: trial.reason for trial in tuning.trials}
    assert max(numbers) <= 2
    assert tuning.settings.num_workers < 2
    assert numbers.get(2, "Too many open files") is not None


def test_no_memory_for_workers() -> None:
    tuning = short(
        DataLoader(Instant(400), batch_size=4), free=lambda: Free(memory_bytes=1 << 20, shared_bytes=1 << 20)
    )
    assert tuning.leave_it
    assert "not tried: it would take" in (tuning.trials[1].reason or "")


def test_nothing_to_be_timed() -> None:
    with pytest.raises(CannotExamineError, match="No such file"):
        short(DataLoader(Failing(FileNotFoundError(2, "No such file", "x.jpg"), from_workers=0), batch_size=4))
    with pytest.raises(CannotExamineError, match="end after 0 batches"):
        short(DataLoader(Instant(0), batch_size=4))


def test_error_of_the_step() -> None:
    def step(batch: Any) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        short(DataLoader(Instant(), batch_size=4, num_workers=1), step)


def test_budget_too_small() -> None:
    with pytest.raises(ValueError, match="at least 1 second"):
        prefeed.tune(DataLoader(Instant()), budget=0.5)


def test_loader_of_prefeed(tmp_path: Path, clock: Clock) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}").write_bytes(bytes(1000))
    loader = prefeed.DataLoader(prefeed.datasets.Objects(tmp_path, decode=len), batch_size=4)
    tuning = short(loader)
    assert tuning.data == "warm"
    assert prefeed.statistics().hits > 0
