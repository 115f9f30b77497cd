"""How long the daemon asks its device again before it sleeps: only while a reader waits for each answer and asks soon again.

An idle core takes longer to wake than a small file takes to be answered (ADR 38). So the daemon looks at the device again and
again for a short while, if the next request will probably come within it. Busy polling is known from network devices and from
virtual machines (KVM's ``halt_poll_ns``, which grows and shrinks by its success as well).
"""

from __future__ import annotations

from typing import Final

POLL_SECONDS: Final = 60e-6
"""As long as waking a core takes: a request that comes later than that has cost no more than the wake that it did not save."""

_LOOK_SECONDS: Final = 10e-6
"""A look at the device takes 2 µs: after a longer time another thread has had the processor."""

_SOON_SECONDS: Final = 200e-6
"""After so long a request still comes soon, if the daemon has slept: the wakes of the reader and of the daemon are part of it."""

_MIN_SOON: Final = 2
_INITIAL_CREDIT: Final = 4
_MAX_CREDIT: Final = 8
_MIN_PAUSE: Final = 8
_MAX_PAUSE: Final = 256


class BusyPolling:
    """Decides for how long a device is polled before the next sleep. Pure.

    It is polled after two requests in a row of one task that came soon. A reader that works on each file for milliseconds never
    has them, and of several readers none has them for long.

    It is polled in vain if nothing comes in time, or if the processor is taken away meanwhile, probably by the reader: where both
    share a core, sleeping is a switch to the reader, and costs least. If that happens more than once in four times, it is not
    tried again for 8 requests that come soon, then for twice as many, up to 256, until it has paid several times in a row.

    **Threads and processes.** One thread at a time.

    Attributes:
        seconds: How long the device may be polled for the next request; 0.0: not at all.
    """

    __slots__ = ("_credit", "_pause", "_rest", "_task", "seconds")

    def __init__(self) -> None:
        """Know of no reader yet."""
        self.seconds: float = 0.0
        self._task = 0
        self._rest = _MIN_SOON  # so many requests have to come soon first
        self._credit = _INITIAL_CREDIT
        self._pause = _MIN_PAUSE

    def should_sleep(self, waited_seconds: float, look_seconds: float) -> bool:
        """Return whether it is polled in vain: it is better to sleep.

        Args:
            waited_seconds: Since the last request was answered.
            look_seconds: Since the look at the device before this one.
        """
        return waited_seconds >= self.seconds or look_seconds > _LOOK_SECONDS

    def record_request(self, task: int, waited_seconds: float, look_seconds: float) -> None:
        """Note a request, after the times that ``should_sleep`` is told.

        Args:
            task: The thread that asks; 0, as for ``RELEASE``: it is not known.
            waited_seconds: See above.
            look_seconds: Also since a look after which it was better to sleep.
        """
        if self.seconds > 0.0:
            if self.should_sleep(waited_seconds, look_seconds):
                self._record_failure()
            elif waited_seconds > look_seconds:  # a request that was there at the first look says nothing
                self._record_success()
        if task:
            if task != self._task or waited_seconds > _SOON_SECONDS:
                self._task = task
                self._rest = max(self._rest, _MIN_SOON)
            elif self._rest:
                self._rest -= 1
        self.seconds = 0.0 if self._rest else POLL_SECONDS

    def _record_success(self) -> None:
        self._credit = min(self._credit + 1, _MAX_CREDIT)
        if self._credit == _MAX_CREDIT:
            self._pause = _MIN_PAUSE

    def _record_failure(self) -> None:
        self._credit -= 3
        if self._credit <= 0:
            self._credit, self._rest = _INITIAL_CREDIT, self._pause
            self._pause = min(2 * self._pause, _MAX_PAUSE)
