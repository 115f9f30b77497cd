"""Files opened by path that are too large to be cached whole: parts of them come from the node's cache, in blocks.

path ─→ open, probe ─reads wait for nothing─→ None: the caller reads the file
             │ slow
             ↓
           blocks ─hit, or a whole block is wanted─→ tier, node server
             │ a few bytes that are not cached
             ↓
           the open file
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from typing import Final
from weakref import finalize

from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import BlockObject, Blocks, blocks_of
from prefeed.config import Config
from prefeed.core.in_place import QUICK_NS
from prefeed.errors import ObjectChangedError, PrefeedError
from prefeed.run_summary import counters
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.steadiness import is_old
from prefeed.sources.urls import split_object
from prefeed.system.clock import Clock
from prefeed.types import ObjectInfo

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PROBED_BYTES: Final = 4096
_SLOW_SECONDS: Final = 5.0
"""A file system that was slow is measured again after so long; meanwhile its files are read in blocks."""

_UP_TO_A_COPY_BYTES: Final = 64 * 1024


def is_in_memory(descriptor: int, offset: int) -> bool:
    """Return whether the kernel has a byte of a file in memory; False where it cannot be asked, as on FUSE."""
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def waited_ns(descriptor: int, offset: int) -> int:
    """Read a page of a file; return how long that waited, without what the processor did, in nanoseconds."""
    began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
    os.pread(descriptor, _PROBED_BYTES, offset)
    return (time.perf_counter_ns() - began) - (time.thread_time_ns() - began_cpu)


class Storages:
    """Whether reads of a file wait for its storage: found out by reading it in three places.

    **Threads and processes.** Any thread. **Blocking.** For three small reads; not at all for a file that is in memory, and on a
    file system that was slow less than five seconds ago.
    """

    def __init__(
        self,
        clock: Clock = time.monotonic,
        *,
        is_in_memory: Callable[[int, int], bool] = is_in_memory,
        waited_ns: Callable[[int, int], int] = waited_ns,
    ) -> None:
        self._clock = clock
        self._is_in_memory = is_in_memory
        self._waited_ns = waited_ns
        self._slow_until: dict[int, float] = {}

    def are_slow(self, descriptor: int, status: os.stat_result) -> bool:
        """Return whether most reads of an open file wait longer than a question to the server takes."""
        places = 0, status.st_size // 2, max(0, status.st_size - _PROBED_BYTES)
        if all(self._is_in_memory(descriptor, place) for place in places):
            return False
        now = self._clock()
        if now < self._slow_until.get(status.st_dev, now):
            return True
        num_slow = sum(self._waited_ns(descriptor, place) > QUICK_NS for place in places)
        if 2 * num_slow <= len(places):
            return False
        self._slow_until[status.st_dev] = now + _SLOW_SECONDS
        return True


class LentBlocks:
    """A large file whose parts are read through the node's cache: an ``interception.asking.CachedFileView``.

    All bytes are of the version that it had when it was opened.

    **Ownership.** Holds a descriptor of the file, until ``close`` or the last reference goes; a later read opens it again.
    **Threads and processes.** Any thread, and a forked child.
    """

    def __init__(self, opened: BlockObject, blocks: Blocks, path: str, descriptor: int) -> None:
        """Lend ``opened``, which is the file at ``path``; the descriptor is open on it, and is this object's from now on."""
        self._opened = opened
        self._blocks = blocks
        self._path = path
        self._files: dict[int, BlockFile] = {}  # one at most, 0
        self._hold(descriptor)

    @property
    def key(self) -> bytes:
        """Entry key of the whole file, in the version that is lent."""
        return entry_key("/", self._path, self._opened.info.version)

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._opened.info.size_bytes

    def read(self, start: int, size: int) -> bytes | None:
        """Return a part, shorter at the end; None: only the file itself has it, in this version or another."""
        try:
            return self._in_blocks().read_range(start, size)
        except (PrefeedError, OSError):
            return None

    def read_into(self, start: int, target: memoryview) -> int | None:
        """Copy a part; return how many bytes, fewer at the end; None: see ``read``."""
        with memoryview(target).cast("B") as wanted:
            if len(wanted) < _UP_TO_A_COPY_BYTES:
                data = self.read(start, len(wanted))
                if data is None:
                    return None
                wanted[: len(data)] = data
                return len(data)
            try:
                return self._in_blocks().read_range_into(start, wanted)
            except (PrefeedError, OSError):
                return None

    def are_of(self, descriptor: int) -> bool:
        """Return True when an open file has the very bytes."""
        return version_of(os.fstat(descriptor), descriptor) == self._opened.info.version

    def close(self) -> None:
        """Let go of the file; nothing is read ahead any more. Idempotent."""
        file = self._files.pop(0, None)
        if file is not None:
            file.close()
        self._release()

    def _hold(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._release = finalize(self, os.close, descriptor)

    def _in_blocks(self) -> BlockFile:
        file = self._files.get(0)
        if file is None:  # of two threads that read first, one makes it: what is read ahead follows from all reads
            file = self._files.setdefault(0, BlockFile(self._opened, self._blocks, read_part=self._read_part))
        return file

    def _read_part(self, offset: int, size: int) -> bytes:
        """Return bytes of the file itself, as the program would read them without prefeed.

        Raises:
            ObjectChangedError: It is of another version by now.
            OSError: It cannot be read.
        """
        if not self._release.alive:
            self._hold(os.open(self._path, _FLAGS))
        data = os.pread(self._descriptor, size, offset)
        while len(data) < size and (more := os.pread(self._descriptor, size - len(data), offset + len(data))):
            data += more
        if len(data) < size or not self.are_of(self._descriptor):
            raise ObjectChangedError(f"{self._path} changed while it was open: open it again", path=self._path)
        counters.add(counters.DIRECT)
        counters.add(counters.ORIGIN_BYTES, len(data))
        return data


class LargeFiles:
    """Lends files that are too large to be cached whole.

    **Threads and processes.** Any thread; goes with a fork.
    """

    def __init__(self, config: Config, storages: Storages | None = None) -> None:
        """Lend them through the node server of these settings."""
        self._config = config
        self._storages = storages or Storages()

    def lend(self, path: str) -> LentBlocks | None:
        """Lend a file; None when the caller should open it: it waits for nothing, was written just now, or there is no server.

        Never raises on account of the file. **Blocking.** As its opening, and a few small reads of it.

        Args:
            path: Absolute, without ``.``, ``..`` or doubled slashes.
        """
        if not self._config.enabled:
            return None
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size <= self._config.limits.max_object_bytes:
                return None  # who opens a pipe wakes its writer
            descriptor = os.open(path, _FLAGS)
        except (OSError, ValueError):
            return None
        try:
            lent = self._lent(path, descriptor)
        except (PrefeedError, OSError):
            lent = None
        if lent is None:
            os.close(descriptor)
        return lent

    def _lent(self, path: str, descriptor: int) -> LentBlocks | None:
        status = os.fstat(descriptor)
        if not is_old(status, time.time_ns()) or not self._storages.are_slow(descriptor, status):
            return None
        blocks = blocks_of(self._config)
        root, name = split_object(path)
        opened = blocks.opened(
            root, ObjectInfo(path=name, size_bytes=status.st_size, version=version_of(status, descriptor))
        )
        return LentBlocks(opened, blocks, path, descriptor) if blocks.tier(opened) is not None else None
