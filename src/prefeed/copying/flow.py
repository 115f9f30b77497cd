"""Which object is begun when, by which thread: as many at a time as the origin answers well, and memory has room for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prefeed.copying.bodies import PIECE_BYTES
from prefeed.core.requests import ConcurrencyLimit
from prefeed.system.clock import Clock
from prefeed.types import ObjectInfo

_TELLING_BYTES: Final = 1024**2
"""The time that larger objects take says more about their size than about the origin."""

_UNKNOWN_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """What a copy may take.

    Attributes:
        max_in_flight: Most objects under way at a time.
        max_bytes_in_flight: Most bytes of them in memory; one object, or piece of one, is always allowed.
        retry_deadline_seconds: Time after which an object that cannot be had is given up.
    """

    max_in_flight: int = 256
    max_bytes_in_flight: int = 256 * 1024**2
    retry_deadline_seconds: float = 120.0


class Flow:
    """Hands out objects in order, to threads that are numbered from 0.

    **Threads**: any. A condition each for what is waited for, so that nobody is woken in vain.
    **Invariants**: no more objects are out than the limit says, which is never above ``max_in_flight``.
    """

    def __init__(self, items: Iterable[ObjectInfo], limits: CopyLimits, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._items = iter(items)
        self._limits = limits
        self._limit = ConcurrencyLimit(limits.max_in_flight)
        self._lock = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._lighter = threading.Condition(self._lock)
        self._head: ObjectInfo | None = None
        self._is_over = False
        self._num_out = 0
        self._bytes_out = 0

    @property
    def num_threads(self) -> int:
        """How many threads there is work for now; 0 when nothing more is handed out."""
        return 0 if self._is_over else self._limit.limit

    def take(self, number: int) -> ObjectInfo | None:
        """Return the next object once the thread of this number may begin it; None when nothing more is handed out."""
        with self._lock:
            while not self._is_over:
                if self._head is None:
                    self._head = next(self._items, None)
                if self._head is None:
                    self._end()
                elif number >= self._limit.limit:
                    self._grown.wait()
                elif not self._has_room(self._head):
                    self._lighter.wait()
                else:
                    return self._hand_out(self._head)
        return None

    def give_back(self, info: ObjectInfo) -> None:
        """An object is done, one way or the other."""
        with self._lock:
            self._num_out -= 1
            self._bytes_out -= _in_memory(info)
            self._lighter.notify_all()

    def succeeded(self, size_bytes: int, seconds: float) -> None:
        """An object of this size took that long."""
        if size_bytes > _TELLING_BYTES:
            return
        with self._lock:
            before = self._limit.limit
            self._limit.on_success(seconds, num_in_flight=self._num_out, now=self._clock())
            if self._limit.limit > before:
                self._grown.notify_all()

    def throttled(self) -> None:
        """The origin asked for fewer requests."""
        with self._lock:
            self._limit.on_throttle(self._clock())

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._end()

    def _has_room(self, info: ObjectInfo) -> bool:
        return not self._num_out or self._bytes_out + _in_memory(info) <= self._limits.max_bytes_in_flight

    def _hand_out(self, info: ObjectInfo) -> ObjectInfo:
        self._head = None
        self._num_out += 1
        self._bytes_out += _in_memory(info)
        return info

    def _end(self) -> None:
        self._is_over = True
        self._grown.notify_all()
        self._lighter.notify_all()


def _in_memory(info: ObjectInfo) -> int:
    return _UNKNOWN_BYTES if info.size_bytes < 0 else min(info.size_bytes, PIECE_BYTES)
