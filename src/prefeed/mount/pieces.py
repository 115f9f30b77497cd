"""Reads parts of large objects from the origin, with read-ahead for sequential readers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Final

from prefeed.types import Buffer

PIECE_BYTES: Final = 1024 * 1024
_MAX_AHEAD_BYTES: Final = 16 * 1024 * 1024
_KEPT_BYTES: Final = 128 * 1024 * 1024
_SLACK_BYTES: Final = 1024 * 1024
"""Tolerance of sequential order, because the kernel also reads ahead and several threads answer."""

_MIN_IN_ORDER: Final = 3
_MAX_DETECTORS: Final = 256
_THREADS: Final = 16


class SequentialDetector:
    """Detects sequential reads of an object and computes the read-ahead. Pure.

    The read-ahead is at most twice as long as the sequential reads so far, so that random reads cost nothing extra.
    """

    def __init__(self) -> None:
        self._end = 0
        self._num_in_order = 0
        self._sequential_bytes = 0

    def record_read(self, offset: int, size_bytes: int) -> range:
        """Record a read. Return the range to read ahead, empty if the reads are not sequential."""
        if self._end - _SLACK_BYTES <= offset <= self._end + size_bytes:
            self._num_in_order += 1
            self._sequential_bytes += size_bytes
            self._end = max(self._end, offset + size_bytes)
        else:
            self._num_in_order, self._sequential_bytes, self._end = 1, size_bytes, offset + size_bytes
        if self._num_in_order < _MIN_IN_ORDER:
            return range(0)
        return range(self._end, self._end + min(2 * self._sequential_bytes, _MAX_AHEAD_BYTES))


class PieceReader:
    """Reads parts of objects and reads ahead with threads.

    **Ownership.** The creator closes it. **Threads and processes.** Any thread. **Blocking.** ``read`` waits for the origin.
    """

    def __init__(self, fetch: Callable[[int, int, int], Buffer]) -> None:
        """Use ``fetch`` to read existing bytes. It receives object id, first byte and number of bytes, and may raise."""
        self._fetch = fetch
        self._lock = threading.Lock()
        self._detectors: OrderedDict[int, SequentialDetector] = OrderedDict()
        self._pieces: OrderedDict[tuple[int, int], Future[Buffer]] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-ahead")

    def read(self, object_id: int, offset: int, size_bytes: int, object_bytes: int) -> Buffer:
        """Read an existing part of an object. Raises the errors of ``fetch``."""
        pieces = range(offset // PIECE_BYTES, (offset + size_bytes - 1) // PIECE_BYTES + 1)
        with self._lock:
            ahead = self._find_detector(object_id).record_read(offset, size_bytes)
            held = [self._pieces.get((object_id, number)) for number in pieces]
            self._read_ahead(object_id, range(ahead.start, min(ahead.stop, object_bytes)), object_bytes)
        found = [future for future in held if future is not None]
        if len(found) < len(held):
            return self._fetch(object_id, offset, size_bytes)
        try:
            parts: list[Buffer] = [
                memoryview(future.result())[max(0, offset - at) : offset + size_bytes - at]
                for future, at in zip(found, (number * PIECE_BYTES for number in pieces), strict=True)
            ]
        except CancelledError:  # the piece was dropped, because others have read much in the meantime
            return self._fetch(object_id, offset, size_bytes)
        except Exception:
            with self._lock:
                for number in pieces:
                    self._pieces.pop((object_id, number), None)
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Cancel pending fetches and wait for running ones."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _find_detector(self, object_id: int) -> SequentialDetector:
        detector = self._detectors.pop(object_id, None) or SequentialDetector()
        self._detectors[object_id] = detector
        if len(self._detectors) > _MAX_DETECTORS:
            self._detectors.popitem(last=False)
        return detector

    def _read_ahead(self, object_id: int, ahead: range, object_bytes: int) -> None:
        if not ahead:
            return
        for number in range(ahead.start // PIECE_BYTES, (ahead.stop - 1) // PIECE_BYTES + 1):
            if (object_id, number) in self._pieces:
                self._pieces.move_to_end((object_id, number))
                continue
            at = number * PIECE_BYTES
            size = min(PIECE_BYTES, object_bytes - at)
            self._pieces[object_id, number] = self._threads.submit(self._fetch, object_id, at, size)
        while len(self._pieces) * PIECE_BYTES > _KEPT_BYTES:
            self._pieces.popitem(last=False)[1].cancel()
