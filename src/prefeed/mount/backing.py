"""Reads large objects from files on this machine, or lets the kernel read them (passthrough).

The files are in the mounted directory or in a copy made by ``prefeed stage``. A file is used only if its size and time are those of the
listing and, in the mounted directory, its inode too. Other versions are ignored.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import struct
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from prefeed.fuse.device import register_backing, unregister_backing
from prefeed.sources.manifest import Manifest

_log = logging.getLogger("prefeed")

_OPEN_FILES: Final = 64
_RECORD: Final = struct.Struct("<QQ")
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_SECOND: Final = 10**9


def _do_nothing() -> None:
    pass


class LocalFiles:
    """Local files that contain objects of a manifest.

    The kernel requires all opens of a file to be of one kind, passthrough or not. The kinds of open files are therefore remembered, and the
    kernel's numbers of files are stored in a record that outlives this process.

    **Threads and processes.** Any thread. The next daemon gets the same record.

    Attributes:
        waits: Called by a thread before it reads a file.
    """

    def __init__(
        self, manifest: Manifest, roots: Sequence[str], *, device: int, record: int, passthrough: bool
    ) -> None:
        """Search these directories.

        Args:
            manifest: Manifest of the mount.
            roots: Directories in the order of the search.
            device: Descriptor of the mount's device.
            record: Descriptor of the record, which is empty for a new mount.
            passthrough: True if the kernel supports passthrough.
        """
        self.waits: Callable[[], None] = _do_nothing
        self._manifest = manifest
        self._roots = tuple(roots)
        self._device = device
        self._record = record
        self._supports_passthrough = passthrough
        self._lock = threading.Lock()
        self._numbers: dict[int, int] = {}  # object id: number of the file in the kernel
        self._slots: dict[int, int] = {}
        self._passed: Counter[int] = Counter()
        self._cached: Counter[int] = Counter()
        self._files: OrderedDict[int, int] = OrderedDict()
        self._taken_over = frozenset(self._load_record())

    def record_open(self, object_id: int) -> int:
        """Record an open. Return the number of the file for passthrough; 0 if the kernel should send its reads."""
        with self._lock:
            number = self._numbers.get(object_id, 0)
            if not number and self._supports_passthrough and not self._cached[object_id]:
                number = self._pass_through(object_id)
            (self._passed if number else self._cached)[object_id] += 1
            return number

    def record_release(self, object_id: int, *, is_passed: bool) -> None:
        """Record that an open object was closed."""
        with self._lock:
            counts = self._passed if is_passed else self._cached
            counts[object_id] -= 1
            if counts[object_id] > 0:
                return
            del counts[object_id]
            if is_passed and object_id not in self._taken_over and (number := self._numbers.pop(object_id, 0)):
                self._write_slot(object_id, 0)
                with contextlib.suppress(OSError):
                    unregister_backing(self._device, number)

    def read(self, object_id: int, offset: int, size_bytes: int) -> bytes | None:
        """Read a part of an object from a local file. Return None if no file contains this object."""
        if not self._roots:
            return None
        self.waits()
        with self._lock:
            file = self._files.get(object_id)
            if file is None:
                file = self._open(object_id)
                if file is None:
                    return None
                self._files[object_id] = file
                if len(self._files) > _OPEN_FILES:
                    os.close(self._files.popitem(last=False)[1])
            self._files.move_to_end(object_id)
            file = os.dup(file)  # another thread may close the original
        try:
            data = os.pread(file, size_bytes, offset)
            return data if self._is_listed(object_id, os.fstat(file)) else None
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the files of this process."""
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def _pass_through(self, object_id: int) -> int:
        file = self._open(object_id)
        if file is None:
            return 0
        try:
            number = register_backing(self._device, file)
        except OSError as err:
            self._supports_passthrough = False
            _log.info(
                "prefeed: large files are read through the daemon, because the kernel refuses to read them: %s", err
            )
            return 0
        finally:
            os.close(file)
        self._numbers[object_id] = number
        self._write_slot(object_id, number)
        return number

    def _open(self, object_id: int) -> int | None:
        path = self._manifest.path(object_id)
        for root in self._roots:
            try:
                file = os.open(f"{root.rstrip('/')}/{path}", _FLAGS)
            except OSError:
                continue
            status = os.fstat(file)
            if self._is_listed(object_id, status) and (
                self._is_copy(root) or self._has_listed_inode(object_id, status)
            ):
                return file
            os.close(file)
        return None

    def _is_copy(self, root: str) -> bool:
        return root.rstrip("/") != self._manifest.url.rstrip("/")

    def _has_listed_inode(self, object_id: int, status: os.stat_result) -> bool:
        """Return whether a file is the listed one. False if it was replaced by one of equal size and time."""
        inode = 0 if self._manifest.stamps is None else int(self._manifest.stamps[1][object_id])
        return not inode or inode == status.st_ino

    def _is_listed(self, object_id: int, status: os.stat_result) -> bool:
        """Return whether a file has the listed version. Copies of objects store a hash of it in their time."""
        manifest = self._manifest
        if not stat.S_ISREG(status.st_mode) or status.st_size != int(manifest.sizes[object_id]):
            return False
        if manifest.stamps is not None:
            return status.st_mtime_ns == int(manifest.stamps[0][object_id])
        version = manifest.version_hash(object_id)
        return version != 0 and status.st_mtime_ns % _SECOND == version % _SECOND

    def _write_slot(self, object_id: int, number: int) -> None:
        slot = self._slots.pop(object_id) if not number else len(self._slots)
        if number:
            used = set(self._slots.values())
            slot = next(at for at in range(len(used) + 1) if at not in used)
            self._slots[object_id] = slot
        os.pwrite(self._record, _RECORD.pack(object_id, number), slot * _RECORD.size)

    def _load_record(self) -> list[int]:
        data = os.pread(self._record, os.fstat(self._record).st_size, 0)
        for slot, (object_id, number) in enumerate(_RECORD.iter_unpack(data)):
            if number:
                self._numbers[object_id], self._slots[object_id] = number, slot
        return list(self._numbers)
