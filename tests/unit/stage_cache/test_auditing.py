from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from prefeed.stage_cache import auditing
from prefeed.stage_cache.auditing import ON_CREDIT, SHARE, Audit, Auditor, Run, Waiting
from prefeed.stage_cache.files_seen import Note


class Loop:
    """A loop over batches, in a process of its own."""

    def __init__(self, run: Run, chance: Callable[[], float]) -> None:
        self.now = 100.0
        self.auditor = Auditor(run, clock=lambda: self.now, chance=chance)
        self.audited_seconds = 0.0
        self.audited: list[int] = []

    def epoch(self, num_batches: int, *, batch_seconds: float, cost_seconds: float) -> None:
        for batch in range(num_batches):
            self.now += batch_seconds
            at = self.auditor.choose(64)
            if at is not None and self.auditor.is_due(cost_seconds):
                assert 0 <= at < 64
                self.now += cost_seconds
                self.auditor.spent(cost_seconds)
                self.audited_seconds += cost_seconds
                self.audited.append(batch)


@pytest.mark.parametrize("cost_seconds", [0.0005, 0.01, 0.2, 3.0])
@pytest.mark.parametrize("num_processes", [1, 50])
def test_audits_take_a_hundredth_of_the_time(cost_seconds: float, num_processes: int) -> None:
    chance = random.Random(5).random
    run = Run()
    run.end()
    seconds = audited = 0.0
    for _ in range(num_processes):
        loop = Loop(run, chance)
        loop.epoch(100_000 // num_processes, batch_seconds=0.05, cost_seconds=cost_seconds)
        seconds += loop.now - 100.0
        audited += loop.audited_seconds
    assert audited <= SHARE * seconds + 2 * cost_seconds + (2.0 if num_processes > 1 and cost_seconds > 1 else 0.0) * 6
    assert audited >= 0.5 * SHARE * seconds or cost_seconds > 1


@pytest.mark.parametrize("is_unchanged", [True, False])
def test_a_dataset_is_looked_at_around_each_audit_and_that_is_counted(is_unchanged: bool) -> None:
    now, done = [1.0], list[str]()
    run = Run()
    run.end()
    auditor = Auditor(run, clock=lambda: now[0], chance=lambda: 1.0)
    kept = (b"kept", Note(micros=1000))
    asked: Any = Audit(SimpleNamespace(count_audit=lambda failed: None), 0, b"", nullcontext)
    finder: Any = SimpleNamespace(note=lambda *_: kept[1], entry=lambda *_: kept)

    def made(*_: Any) -> bytes:
        done.append("made")
        return b"kept"

    maker: Any = SimpleNamespace(can_compare=True, made_to_compare=made, differs=lambda *_: None)

    @contextmanager
    def looking() -> Iterator[bool]:
        done.append("before")
        now[0] += 0.01
        yield is_unchanged
        now[0] += 0.01
        done.append("after")

    def audit() -> None:
        assert auditor.audit(asked, finder, maker, looking=looking(), looking_seconds=0.02) is None

    auditor.choose(1)
    now[0] += 1.0
    auditor.choose(1)  # has earned 10 ms: enough for the sample, but not for the looks
    audit()
    assert done == []
    for _ in range(3):
        now[0] += 1.0
        auditor.choose(1)
    audit()
    assert done == (["before", "made", "after"] if is_unchanged else ["before", "after"])
    audit()  # spent
    assert done.count("before") == 1


def test_the_first_ones_are_made_at_once_and_spread_over_the_epoch() -> None:
    run = Run()
    first, second = Loop(run, lambda: 0.99), Loop(run, lambda: 0.99)
    first.epoch(5, batch_seconds=0.001, cost_seconds=1.0)
    second.epoch(500, batch_seconds=0.001, cost_seconds=1.0)
    assert first.audited == [0, 1, 3]
    assert second.audited == [0, 1, 3]
    assert ON_CREDIT == 6


def test_what_was_made_at_once_is_saved_up_for_afterwards() -> None:
    loop = Loop(Run(), lambda: 0.5)
    loop.epoch(2000, batch_seconds=0.01, cost_seconds=0.1)
    assert len(loop.audited) == ON_CREDIT  # 20 seconds have earned two of them


def test_nothing_is_made_where_nothing_takes_time() -> None:
    run = Run()
    run.end()
    loop = Loop(run, lambda: 0.5)
    loop.epoch(10_000, batch_seconds=0.0, cost_seconds=0.01)
    assert loop.audited == []


def test_a_pause_is_not_saved_up() -> None:
    run = Run()
    run.end()
    loop = Loop(run, lambda: 0.0)
    loop.epoch(1, batch_seconds=100_000.0, cost_seconds=0.01)
    loop.epoch(1000, batch_seconds=0.0, cost_seconds=0.01)
    assert loop.audited_seconds <= 0.02


def test_an_empty_batch() -> None:
    assert Auditor(Run(), clock=lambda: 1.0).choose(0) is None


def test_a_forked_process_has_saved_nothing_and_draws_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1.0]
    run = Run()
    run.end()
    auditor = Auditor(run, clock=lambda: now[0])
    for _ in range(200):
        now[0] += 0.9
        auditor.choose(64)
    assert auditor.is_due(0.1)
    places = []
    for process in range(8):
        monkeypatch.setattr("os.getpid", lambda process=process: -process)
        now[0] += 0.9
        auditor.choose(64)
        assert not auditor.is_due(0.1)  # nor is the time since its parent's last batch its own
        now[0] += 10.0
        places.append(auditor.choose(1 << 20))
    assert len(set(places)) == 8


def test_what_may_wait_is_made_when_nothing_else_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, run, made = Waiting(), Run(), list[int]()
    monkeypatch.setattr(auditing, "waiting", waiting)
    auditor = Auditor(run, clock=lambda: 1.0)
    assert (auditor.choose(8) is not None, auditor.may_wait) == (True, False)
    waiting.is_attended = True
    assert (auditor.choose(8) is not None, auditor.may_wait) == (True, True)
    assert (auditor.choose(8), auditor.may_wait) == (None, False)  # the third batch
    for number in range(3):
        waiting.add(lambda number=number: made.append(number))
    waiting.make_one()
    assert (made, bool(waiting)) == ([0], True)
    waiting.make_rest()
    assert (made, bool(waiting)) == ([0, 1, 2], False)
    while auditor.take_credit():
        assert auditor.is_due(1e9)
    assert (auditor.choose(8), auditor.may_wait) == (None, False)  # the fourth


def test_what_is_left_at_the_end_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, made = [1.0], list[int]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])

    def make() -> None:
        made.append(1)
        now[0] += 3.0
        raise ValueError("of the dataset")

    waiting = Waiting()
    for _ in range(5):
        waiting.add(make)
    waiting.make_rest()
    assert (made, bool(waiting)) == ([1], False)
