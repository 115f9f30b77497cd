"""When a failed fetch is tried again: exponential back-off with a deadline, after AWS's "full jitter"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Pure: the randomness is an argument.

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
