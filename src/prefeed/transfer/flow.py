"""Limits the concurrency, memory and bandwidth of a copy.

``CopyScheduler`` hands out objects to as many threads as the origin serves without delay and as memory allows. ``PacedSource`` delays
reads so that all threads together stay below a number of bytes per second.
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
"""Larger objects are read in pieces of this size, if the source supports range reads."""

MBIT_BYTES: Final = 1_000_000 // 8

_TELLING_BYTES: Final = 1024**2
"""Larger objects are not used to measure latency, because their duration depends on their size."""

_UNKNOWN_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """Limits of a copy.

    Attributes:
        max_in_flight: Maximum number of objects in progress.
        max_bytes_in_flight: Maximum size of their data in memory, in bytes; one object, or piece of one, is always allowed.
        retry_deadline_seconds: Time after which a failing object is given up.
    """

    max_in_flight: int = 256
    max_bytes_in_flight: int = 256 * 1024**2
    retry_deadline_seconds: float = 120.0


class CopyScheduler:
    """Hands out objects in order to threads, which are numbered from 0.

    **Threads**: any. Each reason to wait has its own condition, so that no thread wakes up without need.
    **Invariants**: the number of objects in progress is within the current limit, which never exceeds ``max_in_flight``.
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
        """Number of threads that have work now; 0 after the end."""
        return 0 if self._is_over else self._limit.limit

    def take(self, number: int) -> Entry | None:
        """Wait until the thread of this number may start an object.

        Returns:
            The next object; None after the last one or after ``stop``.
        """
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
        """Release the memory of an object that was copied or has failed."""
        with self._lock:
            self._num_out -= 1
            self._bytes_out -= _in_memory(entry)
            self._lighter.notify_all()

    def record_success(self, size_bytes: int, seconds: float) -> None:
        """Record the duration of a copied object, which may raise the limit."""
        if size_bytes > _TELLING_BYTES:
            return
        with self._lock:
            before = self._limit.limit
            self._limit.on_success(seconds, num_in_flight=self._num_out, now=self._clock())
            if self._limit.limit > before:
                self._grown.notify_all()

    def record_throttle(self) -> None:
        """Record that the origin requested fewer requests, which lowers the limit."""
        with self._lock:
            self._limit.on_throttle(self._clock())

    def stop(self) -> None:
        """Hand out no further object, and wake all waiting threads."""
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
    """Computes how long to wait after receiving bytes.

    **Threads**: any.

    Args:
        bytes_per_second: Maximum rate.
        clock: Current time in seconds.
    """

    def __init__(self, bytes_per_second: float, *, clock: Clock = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._paid_until = clock()
        self._lock = threading.Lock()

    def charge(self, num_bytes: int) -> float:
        """Add bytes to the account. Return the seconds until the rate allows all bytes so far."""
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + num_bytes / self._rate
            return self._paid_until - now


class PacedSource:
    """A source whose reads are delayed by a bandwidth limit. See ``Source``."""

    def __init__(self, source: RangeSource, limit: BandwidthLimit, *, wait: Callable[[float], object]) -> None:
        """Read from ``source``. ``wait`` blocks for a number of seconds."""
        self.url: str = source.url
        self.mark: str = source.mark
        self._source, self._limit, self._wait = source, limit, wait

    def locate(self, path: str) -> str:
        """See ``Source.locate``."""
        return self._source.locate(path)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """See ``Source.list_objects``. Listings are not delayed."""
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
