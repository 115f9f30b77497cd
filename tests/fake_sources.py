"""Sources for tests: in memory, counting, slow, faulty. Each passes the contract suite of real ones."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from prefeed.errors import ObjectNotFoundError, SourceError, TransientSourceError, TruncatedBodyError
from prefeed.sources.protocol import Source
from prefeed.types import FetchedObject, ObjectInfo

_BATCH = 1000


class MemorySource:
    """An origin in a dict. Each ``put`` gives the object a new version, also with equal bytes."""

    def __init__(self, objects: Mapping[str, bytes] | None = None, *, url: str = "memory://test") -> None:
        """Hold ``objects`` by path."""
        self.url = url
        self.mark = ""
        self._lock = threading.Lock()
        self._puts = 0
        self._objects: dict[str, tuple[bytes, str]] = {}
        for path, data in (objects or {}).items():
            self.put(path, data)

    def put(self, path: str, data: bytes) -> None:
        """Add or replace an object."""
        with self._lock:
            self._puts += 1
            self._objects[path] = (data, f"v{self._puts}")

    def remove(self, path: str) -> None:
        """Remove an object."""
        with self._lock:
            del self._objects[path]

    def locate(self, path: str) -> str:
        """Return the full URL of an object."""
        return f"{self.url}/{path}"

    def fetch(self, path: str) -> FetchedObject:
        """Return an object; see ``Source.fetch``."""
        with self._lock:
            found = self._objects.get(path)
        if found is None:
            raise ObjectNotFoundError(f"{self.locate(path)} does not exist", path=path)
        return FetchedObject(data=found[0], version=found[1])

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object; see ``Source.list_objects``."""
        with self._lock:
            infos = [
                ObjectInfo(path=path, size_bytes=len(data), version=version)
                for path, (data, version) in self._objects.items()
            ]
        for start in range(0, len(infos), _BATCH):
            yield infos[start : start + _BATCH]

    def close(self) -> None:
        """Do nothing."""


class _Passing:
    """Hands every call on to another source; the sources below change one thing each."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.url: str = source.url
        self.mark: str = source.mark

    def locate(self, path: str) -> str:
        """Return the full URL of an object."""
        return self.source.locate(path)

    def fetch(self, path: str) -> FetchedObject:
        """Return an object; see ``Source.fetch``."""
        return self.source.fetch(path)

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object; see ``Source.list_objects``."""
        return self.source.list_objects()

    def close(self) -> None:
        """Close the source behind."""
        self.source.close()


class CountingSource(_Passing):
    """Counts what is asked of a source.

    Attributes:
        listings: Listings begun.
        fetches: Fetches begun, failed ones included.
        fetched_bytes: Bytes of those that succeeded.
        in_flight: Fetches under way.
        max_in_flight: Most fetches under way at one time.
        fetches_by_path: Fetches begun, by path.
    """

    def __init__(self, source: Source) -> None:
        """Count the calls to ``source``."""
        super().__init__(source)
        self._changed = threading.Condition()
        self.listings: int = 0
        self.fetches: int = 0
        self.fetched_bytes: int = 0
        self.in_flight: int = 0
        self.max_in_flight: int = 0
        self.fetches_by_path: dict[str, int] = {}

    def fetch(self, path: str) -> FetchedObject:
        """Return an object, counted."""
        with self._changed:
            self.fetches += 1
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            self.fetches_by_path[path] = self.fetches_by_path.get(path, 0) + 1
            self._changed.notify_all()
        size = 0
        try:
            fetched = self.source.fetch(path)
            size = len(fetched.data)
            return fetched
        finally:
            with self._changed:
                self.in_flight -= 1
                self.fetched_bytes += size
                self._changed.notify_all()

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object, counted."""
        with self._changed:
            self.listings += 1
        return self.source.list_objects()

    def wait_until(self, condition: Callable[[CountingSource], bool], *, timeout_seconds: float = 60.0) -> None:
        """Block until ``condition(self)`` holds; looked at whenever a count changes.

        Raises:
            TimeoutError: It did not become true in time; the message holds the counts.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), timeout_seconds):
                raise TimeoutError(f"{self.fetches} fetches, {self.in_flight} in flight, {self.fetched_bytes} bytes")


