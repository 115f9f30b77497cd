"""Counts of a trial over time: those of the epoch alone, not too often, and at its end."""

from __future__ import annotations

from collections.abc import Iterator

from prefeed.diagnose.doctor.counting import counted
from prefeed.diagnose.measurement import Counts
from prefeed.types import Statistics

BATCH_SECONDS = 1 / 64


class Machine:
    """A clock, and a server whose counts grow with it; a request takes ``cost`` seconds.

    A batch takes 1/64 s, which a float holds exactly, reads two objects, and fetches one of them.
    """

    def __init__(self, *, cost: float = 0.0, starts_at: float = 0.0) -> None:
        self.now = 0.0
        self.num_asked = 0
        self._cost = cost
        self._starts_at = starts_at

    def clock(self) -> float:
        return self.now

    def ask(self) -> Statistics | None:
        self.num_asked += 1
        made = round(self.now / BATCH_SECONDS)
        self.now += self._cost
        return Statistics(hits=made, misses=made, origin_requests=made) if self.now >= self._starts_at else None

    def epoch(self, number: int) -> Iterator[int]:
        """Begin an epoch: two batches are made at once."""
        self.now += 2 * BATCH_SECONDS
        return self._batches(number)

    def _batches(self, number: int) -> Iterator[int]:
        for batch in range(number):
            self.now += BATCH_SECONDS
            yield batch


def run(machine: Machine, number: int) -> list[Counts]:
    counts: list[Counts] = []
    assert list(counted(lambda: machine.epoch(number), machine.ask, counts, clock=machine.clock)) == list(range(number))
    return counts


def test_counts_are_those_since_the_epoch_began() -> None:
    machine = Machine()
    run(machine, 100)
    counts = run(machine, 7)

    assert (counts[0].reads, counts[0].origin_requests, counts[0].hit_ratio) == (0, 0, None)
    assert [each.seconds * 64 for each in counts] == [0, 4, 8, 9]
    assert (counts[-1].reads, counts[-1].hits, counts[-1].origin_requests) == (18, 9, 9)
    assert counts[-1].hit_ratio == 0.5


def test_a_slow_server_is_asked_less_often() -> None:
    quick, slow = Machine(), Machine(cost=BATCH_SECONDS)
    run(quick, 200)
    run(slow, 200)

    assert quick.num_asked == 2 + 202 // 4
    assert slow.num_asked <= 2 + 1 + 202 * 0.02


def test_a_server_that_starts_within_the_epoch_counts_from_then() -> None:
    counts = run(Machine(starts_at=5 * BATCH_SECONDS), 11)

    assert [each.seconds * 64 for each in counts] == [0, 8, 12, 13]
    assert counts[-1].reads == 26


def test_without_a_server_nothing_is_counted() -> None:
    assert len(run(Machine(starts_at=99.0), 10)) == 1
