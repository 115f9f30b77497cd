"""Copies objects from a source into a sink, many at once.

Threads take entries from ``flow.CopyScheduler``, which adapts their number to the latency of the origin, and pass each object in chunks to the
sink. Temporary errors are retried. When the sink is full, no further object is started. Start with ``copy_objects``.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol, cast

from prefeed.core.requests import RetryPolicy
from prefeed.errors import (
    BadTargetNameError,
    SourceError,
    TargetFullError,
    ThrottledError,
    TransientSourceError,
    TruncatedBodyError,
)
from prefeed.sources.answers import require_listed
from prefeed.sources.file_versions import changed_ns_of
from prefeed.sources.listing import Listed
from prefeed.sources.manifest import version_hash
from prefeed.sources.protocol import RangeSource, Source
from prefeed.transfer.entries import Entry
from prefeed.transfer.flow import PIECE_BYTES, CopyLimits, CopyScheduler
from prefeed.types import Buffer

_STACK_BYTES: Final = 512 * 1024
_PROGRESS_SECONDS: Final = 0.1
_ABANDON_SECONDS: Final = 1.0
_MAX_TRIES_CHANGING: Final = 4
"""Maximum tries for an object that changes or is truncated during each read."""

_MAX_SILENT: Final = 64
"""Consecutive objects without a response of the origin, after which the copy ends."""


class Body(Protocol):
    """One object that is being copied: its version, size in bytes, and bytes."""

    version: str
    size_bytes: int

    def chunks(self) -> Iterator[Buffer]:
        """Yield the bytes in order, from the beginning at each call. A chunk is valid until the next one is requested.

        Raises:
            TruncatedBodyError: The object changed. Discard the previous chunks.
        """
        ...


class Sink(Protocol):
    """Destination of a copy. **Threads**: ``write`` is called from many at once, for different paths."""

    def write(self, entry: Entry, body: Body) -> None:
        """Store the whole object under its path, or nothing.

        Raises:
            TargetFullError: The destination is full. No further object is started.
            BadTargetNameError: No object of this name can be stored; the copy goes on with others.
            CopyError: Writing fails for all objects.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyProgress:
    """Objects and bytes copied so far, objects that failed, and the time since the start in seconds."""

    num_copied: int = 0
    bytes_copied: int = 0
    num_failed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFailure:
    """An object that could not be copied: its path, a stable error code, and the message."""

    path: str
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySummary:
    """Result of a copy.

    Attributes:
        num_copied: Copied objects.
        bytes_copied: Their size in bytes.
        failures: Objects that were not copied, with reasons.
        full: Error message of a full destination; None if all objects were tried.
        seconds: Duration.
    """

    num_copied: int
    bytes_copied: int
    failures: tuple[CopyFailure, ...]
    full: str | None
    seconds: float


def copy_objects(
    source: Source,
    entries: Iterable[Entry],
    sink: Sink,
    *,
    limits: CopyLimits | None = None,
    progress: Callable[[CopyProgress], None] | None = None,
) -> CopySummary:
    """Copy objects in approximately the given order. Report those that fail and continue with the rest.

    **Blocking**: until all objects are tried or the sink is full. **Threads**: starts and ends its own. They consume ``entries`` under a
    lock. ``progress`` is called in the caller's thread, ten times a second. If that thread is interrupted, for example by Ctrl-C, no further
    object is started, and objects in progress may be abandoned.

    Args:
        source: Origin of the objects.
        entries: Objects to copy; each path once.
        sink: Destination.
        limits: Limits on concurrency, memory and retries.
        progress: Function that receives the progress.

    Raises:
        SourceError: The origin no longer responds.
        CopyError: The sink is not writable.
    """
    run = _CopyRun(source, entries, sink, limits or CopyLimits())
    run.wait(progress or (lambda _: None))
    return run.summary()


