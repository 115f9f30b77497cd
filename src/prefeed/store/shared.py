"""A store that any process of the user reads and writes: the entries of one stage cache, in memory or on disk.

::

    store/index  as ``index`` describes it; its header page has totals too: what of the segment is taken, entries, bytes of values, corrupt values
         segment as ``segment`` describes it; each value begins at a multiple of 64 bytes

A put takes the turn twice, which is a lock of the index: to take a place at the end of the segment, and to name it in the index.
The value is written between the two, so writers copy at the same time. Readers take no lock. In memory they get views of the
mapped segment. So no place is written twice and no page is punched while a process has the store open, which a shared lock
of the segment shows. ``try_trim`` gives back the space of replaced values when no process has it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from xxhash import xxh3_64

from prefeed.store.index import Index, IndexReader, Place
from prefeed.store.log import value_size
from prefeed.store.segment import PAGE_BYTES, TRAILER_BYTES, read_value, trailer, write_parts
from prefeed.store.shared_files import STORE_NAME, Totals, make_files, open_files, read_totals, set_aside, write_totals
from prefeed.system.files import free_bytes, punch
from prefeed.system.locks import FORGIVING_SECONDS, ProcessLock, flock_within
from prefeed.types import ENTRY_KEY_BYTES, Buffer

_log = logging.getLogger("prefeed")

_ALIGNMENT: Final = 64
_STEP_BYTES: Final = 64 * 1024**2
"""The segment grows by so much, most of it a hole: processes map it again after each growth."""

_TRIM_SECONDS: Final = 0.1
"""Wait of a writer for a server that gives space back."""

Put = tuple[bytes, Buffer | list[Buffer]]
"""A key, and its value or the parts of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTierStatistics:
    """State of a store.

    Attributes:
        entries: Values that are held.
        value_bytes: Sizes of these values.
        stored_bytes: Bytes in use of both files, with replaced values.
        limit_bytes: Most that both files may take.
        corrupt: Values found wrong on disk and removed.
    """

    entries: int
    value_bytes: int
    stored_bytes: int
    limit_bytes: int
    corrupt: int


