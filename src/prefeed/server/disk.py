"""The disk tier of objects: what the memory tier has no room for, and what a restart would lose.

origin ──bytes──→ memory tier                 fetcher threads look here before they ask the origin
          └─────→ waiting ──groups──→ disk ──────────↑
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from prefeed.errors import StoreError, TierFullError
from prefeed.server.datasets import KeyIndex
from prefeed.store.files import TierFiles
from prefeed.store.log import LogReader, LogWriter, stored_bytes, value_size
from prefeed.system.files import free_bytes
from prefeed.types import Buffer, ClearResult, DiskCounts

_MOST_WAITING_BYTES: Final = 128 * 1024**2
_GROUP_BYTES: Final = 16 * 1024**2
_MOST_IN_GROUP: Final = 256
_LINGER_SECONDS: Final = 0.2
"""Delay of a group that is not full, so that more objects are written with it."""

_SPARE_BYTES: Final = 1024**2
"""Space of the file system that is left for the index to grow."""

_TRY_EVERY: Final = 64
"""Of a full tier: room comes seldom."""

_FREED_FOR_EACH: Final = 1.5
"""So much more is freed than is to be stored: entries differ in size."""

_LEAST_FREED: Final = 32
_MOST_OF_BUDGET: Final = 0.9
"""Of it for one object: with more, all else would be freed, and it would hardly fit."""

_MAX_OBJECT_BYTES: Final = 2**32 - 1

Cleared = Callable[[ClearResult], None]
"""Told what was deleted; called in the tier's thread."""


@dataclass(frozen=True, slots=True)
class _Clear:
    keys: list[memoryview] | None
    then: Cleared


