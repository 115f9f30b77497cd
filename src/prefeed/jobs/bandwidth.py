"""A limit of bytes a second, shared by threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from prefeed.sources.protocol import RangeSource
from prefeed.system.clock import Clock
from prefeed.types import FetchedObject, ObjectInfo

MBIT_BYTES = 1_000_000 // 8


class Bandwidth:
    """Says how long to wait after so many bytes have come.

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

    def pay(self, num_bytes: int) -> float:
        """Return the seconds after which these bytes are paid for, those before them too."""
        with self._lock:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + num_bytes / self._rate
            return self._paid_until - now


class PacedSource:
    """A source that gives no more bytes a second than allowed; see ``Source``."""

    def __init__(self, source: RangeSource, limit: Bandwidth, *, wait: Callable[[float], object]) -> None:
        """Read ``source``; ``wait`` blocks for so many seconds."""
        self.url = source.url
        self.mark = source.mark
        self._source, self._limit, self._wait = source, limit, wait

    def locate(self, path: str) -> str:
        """See ``Source.locate``."""
        return self._source.locate(path)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """See ``Source.list_objects``; a listing is not paid for."""
        return self._source.list_objects()

    def fetch(self, path: str) -> FetchedObject:
        """See ``Source.fetch``."""
        return self._paid(self._source.fetch(path))

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """See ``RangeSource.fetch_range``."""
        return self._paid(self._source.fetch_range(path, offset, size_bytes))

    def close(self) -> None:
        """See ``Source.close``."""
        self._source.close()

    def _paid(self, fetched: FetchedObject) -> FetchedObject:
        seconds = self._limit.pay(memoryview(fetched.data).nbytes)
        if seconds > 0:
            self._wait(seconds)
        return fetched