class SharedTier:
    """A store that any process of the user may read and write.

    A store that is missing, removed, full or damaged holds nothing and takes nothing: no error is raised.

    **Ownership.** The server makes the directory, and drops the store by renaming and removing it; the first put makes the files.
    **Threads and processes.** Any thread of any process, in any namespace. Files are opened at the first use in each process,
    so the object may be made before a fork, or pickled.

    Attributes:
        is_out_of_space: The last value was not stored because the file system has no room for it.

    **Invariants.** The files take at most ``limit_bytes`` together, and their file system keeps ``min_free_bytes``.
    **Blocking.** Reading never waits. Putting waits for the turn, a second at most (a suspended process keeps it), then stores
    nothing, and for some seconds does not wait again.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, limit_bytes: int, on_disk: bool = False, min_free_bytes: int = 0
    ) -> None:
        self._directory = Path(directory).absolute()
        self._limit_bytes = limit_bytes
        self._on_disk = on_disk
        self._min_free_bytes = min_free_bytes
        self._forget()
        _tiers.add(self)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._files: _Files | None = None
        self._kept_until = 0.0
        self.is_out_of_space: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        made = partial(
            SharedTier, self._directory, limit_bytes=self._limit_bytes, on_disk=self._on_disk,
            min_free_bytes=self._min_free_bytes,
        )  # fmt: skip
        return made, ()

    @property
    def directory(self) -> Path:
        """Directory of the files."""
        return self._directory

    @property
    def limit_bytes(self) -> int:
        """The most that the files may take together, as far as this process knows."""
        return self._limit_bytes

    def grow(self, limit_bytes: int) -> None:
        """Let this process fill the store up to another limit; a smaller one changes nothing."""
        self._limit_bytes = max(self._limit_bytes, limit_bytes)

    # ------------------------------------------------------------ reading

    def batch(self) -> Batch:
        """Return a context manager that gives views of values."""
        return Batch(self)

    def get(self, key: bytes) -> bytes | None:
        """Return a copy of a value, None if it is not held."""
        with self.batch() as batch:
            view = batch.get_view(key)
            return None if view is None else bytes(view)

    def keys(self) -> list[bytes]:
        """Return the keys of all values, sorted."""
        files = self._opened()
        if files is None:
            return []
        keys = files.reader.keys()
        return sorted(keys[at : at + ENTRY_KEY_BYTES] for at in range(0, len(keys), ENTRY_KEY_BYTES))

    def statistics(self) -> SharedTierStatistics:
        """Return a snapshot, in the same time for many entries as for few."""
        files = self._opened()
        totals = Totals() if files is None else files.totals()
        return SharedTierStatistics(
            entries=totals.entries, value_bytes=totals.value_bytes, stored_bytes=0 if files is None else files.used_bytes(),
            limit_bytes=self._limit_bytes, corrupt=totals.corrupt,
        )  # fmt: skip

    # ------------------------------------------------------------ writing

    def put_many(self, items: Sequence[Put]) -> int:
        """Store values, replacing those that exist; return how many from the front were stored.

        Fewer than all when there is no room for more; 0 when the store was removed or cannot be written.

        Raises:
            ValueError: A key is not 16 bytes long, or all zeros.
        """
        for key, _ in items:
            if len(key) != ENTRY_KEY_BYTES or not any(key):
                raise ValueError(f"a key has {ENTRY_KEY_BYTES} bytes, not all zeros: {key!r}")
        try:
            files = self._opened(makes=True)
            if files is None or not items:
                return 0
            values = [value if isinstance(value, list) else [value] for _, value in items]
            places = self._take_places(files, [sum(map(value_size, parts)) for parts in values])
            for (key, _), parts, place in zip(items, values, places, strict=False):
                end = trailer(key, _digest(parts)) if self._on_disk else trailer(key)
                write_parts(files.segment, [*parts, end], place.offset)
            with files.turn() as index:
                if not files.are_in_place():  # the store was removed or emptied
                    return 0
                for (key, _), place in zip(items, places, strict=False):
                    files.replace(index, key, place)
        except BlockingIOError:
            self._kept_until = time.monotonic() + FORGIVING_SECONDS
            return 0
        except OSError as err:
            self.is_out_of_space = err.errno in (errno.ENOSPC, errno.EDQUOT)
            return 0
        return len(places)

    def empty(self) -> None:
        """Remove all values, for all processes; views of them stay valid."""
        with contextlib.suppress(OSError):
            files = self._opened()
            if files is not None:
                with files.turn():
                    if files.are_in_place():
                        set_aside(self._directory)

    def is_current(self) -> bool:
        """Return False when the directory was removed."""
        return self._directory.is_dir()

    def is_kept_busy(self) -> bool:
        """Return True for a while after nothing was written because another process kept the turn."""
        return time.monotonic() < self._kept_until

    def close(self) -> None:
        """Close the files; a later use opens them again."""
        with self._lock:
            self._files = None

    # ------------------------------------------------------------ inside

    def _opened(self, *, makes: bool = False) -> _Files | None:
        """Return the open files of this process, None if there are none; those that are not at their paths are closed."""
        with self._lock:
            if self._files is not None and not self._files.are_in_place():
                self._files = None
            if self._files is None:
                try:
                    with _fork_lock:
                        self._files = _Files(self._directory, makes=makes, on_disk=self._on_disk)
                except OSError:
                    if makes:
                        raise
            return self._files

    def _take_places(self, files: _Files, sizes: Sequence[int]) -> list[Place]:
        """Take places at the end of the segment, for as many values from the front as there is room for."""
        steps = [-(-(size + TRAILER_BYTES) // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        with files.turn() as index:
            totals, size_bytes = files.totals(), os.fstat(files.segment).st_size
            room = self._limit_bytes - files.used_bytes() - index.growth_bytes(len(sizes))
            free = free_bytes(self._directory) - self._min_free_bytes
            self.is_out_of_space = free < min(room, steps[0])
            # An index that was made anew over a segment, or is torn, does not know the places that are taken.
            start = totals.end if 0 < totals.end <= size_bytes else size_bytes
            offsets = list(accumulate(steps, initial=start))
            count = sum(end - start <= min(room, free) for end in offsets[1:])
            if offsets[count] > size_bytes:
                os.ftruncate(files.segment, -(-offsets[count] // _STEP_BYTES) * _STEP_BYTES)
            write_totals(files.index, totals._replace(end=offsets[count]))
        return [Place(offset, size, 0, 0) for offset, size in zip(offsets[:count], sizes, strict=False)]

    def _remove_corrupt(self, keys: Sequence[bytes]) -> None:
        with contextlib.suppress(OSError):
            files = self._opened()
            if files is not None:
                with files.turn() as index:
                    for key in keys:
                        files.remove_corrupt(index, key)


class Batch:
    """Views of values, which are valid until the end of the block. A value on disk that does not fit its checksum is removed."""

    __slots__ = ("_corrupt", "_files", "_tier", "_views")

    def __init__(self, tier: SharedTier) -> None:
        self._tier = tier
        self._files: _Files | None = None
        self._views: list[memoryview] = []
        self._corrupt: list[bytes] = []

    def __enter__(self) -> Self:
        self._files = self._tier._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files = None
        for view in self._views:
            with contextlib.suppress(BufferError):  # an array is over it, which must not be used any more
                view.release()
        self._views.clear()
        if self._corrupt:
            self._tier._remove_corrupt(self._corrupt)

    def get_views(self, keys: Sequence[bytes]) -> list[memoryview | None]:
        """Return a view of each value, None for those that the store does not hold; each begins at a multiple of 16 bytes."""
        return [self.get_view(key) for key in keys]

    def get_view(self, key: bytes) -> memoryview | None:
        """Return a view of one value, None if the store does not hold it."""
        files = self._files
        if files is None:
            return None
        try:
            place = files.reader.find(key)
            if place is None:
                return None
            view = files.view(key, place)
        except (OSError, OverflowError, MemoryError):
            view = None
        if view is None:
            self._corrupt.append(key)
            return None
        self._views.append(view)
        return view


class _Files:
    """The files of a store, open in this process.

    **Ownership.** The descriptors are closed when nothing refers to this any more: a thread may still write with them.

    Raises:
        BlockingIOError: The server gives space back at the moment.
        OSError: The files are not there, or cannot be opened.
    """

    def __init__(self, directory: Path, *, makes: bool, on_disk: bool) -> None:
        self._path = directory / STORE_NAME
        self._on_disk = on_disk
        self._index: Index | None = None
        self._map = memoryview(b"")
        try:
            self._identity, self.index, self.segment = open_files(directory)
        except OSError:
            if not makes:
                raise
            make_files(directory)
            self._identity, self.index, self.segment = open_files(directory)
        self._turn = ProcessLock(Path(f"/proc/self/fd/{self.index}"))
        self.reader = IndexReader(self.index)
        self._finalizer = weakref.finalize(self, _close_all, (self.index, self.segment), self._turn)
        self._finalizer.atexit = False
        _open.add(self)
        if not flock_within(self.segment, _TRIM_SECONDS if makes else 0, fcntl.LOCK_SH):
            raise BlockingIOError(f"the server has the store in {directory}")
        if not self.are_in_place():
            raise FileNotFoundError(f"the store in {directory} was removed")

    def close_in_child(self) -> None:
        """Close the inherited descriptors, which would keep the locks of a parent that was killed."""
        self._finalizer()
        self.index = self.segment = -1
        self.reader = IndexReader(-1)

    def are_in_place(self) -> bool:
        """Return whether the store in the directory is still this one."""
        try:
            found = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    @contextmanager
    def turn(self) -> Iterator[Index]:
        """Be the only one that changes index and totals, or takes places.

        Raises:
            BlockingIOError: Another process keeps the turn.
            OSError: The files cannot be used.
        """
        with self._turn.hold():
            if self._index is None:
                self._index = Index(self.index, is_shared=True)
                if self._index.was_damaged:
                    _log.warning("prefeed: the store in %s is damaged, and is emptied", self._path)
            self._index.refresh(self.totals().entries)
            yield self._index

    def totals(self) -> Totals:
        """Return the totals of the store."""
        return read_totals(self.index)

    def used_bytes(self) -> int:
        """Return the bytes of taken places, or of allocated pages if they are more, and those of the index."""
        segment, totals = os.fstat(self.segment), self.totals()
        taken = min(totals.end, segment.st_size) - totals.holes
        return max(segment.st_blocks * 512, taken) + os.fstat(self.index).st_blocks * 512

    def replace(self, index: Index, key: bytes, place: Place) -> None:
        """Name a place in the index, and count it. Call it in a turn."""
        before = index.put(key, place)
        if before == place:
            return  # keys that are no hashes fill their buckets
        change, totals = place.length - (0 if before is None else before.length), self.totals()
        if before is not None and self._on_disk:  # views in memory may be over it
            os.pwrite(self.segment, bytes(TRAILER_BYTES), before.offset + before.length)
            if punch(self.segment, before.offset, before.length):
                totals = totals._replace(holes=totals.holes + max(0, before.length - 2 * PAGE_BYTES))
        counted = totals._replace(
            entries=totals.entries + (before is None), value_bytes=max(0, totals.value_bytes + change)
        )
        write_totals(self.index, counted)

    def remove_corrupt(self, index: Index, key: bytes) -> None:
        """Remove an entry that is still wrong, and count it. Call it in a turn."""
        place = index.find(key)
        if (
            place is not None
            and read_value(self.segment, key, place.offset, place.length, verify=self._on_disk) is None
        ):
            index.remove(key)
            totals = self.totals()
            counted = totals._replace(
                entries=max(0, totals.entries - 1), value_bytes=max(0, totals.value_bytes - place.length),
                corrupt=totals.corrupt + 1,
            )  # fmt: skip
            write_totals(self.index, counted)

    def view(self, key: bytes, place: Place) -> memoryview | None:
        """Return a view of a value, None if it is not as it was written."""
        end = place.offset + place.length
        if self._on_disk:  # a page that the disk does not give would be SIGBUS in a mapping
            value = read_value(self.segment, key, place.offset, place.length, verify=True)
            return None if value is None else memoryview(value)
        if os.pread(self.segment, ENTRY_KEY_BYTES, end) != key:
            return None
        if end > len(self._map):
            mapped = mmap.mmap(self.segment, os.fstat(self.segment).st_size, prot=mmap.PROT_READ)
            self._map = memoryview(mapped)
        return self._map[place.offset : end]


def _digest(parts: Sequence[Buffer]) -> bytes:
    sum_ = xxh3_64()
    for part in parts:
        sum_.update(part)
    return sum_.digest()


def _close_all(descriptors: Sequence[int], turn: ProcessLock) -> None:
    turn.close()
    for descriptor in descriptors:
        os.close(descriptor)


_tiers: Final[weakref.WeakSet[SharedTier]] = weakref.WeakSet()


_open: Final[weakref.WeakSet[_Files]] = weakref.WeakSet()


_fork_lock: Final = threading.RLock()
"""A fork waits for a thread that opens files. Taken twice where a fork is made by what a garbage collection calls."""


def _forget_in_child() -> None:
    """Let a forked child open the files by itself."""
    _fork_lock.release()
    for files in list(_open):
        files.close_in_child()
    for tier in list(_tiers):
        tier._forget()


os.register_at_fork(
    before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_forget_in_child
)  # fmt: skip