class _CopyRun:
    """Threads and counts of one copy. ``_changed`` guards the counts."""

    def __init__(self, source: Source, entries: Iterable[Entry], sink: Sink, limits: CopyLimits) -> None:
        self._source, self._sink = source, sink
        self._scheduler = CopyScheduler(entries, limits)
        self._policy = RetryPolicy(deadline_seconds=limits.retry_deadline_seconds)
        self._random = random.Random()  # not the global generator, whose seed belongs to the user
        self._started = time.monotonic()
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._num_working = 0
        self._num_copied = 0
        self._bytes_copied = 0
        self._num_silent = 0
        self._failures: list[CopyFailure] = []
        self._full: str | None = None
        self._fatal: BaseException | None = None

    def wait(self, progress: Callable[[CopyProgress], None]) -> None:
        """Wait until all threads have ended. Raise the error that stopped them."""
        try:
            self._start_threads()
            while not self._wait_until_idle(_PROGRESS_SECONDS):
                progress(self.progress())
        except BaseException:
            self._stop()
            deadline = time.monotonic() + _ABANDON_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            raise
        for thread in self._threads:
            thread.join()
        if self._fatal is not None:
            fatal, self._fatal = self._fatal, None
            try:
                raise fatal
            finally:
                del fatal  # its traceback refers to this frame
        progress(self.progress())

    def progress(self) -> CopyProgress:
        with self._changed:
            return CopyProgress(
                num_copied=self._num_copied,
                bytes_copied=self._bytes_copied,
                num_failed=len(self._failures),
                seconds=time.monotonic() - self._started,
            )

    def summary(self) -> CopySummary:
        return CopySummary(
            num_copied=self._num_copied,
            bytes_copied=self._bytes_copied,
            failures=tuple(self._failures),
            full=self._full,
            seconds=time.monotonic() - self._started,
        )

    def _wait_until_idle(self, within_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._num_working == 0, within_seconds)

    def _start_threads(self) -> None:
        """Start threads up to the number that the scheduler has work for."""
        with self._changed:
            previous = threading.stack_size(_STACK_BYTES)
            try:
                while len(self._threads) < self._scheduler.num_threads:
                    number = len(self._threads)
                    # Daemon threads do not delay Ctrl-C while they wait for the origin.
                    thread = threading.Thread(
                        target=self._work, args=(number,), name=f"prefeed-copy-{number}", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)
                    self._num_working += 1
            finally:
                threading.stack_size(previous)

    def _work(self, number: int) -> None:
        try:
            while (entry := self._scheduler.take(number)) is not None:
                try:
                    self._copy(entry)
                finally:
                    self._scheduler.release(entry)
        except BaseException as err:  # noqa: BLE001 - raised again in the caller's thread
            self._stop(err)
        finally:
            with self._changed:
                self._num_working -= 1
                self._changed.notify_all()

    def _copy(self, entry: Entry) -> None:
        """Copy one object with retries, and count the outcome."""
        try:
            size_bytes, seconds = self._copy_with_retries(entry)
        except TargetFullError as err:
            self._full = self._full or str(err)
            self._stop()
        except BadTargetNameError as err:
            with self._changed:
                self._failures.append(CopyFailure(path=entry.path, code=err.code, message=str(err)))
        except SourceError as err:
            self._record_failure(entry, err)
        else:
            self._scheduler.record_success(size_bytes, seconds)
            with self._changed:
                self._num_copied += 1
                self._bytes_copied += size_bytes
                self._num_silent = 0
            if len(self._threads) < self._scheduler.num_threads:
                self._start_threads()

    def _copy_with_retries(self, entry: Entry) -> tuple[int, float]:
        """Copy an object, retrying after temporary errors. Return its size in bytes and the duration of the last try in seconds."""
        started, attempts = time.monotonic(), 0
        while True:
            attempts += 1
            begun = time.monotonic()
            try:
                body = open_body(self._source, entry)
                self._sink.write(entry, body)
                return body.size_bytes, time.monotonic() - begun
            except SourceError as err:
                if isinstance(err, ThrottledError):
                    self._scheduler.record_throttle()
                if not self._wait_to_retry(err, attempts=attempts, started=started):
                    raise

    def _wait_to_retry(self, err: SourceError, *, attempts: int, started: float) -> bool:
        """Wait before the next try. Return False if there should be none."""
        delay = self._policy.next_delay(
            attempts=attempts, elapsed_seconds=time.monotonic() - started, jitter=self._random.random()
        )
        keeps_changing = isinstance(err, TruncatedBodyError) and attempts >= _MAX_TRIES_CHANGING
        return err.retryable and delay is not None and not keeps_changing and not self._stopped.wait(delay)

    def _record_failure(self, entry: Entry, err: SourceError) -> None:
        is_silent = isinstance(err, TransientSourceError) and not isinstance(err, TruncatedBodyError)
        with self._changed:
            if self._stopped.is_set() and err.retryable:
                return  # stopped before its retries ended
            self._failures.append(CopyFailure(path=entry.path, code=err.code, message=str(err)))
            self._num_silent = self._num_silent + 1 if is_silent else 0
            is_gone = self._num_silent >= _MAX_SILENT
        if is_gone:
            self._stop(err)

    def _stop(self, err: BaseException | None = None) -> None:
        """Start no further object. ``wait`` raises the error."""
        with self._changed:
            self._fatal = self._fatal or err
        self._stopped.set()
        self._scheduler.stop()


