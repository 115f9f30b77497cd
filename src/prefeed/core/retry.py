"""When a failed fetch, or a failed connection, is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


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
        self.num_failed = 0
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
