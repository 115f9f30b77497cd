"""How many requests may be in flight: as many as rate times latency needs, fewer when the origin pushes back.

Doubles while more requests in flight do not make each slower (TCP Vegas's idea), stops growing when latency rises
well above the best seen, halves when it rises far above or when the origin says so (429, 503).
"""

from __future__ import annotations

from typing import Final

START: Final = 32
"""Requests in flight to begin with: enough for a fast origin, which needs no more."""

_GROW_BELOW: Final = 2.0
_SHRINK_ABOVE: Final = 6.0
_FLOOR: Final = 16
_MIN_GROW_LATENCY_SECONDS: Final = 0.001
_HOLD_SECONDS: Final = 1.0


class ConcurrencyLimit:
    """Adapts one origin's limit; pure, the clock is an argument.

    Args:
        maximum: Never more than this in flight.

    Invariants: ``1 <= limit <= maximum``.
    """

    __slots__ = ("_best", "_hold_until", "_round", "_round_sum", "limit", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self.limit = min(START, maximum)
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
