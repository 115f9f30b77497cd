"""Large files that are read in parts where the node's cache has them; what that costs is measured, beside the origin."""

from __future__ import annotations

import os
import time
from typing import Final

from prefeed.client.part_costs import LEAST_OPENS, LEAST_PROBES, PartCosts
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.mounts import is_local
from prefeed.store.log import StoredValue


class Lent:
    """A file opened by path whose bytes the tier has: an ``interception.asking.CachedFileView``.

    Args:
        value: Its bytes.
        path: Absolute, as it has its key.

    Attributes:
        path: As given.
        is_hit: The tier had it when it was asked for.
        num_read: Bytes that were read so far.
        last_start: Where the part begins that was read last.
        last_size: Its size in bytes, as it was asked for.
        opening_seconds: Until it was lent.
        waited_seconds: Of these, for the server.
    """

    __slots__ = ("_value", "is_hit", "last_size", "last_start", "num_read", "opening_seconds", "path", "waited_seconds")

    def __init__(self, value: StoredValue, path: str) -> None:
        self._value = value
        self.path: str = path
        self.is_hit: bool = False
        self.num_read: int = 0
        self.last_start: int = 0
        self.last_size: int = 0
        self.opening_seconds: float = 0.0
        self.waited_seconds: float = 0.0

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: the tier holds it no more."""
        part = self._value.read(start, size)
        if part:
            self.num_read += len(part)
            self.last_start, self.last_size = start, size
        return part

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: the tier holds it no more."""
        num = self._value.read_into(start, target)
        if num:
            self.num_read += num
            self.last_start, self.last_size = start, len(target)
        return num

    def is_found_again(self) -> bool:
        """Look the part up that was read last, as if the file was opened for it, and copy it; return whether it was there."""
        opened = self._value.read(0, 1)
        return opened is not None and self._value.read(self.last_start, self.last_size) is not None

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self._value)

    def close(self) -> None:
        """Do nothing: the bytes stay lent until the sample is made."""

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        return entry_key("/", self.path, version_of(os.fstat(descriptor), descriptor)) == self._value.key


_EVERY: Final = 32
"""Of this number of files that are opened one is measured, after the first ``LEAST_OPENS``."""

_PROBE_SHARE: Final = 0.01
"""Of the time; an open of slow storage is measured so much less often."""

_SUSPICIOUS_SECONDS: Final = 1.0
"""An open of storage on the network is what a cache spares: it is measured when the cache was waited for so long."""

_CLEARLY: Final = 10
"""The origin is measured no more when it takes this many times as long as the cache."""


class CostMeter:
    """Counts the costs of one process, and measures some of them.

    **Threads**: that of the samples. **Blocking.** Now and then for one open and one read of the origin, for a hundredth of the time.
    """

    def __init__(self) -> None:
        self._costs = PartCosts()
        self._began = time.perf_counter()
        self._probing_seconds = 0.0
        self._until_probe = LEAST_OPENS
        self._waited_seconds = 0.0
        self._is_local: dict[str, bool] = {}  # the directory that was asked about last
        self._num_probes = 0
        self._is_clear = False

    def gave_copy(self) -> None:
        """A small file was answered."""
        self._costs.others += 1

    def was_read(self, lent: Lent) -> None:
        """The sample that opened a large file is made."""
        costs = self._costs
        costs.opens += 1
        costs.opened_bytes += len(lent)
        costs.read_bytes += lent.num_read
        costs.opening_seconds += lent.opening_seconds
        costs.waited_seconds += lent.waited_seconds
        self._waited_seconds += lent.waited_seconds
        self._until_probe -= 1
        if self._until_probe < 0 and lent.num_read:
            self._until_probe = _EVERY - 1
            if self._waited_seconds >= _SUSPICIOUS_SECONDS or self._is_on_this_machine(lent.path):
                self._probe(lent)

    def noted(self, seconds: float) -> None:
        """So long it took to note what a sample opened."""
        self._costs.opening_seconds += seconds

    def take(self) -> PartCosts:
        """Return what was counted since the last time."""
        costs, self._costs = self._costs, PartCosts()
        return costs

    def _is_on_this_machine(self, path: str) -> bool:
        directory = os.path.dirname(path)
        if directory not in self._is_local:
            self._is_local = {directory: is_local(directory)}
        return self._is_local[directory]

    def _probe(self, lent: Lent) -> None:
        began = time.perf_counter()
        if self._is_clear or self._probing_seconds > _PROBE_SHARE * (began - self._began):
            return
        is_there = lent.is_found_again()
        between = time.perf_counter()
        try:
            descriptor = os.open(lent.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                os.pread(descriptor, lent.last_size, lent.last_start)
            finally:
                os.close(descriptor)
        except OSError:
            is_there = False
        ended = time.perf_counter()
        self._probing_seconds += ended - began
        if is_there:
            self._num_probes += 1
            self._costs.probes += 1
            self._costs.reading_seconds += between - began
            self._costs.origin_seconds += ended - between
            self._is_clear = self._num_probes >= LEAST_PROBES and ended - between > _CLEARLY * (between - began)
