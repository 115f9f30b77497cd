"""A thread that waits until a loader should join the server, and lets it join while its loop runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from prefeed.client.in_place import PlaceState
from prefeed.core.in_place import Storage

_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.1
_GROWTH: Final = 1.2
_MOST_LOOKS: Final = 300
"""After some 30 s only the loop looks, once per batch: a thread that has found nothing by then is not kept."""


class Joining:
    """One try to join, in a thread of its own, which ends with it.

    **Threads and processes.** ``stop`` takes no lock and waits for nothing, so a finalizer may call it. A forked child has no
    thread.
    """

    def __init__(self, state: PlaceState, join: Callable[[Joining], None], *, when_slow: bool) -> None:
        """Begin to wait.

        Args:
            state: Of the epoch that is read in place.
            join: Called once, in the thread; raises nothing. It looks at ``is_stopped`` before it changes anything.
            when_slow: Wait until storage was found slow; nothing follows if it is quick. Else join at once.
        """
        self.is_stopped: bool = False
        self.is_waiting: bool = when_slow
        self.is_running: bool = True
        self._state = state
        self._join = join
        try:
            threading.Thread(target=self._run, name="prefeed-join", daemon=True).start()
        except RuntimeError:  # the process may have no more threads: samples are read in place
            self._has_ended()

    def stop(self) -> None:
        """Do not join any more."""
        self.is_stopped = True

    def _run(self) -> None:
        try:
            if self._is_due() and not self.is_stopped:
                self._join(self)
        finally:
            self._has_ended()

    def _has_ended(self) -> None:
        self.is_running = False
        del self._join  # what it refers to refers to this

    def _is_due(self) -> bool:
        """Return True when storage is slow, or need not be."""
        pause = threading.Event()
        seconds, looks = _FIRST_PAUSE_SECONDS, 0
        while self.is_waiting and not self.is_stopped:
            storage = self._state.storage()
            if storage is Storage.SLOW:
                self.is_waiting = False
            elif storage is Storage.QUICK or looks >= _MOST_LOOKS:
                return False
            else:
                looks += 1
                pause.wait(seconds)
                seconds = min(_LONGEST_PAUSE_SECONDS, seconds * _GROWTH)
        return True
