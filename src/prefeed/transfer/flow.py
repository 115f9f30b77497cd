"""Which object is begun when, by which thread: as many at a time as the origin answers well, and memory has room for.

And a limit of bytes per second, which threads share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prefeed.core.requests import ConcurrencyLimit
from prefeed.sources.protocol import RangeSource
from prefeed.system.clock import Clock
from prefeed.transfer.entries import Entry
from prefeed.types import FetchedObject, ObjectInfo

PIECE_BYTES: Final = 16 * 1024**2
"""Larger objects are not held in memory as a whole, where the source can read a part of one."""

MBIT_BYTES: Final = 1_000_000 // 8

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


class CopyScheduler:
    """Hands out objects in order, to threads that are numbered from 0.

    **Threads**: any. A condition each for what is waited for, so that no thread is woken in vain.
    **Invariants**: no more objects are out than the limit says, which is never above ``max_in_flight``.
    """

    def __init__(self, entries: Iterable[Entry], limits: CopyLimits, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._entries = iter(entries)
        self._limits = limits
        self._limit = ConcurrencyLimit(limits.max_in_flight)
        self._lock = threading.Lock()
        self._grown = threading.Condition(self._lock)
        self._lighter = threading.Condition(self._lock)
        self._head: Entry | None = None
        self._is_over = False
        self._num_out = 0
        self._bytes_out = 0

    @property
    def num_threads(self) -> int:
        """How many threads there is work for now; 0 when nothing more is handed out."""
        return 0 if self._is_over else self._limit.limit

    def take(self, number: int) -> Entry | None:
        """Return the next object once the thread of this number may begin it; None when nothing more is handed out."""
        with self._lock:
            while not self._is_over:
                if self._head is None:
                    self._head = next(self._entries, None)
                if self._head is None:
                    self._end()
                elif number >= self._limit.limit:
                    self._grown.wait()
                elif not self._has_room(self._head):
                    self._lighter.wait()
                else:
                    return self._hand_out(self._head)
        return None

    def release(self, entry: Entry) -> None:
        """An object is done, one way or the other."""
        with self._lock:
            self._num_out -= 1
            self._bytes_out -= _in_memory(entry)
            self._lighter.notify_all()

    def record_success(self, size_bytes: int, seconds: float) -> None:
        """An object of this size took that long."""
        if size_bytes > _TELLING_BYTES:
            return
        with self._lock:
            before = self._limit.limit
            self._limit.on_success(seconds, num_in_flight=self._num_out, now=self._clock())
            if self._limit.limit > before:
                self._grown.notify_all()

    def record_throttle(self) -> None:
        """The origin asked for fewer requests."""
        with self._lock:
            self._limit.on_throttle(self._clock())

    def stop(self) -> None:
        """Hand out nothing more."""
        with self._lock:
            self._end()

    def _has_room(self, entry: Entry) -> bool:
        return not self._num_out or self._bytes_out + _in_memory(entry) <= self._limits.max_bytes_in_flight

    def _hand_out(self, entry: Entry) -> Entry:
        self._head = None
        self._num_out += 1
        self._bytes_out += _in_memory(entry)
        return entry

    def _end(self) -> None:
        self._is_over = True
        self._grown.notify_all()
        self._lighter.notify_all()


def _in_memory(entry: Entry) -> int:
    return _UNKNOWN_BYTES if entry.size_bytes < 0 else min(entry.size_bytes, PIECE_BYTES)


class BandwidthLimit:
    """Says how long to wait after bytes have come.

    **Threads**: any.

    Args:
        bytes_per_second: The limit.
        clock: Seconds.
    """

    def __init__(self, bytes_per_second: float, *, clock: Clock = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._paid_until = clock()
        self._lock = threading.Lock()

    def charge(self, num_bytes: int) -> float:
        """Return the seconds after which these bytes are paid for, those before them too."""
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + num_bytes / self._rate
            return self._paid_until - now


class PacedSource:
    """A source that gives no more bytes per second than allowed; see ``Source``."""

    def __init__(self, source: RangeSource, limit: BandwidthLimit, *, wait: Callable[[float], object]) -> None:
        """Read ``source``; ``wait`` blocks for a number of seconds."""
        self.url: str = source.url
        self.mark: str = source.mark
        self._source, self._limit, self._wait = source, limit, wait

    def locate(self, path: str) -> str:
        """See ``Source.locate``."""
        return self._source.locate(path)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """See ``Source.list_objects``; a listing is not paid for."""
        return self._source.list_objects()

    def fetch(self, path: str) -> FetchedObject:
        """See ``Source.fetch``."""
        return self._delay(self._source.fetch(path))

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """See ``RangeSource.fetch_range``."""
        return self._delay(self._source.fetch_range(path, offset, size_bytes))

    def close(self) -> None:
        """See ``Source.close``."""
        self._source.close()

    def _delay(self, fetched: FetchedObject) -> FetchedObject:
        seconds = self._limit.charge(memoryview(fetched.data).nbytes)
        if seconds > 0:
            self._wait(seconds)
        return fetched
