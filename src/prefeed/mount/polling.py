"""Decides how long the daemon polls its device before it sleeps.

Waking an idle core takes longer than answering a read of a small file (ADR 38). The daemon therefore polls for a short time if the next
request will probably arrive within it, which is the case while a reader waits for each answer and soon sends the next request. Network
devices and virtual machines use busy polling, too (KVM's ``halt_poll_ns`` also adapts to its success).
"""

from __future__ import annotations

from typing import Final

POLL_SECONDS: Final = 60e-6
"""Maximum polling time. It equals the time to wake a core, so that unsuccessful polling at most doubles the cost."""

_LOOK_SECONDS: Final = 10e-6
"""Maximum time between two polls, which take 2 µs each. After a longer time, another thread has used the processor."""

_SOON_SECONDS: Final = 200e-6
"""Maximum time until a request that counts as soon, including the wakeups of reader and daemon."""

_MIN_SOON: Final = 2
_INITIAL_CREDIT: Final = 4
_MAX_CREDIT: Final = 8
_MIN_PAUSE: Final = 8
_MAX_PAUSE: Final = 256


class BusyPolling:
    """Decides for how long to poll a device before the next sleep. Pure.

    Polling starts after two consecutive requests of one task that arrived soon. A reader that processes each file for milliseconds never
    triggers it, and several concurrent readers rarely do.

    Polling fails if no request arrives in time, or if the processor is used by another thread, probably the reader: if both share a core,
    sleeping switches to the reader and is cheapest. If more than one of four polls fail, polling pauses for 8 requests that arrive soon. The
    pause doubles each time, up to 256 requests, and is reset after several successes in a row.

    **Threads and processes.** One thread at a time.

    Attributes:
        seconds: Maximum polling time for the next request; 0.0 for none.
    """

    __slots__ = ("_credit", "_pause", "_rest", "_task", "seconds")

    def __init__(self) -> None:
        """Start without a known reader."""
        self.seconds: float = 0.0
        self._task = 0
        self._rest = _MIN_SOON  # number of soon requests before polling starts
        self._credit = _INITIAL_CREDIT
        self._pause = _MIN_PAUSE

    def should_sleep(self, waited_seconds: float, look_seconds: float) -> bool:
        """Return whether polling has failed, so that the thread should sleep.

        Args:
            waited_seconds: Time since the last request was answered.
            look_seconds: Time since the previous poll.
        """
        return waited_seconds >= self.seconds or look_seconds > _LOOK_SECONDS

    def record_request(self, task: int, waited_seconds: float, look_seconds: float) -> None:
        """Record a request and decide about polling for the next one.

        Args:
            task: Id of the requesting thread; 0 if unknown, as for ``RELEASE``.
            waited_seconds: As for ``should_sleep``.
            look_seconds: As for ``should_sleep``, including a sleep after the last poll.
        """
        if self.seconds > 0.0:
            if self.should_sleep(waited_seconds, look_seconds):
                self._record_failure()
            elif waited_seconds > look_seconds:  # ignore a request that the first poll found
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
