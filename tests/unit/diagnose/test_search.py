"""What is tried next and what is made of it, on machines that are tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from prefeed.diagnose.search import Ratio, Search, Settings, Trial, ratio_of

BatchSeconds = Callable[[Settings], float]


@dataclass
class Machine:
    """Answers each run from a formula, with noise and the cost of starting workers; may be slower at times."""

    batch_seconds: BatchSeconds
    noise: float = 0.0
    start_seconds: float = 0.02
    drift: Callable[[int], float] = lambda number: 1.0
    fails: Callable[[Settings], str | None] = lambda settings: None
    waits: Callable[[Settings], float] = lambda settings: 0.5
    seed: int = 0
    asked: list[Settings] = field(default_factory=list)
    spent: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def run(self, settings: Settings, seconds: float) -> Trial:
        self.asked.append(settings)
        reason = self.fails(settings)
        if reason is not None:
            self.spent += 0.1
            return Trial(name="", settings=settings, cost_seconds=0.1, reason=reason)
        each = self.batch_seconds(settings) * self._random.lognormvariate(0, self.noise)
        each *= self.drift(len(self.asked))
        batches = max(2, round(seconds / each))
        cost = batches * each + self.start_seconds * (1 + settings.num_workers)
        self.spent += cost
        return Trial(
            name="", settings=settings, cost_seconds=cost, steps=batches, step_seconds=each, samples_s=1 / each,
            waited=self.waits(settings),
        )  # fmt: skip

    def answer(self, present: Settings, *, budget: float = 60.0, **space: Any) -> Search:
        search = Search(present=present, budget=budget, **space)
        steps = search.steps()
        asked = next(steps)
        while True:
            try:
                asked = steps.send(self.run(*asked))
            except StopIteration:
                return search


def waiting(settings: Settings, *, useful: int = 64) -> float:
    """A load that only waits: as many workers, as many times as fast."""
    return 0.16 / max(1, min(useful, settings.num_workers))


def computing(settings: Settings, *, cores: int) -> float:
    return 0.16 / max(1, min(cores, settings.num_workers)) * (1 + 0.02 * max(0, settings.num_workers - cores))


NONE = Settings(num_workers=0)
TWO = NONE.with_workers(2)


def workers_tried(machine: Machine) -> list[int]:
    return sorted({settings.num_workers for settings in machine.asked})


def test_load_that_waits_gets_more_workers_than_there_are_cores() -> None:
    machine = Machine(lambda settings: waiting(settings, useful=16))
    found = machine.answer(NONE, cores=2)
    assert found.best.num_workers == 16
    assert found.ratio is not None
    assert found.ratio.is_gain
    assert found.ratio.gain == pytest.approx(16, rel=0.01)
    assert workers_tried(machine) == [0, 1, 2, 4, 8, 16, 32, 64]


def test_load_that_computes_gets_as_many_as_there_are_cores() -> None:
    found = Machine(lambda settings: computing(settings, cores=6)).answer(NONE, cores=6, compute_seconds=0.001)
    assert found.best.num_workers == 6


@pytest.mark.parametrize("seed", range(12))
def test_noise_of_a_tenth_does_not_hide_a_gain(seed: int) -> None:
    machine = Machine(lambda settings: waiting(settings, useful=8), noise=0.1, seed=seed)
    found = machine.answer(TWO, cores=2)
    assert found.best.num_workers in (6, 7, 8, 12, 16, 32)
    assert found.ratio is not None
    assert found.ratio.is_gain
    assert found.ratio.low <= found.ratio.gain <= found.ratio.high


def test_noise_makes_no_gains() -> None:
    """Where all settings are alike, a gain is reported as seldom as the interval says."""
    gains = 0
    for seed in range(40):
        found = Machine(lambda settings: 0.02, noise=0.1, seed=seed).answer(TWO, cores=4)
        gains += found.ratio is not None and found.ratio.is_gain
    assert gains <= 1


@pytest.mark.parametrize("change", [0.9, 1.1])
def test_machine_that_becomes_faster_or_slower_makes_no_gains(change: float) -> None:
    """Of a pair the second run is the better or the worse one: so each is the second as often as the first."""
    machine = Machine(lambda settings: 0.02, drift=lambda number: change**number)
    found = machine.answer(NONE.with_workers(4), cores=4)
    assert found.ratio is None or not found.ratio.is_gain
    assert found.best.prefetch_factor in (0, 2)


def test_many_processors_are_not_all_tried_where_few_do() -> None:
    machine = Machine(lambda settings: waiting(settings, useful=2))
    machine.answer(NONE, cores=64)
    assert max(workers_tried(machine)) == 8


def test_the_smaller_wins_a_tie() -> None:
    found = Machine(lambda settings: waiting(settings, useful=4)).answer(NONE.with_workers(8), cores=8)
    assert found.best == NONE.with_workers(4)
    assert found.ratio is not None
    assert not found.ratio.is_gain


def test_present_setting_that_is_best_and_smallest_is_left() -> None:
    found = Machine(lambda settings: waiting(settings, useful=2)).answer(TWO, cores=2)
    assert (found.best, found.ratio) == (TWO, None)


def test_step_that_takes_the_time_is_recognised_at_once() -> None:
    machine = Machine(lambda settings: 0.1, waits=lambda settings: 0.01)
    found = machine.answer(TWO, cores=2, compute_seconds=0.099)
    assert found.is_bound
    assert found.best == TWO
    assert len(machine.asked) == 1


def test_step_that_waits_is_not_taken_for_the_time() -> None:
    """The step alone was timed in a bad moment."""
    machine = Machine(lambda settings: waiting(settings, useful=4), waits=lambda settings: 0.4)
    found = machine.answer(TWO, cores=2, compute_seconds=0.2)
    assert not found.is_bound
    assert found.best.num_workers == 4


def test_on_a_device_waiting_says_nothing() -> None:
    """The loop runs ahead of the device, and waits while the device works."""
    machine = Machine(lambda settings: 0.1, waits=lambda settings: 0.9)
    assert machine.answer(TWO, cores=2, has_device=True, compute_seconds=0.099).is_bound


def test_no_more_workers_than_the_step_can_use() -> None:
    machine = Machine(
        lambda settings: max(0.04, waiting(settings)), waits=lambda settings: 0.0 if settings.num_workers >= 4 else 0.5
    )
    found = machine.answer(NONE, cores=2, compute_seconds=0.04)
    assert found.best.num_workers == 4
    assert max(workers_tried(machine)) == 4


def test_fewer_intra_op_threads_where_they_are_in_the_way_of_the_workers() -> None:
    def seconds(settings: Settings) -> float:
        return max(0.02 if settings.threads == 1 else 0.05, computing(settings, cores=4))

    found = Machine(seconds).answer(NONE.with_workers(4), cores=4, threads=4, compute_seconds=0.02)
    assert found.best.threads == 1
    assert found.ratio is not None
    assert found.ratio.is_gain


def test_threads_help_where_the_step_takes_the_time() -> None:
    machine = Machine(lambda settings: 0.1 if settings.threads is None else 0.05, waits=lambda settings: 0.0)
    found = machine.answer(TWO, cores=8, threads=1, compute_seconds=0.1)
    assert found.best.threads is not None
    assert found.best.num_workers == 2


def test_pinned_memory_only_where_there_is_a_device() -> None:
    def seconds(settings: Settings) -> float:
        return waiting(settings, useful=2) * (0.6 if settings.pin_memory else 1.0)

    with_device, without = Machine(seconds), Machine(seconds)
    assert with_device.answer(TWO, cores=2, has_device=True).best.pin_memory
    assert not without.answer(TWO, cores=2).best.pin_memory
    assert not any(settings.pin_memory for settings in without.asked)


def test_more_batches_ahead_where_that_gains() -> None:
    def seconds(settings: Settings) -> float:
        return waiting(settings, useful=2) * (0.7 if settings.prefetch_factor >= 4 else 1.0)

    assert Machine(seconds).answer(TWO, cores=2).best.prefetch_factor == 4


def test_what_fails_with_few_workers_is_not_tried_with_more() -> None:
    machine = Machine(waiting, fails=lambda settings: "no room" if settings.num_workers >= 8 else None)
    found = machine.answer(NONE, cores=16)
    assert found.best.num_workers in (4, 6)
    assert max(workers_tried(machine)) == 8


def test_present_setting_that_fails() -> None:
    machine = Machine(waiting, fails=lambda settings: "no room" if settings.num_workers >= 8 else None)
    found = machine.answer(NONE.with_workers(16), cores=2)
    assert found.best.num_workers in (4, 6)
    assert found.ratio is None


def test_something_that_works_is_found_though_the_time_is_over() -> None:
    """Of a present setting that fails, the warm-up may have taken all the time there was."""
    machine = Machine(waiting, fails=lambda settings: "no room" if settings.num_workers >= 1 else None)
    found = machine.answer(NONE.with_workers(2), cores=2, budget=0.05)
    assert found.best == NONE


def test_best_that_fails_in_the_end_is_dropped() -> None:
    machine = Machine(lambda settings: waiting(settings, useful=8))
    machine.fails = lambda settings: "killed" if settings.num_workers == 8 and machine.spent > 20 else None
    found = machine.answer(NONE, cores=2)
    assert found.best.num_workers not in (0, 8)
    assert found.ratio is not None
    assert found.ratio.is_gain


def test_everything_fails() -> None:
    found = Machine(waiting, fails=lambda settings: "no").answer(TWO, cores=2)
    assert (found.best, found.ratio) == (TWO, None)


@pytest.mark.parametrize("budget", [5.0, 20.0, 60.0, 300.0])
@pytest.mark.parametrize("start_seconds", [0.01, 0.3])
def test_budget_is_kept_but_for_the_runs_that_prove(budget: float, start_seconds: float) -> None:
    machine = Machine(waiting, start_seconds=start_seconds, noise=0.1)
    found = machine.answer(TWO, cores=4, threads=4, compute_seconds=0.001, budget=budget)
    longest = start_seconds * (1 + max(workers_tried(machine))) + 0.04 * budget
    assert machine.spent <= budget + 4 * longest
    assert found.best.num_workers > 2 or found.ran_out


def test_slow_samples_are_not_asked_of_few_workers() -> None:
    machine = Machine(lambda settings: 8.0 / max(1, settings.num_workers))
    machine.answer(NONE.with_workers(8), cores=8)
    assert min(workers_tried(machine)) >= 4


def test_equal_pairs_are_given_the_usual_noise() -> None:
    two, three, many = (ratio_of([(2.0, 1.0)] * number) for number in (2, 3, 30))
    assert [ratio.gain for ratio in (two, three, many)] == pytest.approx([2.0] * 3)
    assert 1.6 < two.low < three.low < many.low < 2.0 < many.high < three.high < two.high < 2.5


def test_interval_holds_the_true_value_in_95_of_100_cases() -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(1000):
        pairs = [(1.5 * rng.lognormvariate(0, 0.1), rng.lognormvariate(0, 0.1)) for _ in range(4)]
        ratio = ratio_of(pairs)
        held += ratio.low <= 1.5 <= ratio.high
    assert 920 <= held <= 975


def test_two_pairs_may_agree_by_chance() -> None:
    for pairs, is_clear in ((2, False), (3, True)):
        assert Ratio(gain=1.9, low=1.8, high=2.0, pairs=pairs).is_clear is is_clear
    assert not Ratio(gain=1.0, low=0.9, high=1.2, pairs=9).is_clear
