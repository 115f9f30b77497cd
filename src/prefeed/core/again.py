"""When what failed for now is tried again: soon at first, then after pauses that grow."""

from __future__ import annotations

from typing import Final

_FIRST_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 60.0
_MOST_TIMES: Final = 9
"""No pause is longer than this many times what a try took, unless that is less than the pauses above."""


class Again:
    """Counts tries that failed, and says when the next one is due.

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
