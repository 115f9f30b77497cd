"""How long the daemon asks its device again before it sleeps: only while a reader waits for each answer and asks soon again.

An idle core takes longer to wake than a small file takes to be answered (ADR 38). So the daemon looks at the device again and
again for a short while, if the next request will probably come within it. Busy polling is known from network devices and from
virtual machines (KVM's ``halt_poll_ns``, which grows and shrinks by its success as well).
"""

from __future__ import annotations

from typing import Final

POLL_SECONDS: Final = 60e-6
"""As long as waking a core takes: a request that comes later than that has cost no more than the wake that it did not save."""

_SOON_SECONDS: Final = 200e-6
"""After so long a request still comes soon, if the daemon has slept: the wakes of the reader and of the daemon are part of it."""

_ENOUGH: Final = 2
_LEAST_PAUSE: Final = 2
_MOST_PAUSE: Final = 256
_PROVEN: Final = 8


class BusyPolling:
    """Decides for how long a device is polled before the next sleep. Pure.

    It is polled after two requests in a row of one task that came soon; a reader that works on each file for milliseconds never
    has them, and of several readers none has them for long. After time that was spent in vain, some requests must come soon
    first: two if it had just paid eight times or more, else twice as many as the last time, up to 256. So where polling does not
    pay, as on a single core or beside other programs, hardly anything is lost.

    **Threads and processes.** One thread at a time.

    Attributes:
        seconds: How long the device may be polled for the next request; 0.0: not at all.
    """

    __slots__ = ("_num_soon", "_pause", "_task", "seconds")

    def __init__(self) -> None:
        """Know of no reader yet."""
        self.seconds: float = 0.0
        self._task = 0
        self._num_soon = 0  # below 0: so many have to come before they count
        self._pause = _LEAST_PAUSE

    def came(self, task: int, waited_seconds: float) -> None:
        """Note a request.

        Args:
            task: The thread that asks; 0, as for ``RELEASE``: it is not known, and nothing follows from it.
            waited_seconds: Since the request before it was answered.
        """
        if waited_seconds > self.seconds > 0.0:
            self._pause = _LEAST_PAUSE if self._num_soon >= _ENOUGH + _PROVEN else min(2 * self._pause, _MOST_PAUSE)
            self._num_soon = -self._pause
            self.seconds = 0.0
        if task:
            if task == self._task and waited_seconds <= _SOON_SECONDS:
                self._num_soon += 1
            else:
                self._num_soon = min(self._num_soon, 0)
                self._task = task
            self.seconds = POLL_SECONDS if self._num_soon >= _ENOUGH else 0.0