class DiskTier:
    """Objects on a local disk, under their entry keys.

    Nothing that happens to the disk is an error of a read: what cannot be stored is not, what is damaged is absent.
    Nothing is evicted, but when the budget is used up, entries that ``keys_in_use`` does not name go.

    **Ownership.** The directory is this tier's own; no other process has the store open.

    **Threads.** ``read`` may be called from any thread; the rest belongs to the loop's. What was offered is written by
    a thread of the tier's own, which calls ``keys_in_use`` too.

    **Blocking.** ``read`` waits for the disk; ``close`` for what was offered to be written; no other call waits.

    Args:
        directory: Made if missing.
        budget_bytes: The most that the files may take; ``resize`` changes it.
        min_free_bytes: What the file system must keep free: nothing is stored that would not leave it.
        keep_bytes: Entries that are there and take more than the budget stay if they take no more than this; else all
            are deleted. Nothing more is stored until they fit the budget.
        keys_in_use: Returns entry keys, 16 bytes each, of the objects of all datasets in use.

    Attributes:
        damage: What was wrong with the store that was found, in words; empty when nothing was.

    Raises:
        StoreError: The directory cannot be used; the message says what to change.
    """

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int,
        min_free_bytes: int,
        keep_bytes: int = 0,
        keys_in_use: Callable[[], Iterable[memoryview]] = tuple,
    ) -> None:
        self.keys_in_use = keys_in_use
        self._directory = directory
        self._budget_bytes = max(0, budget_bytes)
        self._min_free_bytes = min_free_bytes
        _make_directory(directory)
        self._earlier_files: list[TierFiles] = []  # readers may be in them
        self._open()
        self.damage: str = "its index has no valid header" if self._writer.was_damaged else ""
        if self._writer.file_bytes() > max(self._budget_bytes, keep_bytes):
            self._writer.clear()
        self._store_lock = threading.Lock()  # held while the writer changes
        self._suspects: deque[bytes] = deque()  # keys of values that a read found not to be as they were written
        self._corrupt = self._writer.num_impossible
        self._changed = threading.Condition()
        self._waiting: dict[bytes, Buffer] = {}
        self._writing: dict[bytes, Buffer] = {}
        self._waiting_bytes = 0
        self._writing_bytes = 0
        self._clears: deque[_Clear] = deque()
        self._is_closing = False
        self._skip = 0
        self._dropped = 0
        self._refused = 0
        self._doomed: list[bytes] = []
        self._doomed_by = -1
        self._tries_until_looked_at = 0
        self._thread = threading.Thread(target=self._run, name="prefeed-disk", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ reading

    def read(self, key: bytes) -> Buffer | None:
        """Return an object's bytes as they were offered, None if the tier does not hold them."""
        with self._changed:
            if self._clears or self._is_closing:
                return None
            waiting = self._waiting.get(key, self._writing.get(key))
        return self._reader.get(key) if waiting is None else waiting

    def counts(self) -> DiskCounts:
        """Return a snapshot, but for the reads that were served, which others count."""
        return DiskCounts(
            objects=self._writer.num_entries,
            bytes=self._writer.value_bytes,
            budget_bytes=self._budget_bytes,
            corrupt=self._corrupt,
            dropped=self._dropped,
        )

    @property
    def unwritten_bytes(self) -> int:
        """What was offered and is not stored yet."""
        with self._changed:
            return self._waiting_bytes + sum(map(value_size, self._writing.values()))

    @property
    def num_refused(self) -> int:
        """Objects that there was no room for since the start; those that were not even tried do not count."""
        return self._refused

    def keys(self) -> list[bytes]:
        """Return the keys of all that is stored; any thread may ask."""
        with self._store_lock:
            return [key for key, _, _ in self._writer.entries()]

    @property
    def file_bytes(self) -> int:
        """What the files take of the file system, or may take with what is being written."""
        writing_bytes = (
            self._writing_bytes
        )  # first: a group that is stored meanwhile counts twice, and never not at all
        return self._writer.file_bytes() + writing_bytes

    # ------------------------------------------------------------ writing

    def offer(self, key: bytes, data: Buffer) -> None:
        """Let the bytes be stored some time, if there is room; what comes while 128 MiB wait is dropped."""
        size = value_size(data)
        with self._changed:
            if key in self._waiting or size > min(_MOST_OF_BUDGET * self._budget_bytes, _MAX_OBJECT_BYTES):
                return
            if self._skip > 0:
                self._skip -= 1
            elif self._waiting and self._waiting_bytes + size > _MOST_WAITING_BYTES:
                self._dropped += 1
            else:
                self._waiting[key] = data
                self._waiting_bytes += size
                self._changed.notify()

    def resize(self, budget_bytes: int) -> int:
        """The files may take so much from now on; returns what they may take, more when they have it already."""
        with self._changed:
            if budget_bytes > self._budget_bytes:
                self._skip = 0
            self._budget_bytes = max(0, budget_bytes)
        return max(budget_bytes, self.file_bytes)

    def clear(self, keys: list[memoryview] | None, then: Cleared) -> None:
        """Delete the objects with these keys, 16 bytes each; everything if None. None of them is read from now on."""
        with self._changed:
            self._waiting.clear()
            self._waiting_bytes = 0
            self._clears.append(_Clear(keys, then))
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, and let go of the store; what is in it stays."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        for files in (*self._earlier_files, self._files):
            files.close()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            self._wait_for_work()
            if self._clears:
                clear = self._clears[0]
                result = self._clear(clear.keys)
                self._clears.popleft()
                clear.then(result)
            elif self._suspects:
                self._free_corrupt(self._suspects.popleft())
            elif group := self._take_group():
                self._store(group)
                with self._changed:
                    self._writing, self._writing_bytes = {}, 0
            elif self._is_closing:
                return

    def _wait_for_work(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_urgent())
            self._changed.wait_for(lambda: self._waiting_bytes >= _GROUP_BYTES or self._is_urgent(), _LINGER_SECONDS)

    def _is_urgent(self) -> bool:
        return bool(self._clears or self._suspects or self._is_closing)

    def _take_group(self) -> list[tuple[bytes, Buffer]]:
        group: list[tuple[bytes, Buffer]] = []
        size = 0
        with self._changed:
            for key, data in islice(self._waiting.items(), _MOST_IN_GROUP):
                group.append((key, data))
                size += stored_bytes(value_size(data))
                if size >= _GROUP_BYTES:
                    break
            for key, data in group:
                del self._waiting[key]
                self._waiting_bytes -= value_size(data)
            # From here on the store may grow by this, whatever ``resize`` says meanwhile.
            self._writing, self._writing_bytes = dict(group), size
            self._writer.budget_bytes = self._budget_bytes
        return group

    def _store(self, group: list[tuple[bytes, Buffer]]) -> None:
        if not self._files.are_in_place():
            self._try_begin_anew()
        rest = group[self._put(group) :]
        if rest and self._free_unnamed(rest):
            rest = rest[self._put(rest) :]
        if rest:
            self._skip = _TRY_EVERY
            self._refused += len(rest)

    def _put(self, group: Sequence[tuple[bytes, Buffer]]) -> int:
        """Store values, the first ones if there is no room for all; return how many."""
        room_bytes = min(self._writer.free_bytes(len(group)), self._free_disk_bytes())
        ends = np.cumsum([stored_bytes(value_size(data)) for _, data in group])
        fitting = int(np.searchsorted(ends, room_bytes, side="right"))
        with self._changing(), contextlib.suppress(TierFullError):
            self._writer.put_many([(key, data, False) for key, data in group[:fitting]])
            return fitting
        return 0

    def _free_unnamed(self, group: Sequence[tuple[bytes, Buffer]]) -> bool:
        """Delete as much as the group takes of what no dataset in use names; False when there is nothing to be had so."""
        needed = sum(stored_bytes(value_size(data)) for _, data in group)
        if self._is_closing or self._free_disk_bytes() < needed or self._writer.free_bytes(len(group)) >= needed:
            return False  # catalogues are about to be closed, and then name nothing; or deleting would not help
        self._look_for_unnamed()
        before = self._writer.num_entries
        count = _LEAST_FREED + int(_FREED_FOR_EACH * needed * before / max(1, self._writer.value_bytes))
        with self._changing():
            self._writer.free_many(self._doomed[-count:])
        del self._doomed[-count:]
        return self._writer.num_entries < before

    def _look_for_unnamed(self) -> None:
        """Know what may go: look when other datasets are in use, or when that many offers have been refused as there are.

        The latter for files of a catalogue that have changed: nothing names their old bytes.
        """
        named = list(self.keys_in_use())
        self._tries_until_looked_at -= 1
        if len(named) != self._doomed_by or (not self._doomed and self._tries_until_looked_at <= 0):
            held = self.keys()
            self._doomed, self._doomed_by = unnamed(held, named), len(named)
            self._tries_until_looked_at = len(held) // _TRY_EVERY

    def _free_disk_bytes(self) -> int:
        """Return the bytes of the file system that this tier may still allocate."""
        try:
            return free_bytes(self._directory) - self._min_free_bytes - _SPARE_BYTES
        except OSError:
            return 0

    def _clear(self, keys: list[memoryview] | None) -> ClearResult:
        before, before_bytes = self._writer.num_entries, self._writer.value_bytes
        if keys is None:
            with self._changing():
                self._writer.clear()
        else:
            held = self.keys()
            index = KeyIndex(held)
            found = [index.match(part)[0] for part in keys]
            doomed = [held[at] for at in np.unique(np.concatenate(found)).tolist()] if found else []
            with self._changing():
                self._writer.free_many(doomed)
        self._skip, self._doomed, self._doomed_by = 0, [], -1
        return ClearResult(entries=before - self._writer.num_entries, bytes=before_bytes - self._writer.value_bytes)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Lock the entries for a change, and ignore a failure of the disk."""
        with self._store_lock, contextlib.suppress(OSError):
            yield

    def _suspect(self, key: bytes) -> None:
        with self._changed:
            self._suspects.append(key)
            self._changed.notify()

    def _free_corrupt(self, key: bytes) -> None:
        """Free a corrupt value and count it. A value that was freed or replaced during the read is not corrupt."""
        if self._reader.size_of(key) is not None and LogReader(*self._descriptors, verify=True).get(key) is None:
            with self._changing():
                self._writer.free_many([key])
            self._corrupt += 1

    def _open(self) -> None:
        try:
            files = TierFiles(self._directory)
            try:
                writer = LogWriter(files.index, files.segments, budget_bytes=self._budget_bytes, sums=True)
            except OSError:
                files.close()
                raise
        except OSError as err:
            raise StoreError(
                f"cannot use {self._directory} for the disk tier: {err.strerror}; name a directory you can write to, as in "
                "PREFEED_DISK=500GB:/nvme, or set PREFEED_DISK to 0"
            ) from err
        self._files, self._writer = files, writer
        self._descriptors = (files.index, files.segments)
        self._reader = LogReader(*self._descriptors, verify=True, on_corrupt=self._suspect)

    def _try_begin_anew(self) -> None:
        """Create the files again after their removal."""
        files = self._files
        with contextlib.suppress(OSError, StoreError):  # not the directory's parents: the disk may have been taken out
            self._directory.mkdir(mode=0o700, exist_ok=True)
            self._open()
            self._earlier_files.append(files)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(
            f"cannot make {directory} for the disk tier: {err.strerror}; name a directory you can write to, as in "
            "PREFEED_DISK=500GB:/nvme, or set PREFEED_DISK to 0"
        ) from err


def unnamed(held: list[bytes], named: list[memoryview]) -> list[bytes]:
    """Return those of the held keys that are not among the named ones, in their order. Pure."""
    if not held:
        return []
    index, is_named = KeyIndex(held), np.zeros(len(held), dtype=bool)
    for keys in named:
        is_named[index.match(keys)[0]] = True
    return [key for key, keep in zip(held, is_named.tolist(), strict=True) if not keep]
