from __future__ import annotations

import json

import msgspec
import pytest

from prefeed.diagnose.tune.report import Tuning, tuning_of
from prefeed.diagnose.tune.search import Found, Ratio, Run, Settings, with_workers

NONE = Settings(num_workers=0)
FOUR = with_workers(NONE, 4)
EIGHT = with_workers(NONE, 8)


def run(settings: Settings, batch_seconds: float, **more: float) -> Run:
    return Run(settings=settings, cost_seconds=1.0, batches=10, seconds=10 * batch_seconds, **more)  # type: ignore[arg-type]


def ratio(gain: float, low: float, high: float) -> Ratio:
    return Ratio(gain=gain, low=low, high=high, pairs=4)


def report(found: Found, runs: list[Run], *, present: Settings = NONE, compute: float | None = None) -> Tuning:
    return tuning_of(
        present, found, runs, compute_seconds=compute, batch_size=32.0, data="warm", seconds=12.0
    )  # fmt: skip


RUNS = [run(NONE, 0.1), run(FOUR, 0.05, memory_bytes=7, cpus=0.5), run(FOUR, 0.07, memory_bytes=9, cpus=1.5)]


def test_gain() -> None:
    tuning = report(Found(best=FOUR, ratio=ratio(1.8, 1.6, 2.0)), RUNS)
    assert (tuning.settings, tuning.leave_it) == (FOUR, False)
    assert str(tuning).splitlines()[0] == (
        "1.80x as fast (1.60-2.00) with num_workers=4, prefetch_factor=2 instead of num_workers=0."
    )
    assert str(tuning).splitlines()[-1] == tuning.line == "DataLoader(..., num_workers=4, prefetch_factor=2)"


@pytest.mark.parametrize("low", [0.9, 1.04])
def test_gain_within_the_noise_is_left(low: float) -> None:
    tuning = report(Found(best=FOUR, ratio=ratio(1.1, low, 1.3)), RUNS)
    assert (tuning.settings, tuning.best, tuning.leave_it) == (NONE, FOUR, True)
    assert str(tuning).startswith("Leave it")
    assert "DataLoader(" not in str(tuning)
    assert tuning.line == "DataLoader(..., num_workers=0)"


def test_gain_at_the_limit_is_one() -> None:
    assert not report(Found(best=FOUR, ratio=ratio(1.1, 1.05, 1.2)), RUNS).leave_it


def test_nothing_is_faster() -> None:
    tuning = report(Found(best=NONE), RUNS)
    assert (tuning.gain, tuning.low, tuning.high) == (1.0, 1.0, 1.0)
    assert str(tuning).startswith("Leave it: no setting")


def test_step_takes_the_time() -> None:
    tuning = report(Found(best=NONE, is_bound=True), [run(NONE, 0.1)], compute=0.097)
    assert tuning.perfect == pytest.approx(1.031, abs=0.001)
    assert "the training step takes the time" in str(tuning)
    assert "at most 3 %" in str(tuning)


def test_more_threads_for_a_step_that_takes_the_time() -> None:
    best = msgspec.structs.replace(NONE, threads=4)
    tuning = report(Found(best=best, is_bound=True, ratio=ratio(2, 1.9, 2.1)), [run(NONE, 0.1), run(best, 0.05)])
    assert "torch.set_num_threads(4)" in str(tuning)


def test_fewer_workers_as_fast_are_mentioned() -> None:
    runs = [run(EIGHT, 0.05, memory_bytes=800_000_000), run(FOUR, 0.05, memory_bytes=400_000_000)]
    tuning = report(Found(best=FOUR, ratio=ratio(1.0, 0.97, 1.03)), runs, present=EIGHT)
    assert tuning.leave_it
    assert "num_workers=4, prefetch_factor=2 is as fast and takes 400 MB less." in tuning.notes


def test_present_setting_fails() -> None:
    runs = [Run(settings=EIGHT, cost_seconds=1.0, reason="killed"), run(FOUR, 0.1)]
    tuning = report(Found(best=FOUR), runs, present=EIGHT)
    assert tuning.gain is None
    assert tuning.settings == FOUR
    assert "fails" in str(tuning)
    assert tuning.line in str(tuning)


def test_lookahead_alone() -> None:
    found = Found(best=NONE, lookahead=4 << 30, lookahead_ratio=ratio(1.4, 1.2, 1.6))
    tuning = report(found, RUNS)
    assert not tuning.leave_it
    assert "first epoch is 1.40x, 1.20-1.60" in str(tuning)
    assert "PREFEED_LOOKAHEAD=4GiB" in str(tuning)


def test_runs_of_one_setting_are_one_trial() -> None:
    none, four = report(Found(best=NONE), RUNS).trials
    assert (none.runs, none.spread, none.samples_s) == (1, None, pytest.approx(320))
    assert four.runs == 2
    assert four.batches_s == pytest.approx(1 / 0.06)
    assert four.spread == pytest.approx(1 / 6)
    assert four.memory_bytes == 9
    assert four.cpus == pytest.approx((0.5 * 0.5 + 1.5 * 0.7) / 1.2)


def test_failed_trial_keeps_its_reason() -> None:
    runs = [*RUNS, Run(settings=EIGHT, cost_seconds=1.0, reason="no room")]
    assert report(Found(best=NONE), runs).trials[-1].reason == "no room"


def test_json() -> None:
    tuning = report(Found(best=FOUR, ratio=ratio(1.8, 1.6, 2.0)), RUNS)
    assert json.loads(tuning.to_json())["settings"]["num_workers"] == 4
    assert msgspec.json.decode(tuning.to_json(), type=Tuning) == tuning
    failing = report(Found(best=FOUR, ratio=None), [Run(settings=NONE, cost_seconds=1.0, reason="x")])
    assert json.loads(failing.to_json())["gain"] is None
