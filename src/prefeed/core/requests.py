"""Requests: how many may be in flight, and when a failed one is tried again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

START: Final = 32
"""Requests in flight to begin with: enough for a fast origin, which needs no more."""

START_OF_BLOCKS: Final = 16
"""The same of blocks of large objects: they share the bandwidth, and each reader waits for the first one."""

_GROW_BELOW: Final = 2.0
_SHRINK_ABOVE: Final = 6.0
_FLOOR: Final = 16
_MIN_GROW_LATENCY_SECONDS: Final = 0.001
_HOLD_SECONDS: Final = 1.0


class ConcurrencyLimit:
    """Adapts one origin's limit: as many as rate times latency needs, fewer when the origin pushes back.

    It doubles while more requests in flight do not make each slower (TCP Vegas's idea), stops growing when latency rises
    well above the best seen, halves when it rises far above or when the origin says so (429, 503). Pure: the clock is an
    argument.

    Args:
        maximum: Never more than this in flight.
        start: In flight to begin with.

    Invariants: ``1 <= limit <= maximum``.
    """

    __slots__ = ("_best", "_hold_until", "_round", "_round_sum", "limit", "maximum")

    def __init__(self, maximum: int, *, start: int = START) -> None:
        self.maximum: int = maximum
        self.limit: int = min(start, maximum)
        self._best = float("inf")
        self._round = 0
        self._round_sum = 0.0
        self._hold_until = 0.0

    def on_success(self, latency_seconds: float, *, num_in_flight: int, now: float) -> None:
        """A request came back in that time, while that many were in flight."""
        self._best = min(self._best * 1.0001, latency_seconds)
        self._round += 1
        self._round_sum += latency_seconds
        if self._round < self.limit:
            return
        mean = self._round_sum / self._round
        self._round, self._round_sum = 0, 0.0
        self._adapt(mean, is_busy=num_in_flight >= self.limit * 0.75, now=now)

    def on_throttle(self, now: float) -> None:
        """The origin asked for fewer requests."""
        if now >= self._hold_until:
            self.limit = max(1, self.limit // 2)
            self._hold_until = now + _HOLD_SECONDS
        self._round, self._round_sum = 0, 0.0

    def _adapt(self, mean_seconds: float, *, is_busy: bool, now: float) -> None:
        if now < self._hold_until:
            return
        if self.limit < _FLOOR:
            self.limit = min(self.maximum, self.limit + 1)
        elif mean_seconds > _SHRINK_ABOVE * self._best and mean_seconds > 10 * _MIN_GROW_LATENCY_SECONDS:
            self.limit = min(self.limit, max(_FLOOR, int(self.limit * 0.7)))
        elif is_busy and mean_seconds >= _MIN_GROW_LATENCY_SECONDS and mean_seconds < _GROW_BELOW * self._best:
            self.limit = min(self.maximum, self.limit * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Of a fetch: exponential back-off with a deadline, after AWS's "full jitter". Pure: the randomness is an argument.

    Attributes:
        first_delay_seconds: Upper bound of the first pause.
        max_delay_seconds: Upper bound of every pause.
        deadline_seconds: Time from the first request after which the fetch is given up.
    """

    first_delay_seconds: float = 0.1
    max_delay_seconds: float = 10.0
    deadline_seconds: float = 120.0

    def next_delay(self, *, attempts: int, elapsed_seconds: float, jitter: float) -> float | None:
        """Return the pause before the next request in seconds; None when the fetch is to be given up.

        Args:
            attempts: Requests made so far, at least 1.
            elapsed_seconds: Since the first of them.
            jitter: Uniform in [0, 1).
        """
        bound = min(self.max_delay_seconds, self.first_delay_seconds * 2.0 ** min(attempts - 1, 30))
        delay = bound * (0.5 + 0.5 * jitter)
        return None if elapsed_seconds + delay > self.deadline_seconds else delay


_BUSY_SHARE: Final = 0.8


def wants_another_process(shares: Sequence[float], *, most: int) -> bool:
    """Return whether one more fetch process would help: there may be more, and each of them uses a core.

    Args:
        shares: Processor time of each process over the last second, as share of that second.
        most: Number of processes that there may be.
    """
    return 0 < len(shares) < most and min(shares) >= _BUSY_SHARE


_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_MOST_TIMES: Final = 9
"""No pause is longer than this many times what a try took, unless that is less than the pauses above."""


class Again:
    """Counts tries that failed, and says when the next one is due: soon at first, then after pauses that grow.

    The first try after a failure is due at once. From the second failure on there is a pause of 1, 2, 4 ... 60 seconds,
    and of at least 1, 2, 3 ... 9 times what the last try took: at most a tenth of a program's time is spent on trying.

    Pure: time is an argument, in seconds of any clock that only goes forward.
    """

    def __init__(self) -> None:
        self.num_failed: int = 0
        self._due_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether it may be tried now."""
        return now >= self._due_at

    def failed(self, *, began: float, now: float) -> None:
        """A try that began then has failed now."""
        self.num_failed += 1
        repeated = self.num_failed - 1
        if repeated:
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(repeated - 1, 30))
            pause = max(pause, min(repeated, _MOST_TIMES) * (now - began))
            self._due_at = now + pause

    def succeeded(self) -> None:
        """A try went well: the next failure is the first one again."""
        self.num_failed = 0
        self._due_at = float("-inf")