class SlowSource(_Passing):
    """Answers each fetch after ``latency_seconds``; ``release`` lets all waiting and later ones through at once."""

    def __init__(self, source: Source, latency_seconds: float) -> None:
        """Delay the fetches of ``source``."""
        super().__init__(source)
        self.latency_seconds = latency_seconds
        self._released = threading.Event()

    def fetch(self, path: str) -> FetchedObject:
        """Return an object, late."""
        self._released.wait(self.latency_seconds)
        return self.source.fetch(path)

    def release(self) -> None:
        """End all waiting."""
        self._released.set()

    def close(self) -> None:
        """End all waiting and close the source behind."""
        self.release()
        super().close()


FaultKind = Literal["error", "truncated", "short", "stall", "wrong-bytes"]


@dataclass(slots=True)
class Fault:
    """What happens to fetches of one path.

    Attributes:
        kind: ``error`` raises ``error``; ``truncated`` raises TruncatedBodyError, as a source does that noticed;
            ``short`` returns too few bytes, as one that did not; ``stall`` waits for ``FaultySource.release``;
            ``wrong-bytes`` returns as many bytes, not the same.
        times: How many fetches it happens to; None = all.
        error: What ``error`` raises; a TransientSourceError if None.
    """

    kind: FaultKind
    times: int | None = None
    error: SourceError | None = field(default=None)


class FaultySource(_Passing):
    """Fails as it was told to, by path, or at random from a seed.

    Attributes:
        faults: What happens to which path; may be changed at any time.
        stalled: Paths whose fetches wait now, one entry a fetch.
    """

    def __init__(
        self,
        source: Source,
        faults: Mapping[str, Fault] | None = None,
        *,
        seed: int = 0,
        fault_ratio: float = 0.0,
        random_kinds: tuple[FaultKind, ...] = ("error", "truncated"),
    ) -> None:
        """Break fetches of ``source``: those in ``faults``, and this share of all others."""
        super().__init__(source)
        self.faults: dict[str, Fault] = dict(faults or {})
        self.stalled: list[str] = []
        self._random = random.Random(seed)
        self._fault_ratio = fault_ratio
        self._random_kinds = random_kinds
        self._changed = threading.Condition()
        self._releases = 0

    def fetch(self, path: str) -> FetchedObject:
        """Return an object, unless a fault is due."""
        fault = self._take_fault(path)
        if fault is None:
            return self.source.fetch(path)
        if fault.kind == "error":
            try:
                raise fault.error or TransientSourceError(f"{self.locate(path)}: made to fail", path=path)
            finally:
                del fault  # the error's traceback refers to this frame
        if fault.kind == "truncated":
            raise TruncatedBodyError(f"{self.locate(path)}: made to break off", path=path)
        if fault.kind == "stall":
            self._stall(path)
            return self.source.fetch(path)
        fetched = self.source.fetch(path)
        data = bytes(fetched.data)
        changed = data[: len(data) // 2] if fault.kind == "short" else bytes(byte ^ 0xFF for byte in data)
        return FetchedObject(data=changed, version=fetched.version)

    def wait_for_stalled(self, count: int, *, timeout_seconds: float = 60.0) -> None:
        """Block until ``count`` fetches wait.

        Raises:
            TimeoutError: Fewer do.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.stalled) >= count, timeout_seconds):
                raise TimeoutError(f"{len(self.stalled)} of {count} fetches are stalled")

    def release(self) -> None:
        """Release all fetches that wait now."""
        with self._changed:
            self._releases += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Release all fetches and close the source behind."""
        self.release()
        super().close()

    def _take_fault(self, path: str) -> Fault | None:
        with self._changed:
            fault = self.faults.get(path)
            if fault is None:
                due = self._fault_ratio > 0 and self._random.random() < self._fault_ratio
                return Fault(self._random.choice(self._random_kinds)) if due else None
            if fault.times is not None:
                fault.times -= 1
                if fault.times <= 0:
                    del self.faults[path]
            return fault

    def _stall(self, path: str) -> None:
        with self._changed:
            releases = self._releases
            self.stalled.append(path)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._releases != releases)
            self.stalled.remove(path)