# ---------------------------------------------------------------- bodies


class WholeBody:
    """An object that was read into memory."""

    def __init__(self, data: Buffer, version: str) -> None:
        self._data = data
        self.version = version
        self.size_bytes: int = memoryview(data).nbytes

    def chunks(self) -> Iterator[Buffer]:
        """Yield the whole object as one chunk."""
        yield self._data


class PiecewiseBody:
    """An object that is read in pieces, all of the same version."""

    def __init__(self, source: RangeSource, entry: Entry, version: str) -> None:
        self._source = source
        self._path = entry.path
        self.version = version
        self.size_bytes: int = entry.size_bytes

    def chunks(self) -> Iterator[Buffer]:
        """Yield the pieces in order; see ``Body.chunks``."""
        for start in range(0, self.size_bytes, PIECE_BYTES):
            yield self._fetch_piece(start, min(PIECE_BYTES, self.size_bytes - start))
        self._fetch_piece(0, 1)  # detects a change of the file during the last piece

    def _fetch_piece(self, start: int, size_bytes: int) -> Buffer:
        piece = self._source.fetch_range(self._path, start, size_bytes)
        if piece.version != self.version:
            raise TruncatedBodyError(
                f"{self._source.locate(self._path)} changed while it was copied; do not write to training data meanwhile",
                path=self._path,
            )
        return piece.data


def open_body(source: Source, entry: Entry) -> Body:
    """Open the current object at the origin.

    Raises:
        WrongAnswerError: The object has the listed version but another size.
        SourceError: The origin's error.
    """
    if entry.size_bytes > PIECE_BYTES and entry.version and hasattr(source, "fetch_range"):
        ranged = cast(RangeSource, source)
        version = _listed_version(ranged, entry)
        if version:
            return PiecewiseBody(ranged, entry, version)
    return _fetch_whole(source, entry)


def _listed_version(source: RangeSource, entry: Entry) -> str:
    """Return the version of an object that is unchanged since its listing; empty if it changed or has no range reads."""
    try:
        version = source.fetch_range(entry.path, 0, 1).version
    except SourceError as err:
        if err.retryable:
            raise
        return ""
    changed_ns = changed_ns_of(version)
    is_listed = version == entry.version if changed_ns is None else changed_ns == entry.mtime_ns
    return version if is_listed else ""


def _fetch_whole(source: Source, entry: Entry) -> WholeBody:
    fetched = source.fetch(entry.path)
    # Take a file's time from the read. Keep a store's version from the listing, because reads may format it differently.
    is_of_file = changed_ns_of(fetched.version) is not None
    version = fetched.version if is_of_file else entry.version or fetched.version
    require_listed(
        fetched, Listed(entry.size_bytes, version_hash(entry.version)), lambda: source.locate(entry.path)
    )  # fmt: skip
    return WholeBody(fetched.data, version)
