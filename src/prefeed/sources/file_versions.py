"""Sizes and versions of files, as columns: which file each one is, and when it last changed.

A version is a record as hexadecimal digits: a mark that it is a file's, and four numbers of 8 bytes, nanoseconds of the last
change, size, inode, and file system (see ``filesystems``). So the versions of many files are made by one conversion of an array, and not one by one.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from prefeed.sources.file_names import leave_out, raise_translated, work_off
from prefeed.sources.filesystems import OWN, FileSystems, SystemNumber
from prefeed.sources.listing import LeftOut
from prefeed.sources.views import View
from prefeed.types import ListingProgress

_FILES: Final = 200
"""Files of one directory that a thread asks in a row."""

_BITS: Final = 2**64 - 1
_RECORD: Final = struct.Struct(">4sQQQQ")
_MARK: Final = b"file"
_RECORDS: Final = np.dtype([("mark", "S4"), ("numbers", ">u8", 4)])
_GONE: Final = (-1, 0, 0, 0, 0)


def version_of(status: os.stat_result, where: str | int, file_systems: FileSystems = OWN) -> str:
    """Return the version of a file.

    Args:
        status: Of the file.
        where: Path or descriptor that leads to it.
        file_systems: Of the view that it was asked in.
    """
    number = file_systems.number(status.st_dev, where)
    inode, system = status.st_ino if number.is_numbered else 0, number.of_file(status.st_ctime_ns)
    return _RECORD.pack(_MARK, status.st_mtime_ns & _BITS, status.st_size, inode, system).hex()


def changed_ns_of(version: str) -> int | None:
    """Return when a file of this version last changed; None when it is not the version of a file."""
    if len(version) != 2 * _RECORD.size or not version.startswith(_MARK.hex()):
        return None
    try:
        return int.from_bytes(bytes.fromhex(version)[4:12], "big", signed=True)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class FileTable:
    """What files are at one moment, one line a file.

    Attributes:
        sizes: Bytes, shape (num_files,); -1 of what is no file.
        changed_ns: When each last changed, shape (num_files,).
        inodes: Shape (num_files,); 0 where they do not say which file it is.
        systems: File system as ``SystemNumber.of_files`` tells it, shape (num_files,).
        is_beside: Whether each is on the file system of the directory that it is in, shape (num_files,).
    """

    sizes: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    inodes: NDArray[np.uint64]
    systems: NDArray[np.uint64]
    is_beside: NDArray[np.bool_]

    def take(self, ids: NDArray[Any]) -> FileTable:
        """Return the lines of these files: their ids, or a mask."""
        return FileTable(
            self.sizes[ids], self.changed_ns[ids], self.inodes[ids], self.systems[ids], self.is_beside[ids]
        )

    def versions(self) -> list[bytes]:
        """Return the version of each file, as ``version_of``; of what is no file it means nothing."""
        records = np.empty(len(self.sizes), _RECORDS)
        records["mark"] = _MARK
        columns = self.changed_ns.view(np.uint64), self.sizes.view(np.uint64), self.inodes, self.systems
        for at, column in enumerate(columns):
            records["numbers"][:, at] = column
        digits: list[bytes] = np.array(
            [] if not len(records) else np.frombuffer(records.tobytes().hex().encode("ascii"), f"S{2 * _RECORD.size}")
        ).tolist()
        return digits


def ask_files(
    root: str,
    paths: Sequence[bytes],
    view: View | None = None,
    *,
    strict: bool,
    progress: ListingProgress | None = None,
    left_out: LeftOut | None = None,
) -> FileTable:
    """Return what files below a directory are now.

    **Blocking**: one question a file, by several threads where the storage is slow.

    Args:
        root: Directory, an absolute path.
        paths: Relative to it, those of one directory one after the other.
        view: Of the process that the root is from; None: this one's.
        strict: Any error but that there is no such file is raised; False: what cannot be asked is no file.
        progress: Told the number of files, and the bytes of those that were asked so far.
        left_out: Counts files that cannot be asked, which are then no files.

    Raises:
        SourceError: See ``strict``.
    """
    return _Questions(root, paths, view, strict=strict, left_out=left_out).asked(progress)


class _Questions:
    """Files that are being asked."""

    def __init__(
        self, root: str, paths: Sequence[bytes], view: View | None, *, strict: bool, left_out: LeftOut | None
    ) -> None:
        self._left_out = left_out
        self._prefix = os.fsencode(root.rstrip("/") + "/")
        self._view = view
        self._file_systems = OWN if view is None else view.file_systems
        self._is_strict = strict
        self._num_files = len(paths)
        self._num_asked = self._num_bytes = 0
        self._answers: dict[int, tuple[array[int], int]] = {}  # by id of the first file; and the directory's device
        self._numbers: dict[int, SystemNumber] = {}
        tasks: list[tuple[bytes, int, list[bytes]]] = []
        at = 0
        for directory, found in groupby(paths, key=lambda path: path[: path.rfind(b"/") + 1]):
            names = [path[len(directory) :] for path in found]
            starts = range(0, len(names), _FILES)
            tasks += [(directory, at + start, names[start : start + _FILES]) for start in starts]
            at += len(names)
        tasks.reverse()
        self._todo = deque(tasks)

    def asked(self, progress: ListingProgress | None) -> FileTable:
        def report() -> None:
            if progress is not None:
                progress(self._num_files, self._num_bytes)

        work_off(self._todo, self._ask, found=lambda: self._num_asked, report=report)
        return self._table()

    def _ask(self, task: tuple[bytes, int, list[bytes]]) -> None:
        """Ask some files of one directory."""
        relative, start, names = task
        directory = self._prefix + relative
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        found: list[int] = []
        own = 0
        try:
            path = os.fsdecode(directory)
            descriptor = os.open(path, flags) if self._view is None else self._view.open(path, flags)
        except OSError as err:
            self._note_error(err, directory)
            found += _GONE * len(names)
        else:
            try:
                own = os.fstat(descriptor).st_dev
                self._ask_names(names, descriptor, directory, found)
                self._know(own, descriptor)
                for device in set(found[3::5]) - self._numbers.keys() - {0}:  # what links lead to
                    self._know(device, os.fsdecode(directory + names[found[3::5].index(device)]))
            finally:
                os.close(descriptor)
        self._answers[start] = _packed(found), own
        self._num_asked += len(names)
        self._num_bytes += sum(found[::5])

    def _ask_names(self, names: list[bytes], descriptor: int, directory: bytes, found: list[int]) -> None:
        """Append size, time, inode, device and ctime of each file."""
        ask, type_bits, is_file = self._question(directory), 0o170000, stat.S_IFREG
        for name in names:
            try:
                status = ask(name, dir_fd=descriptor)
            except OSError as err:
                self._note_error(err, directory + name)
                found += _GONE
                continue
            if status.st_mode & type_bits == is_file:
                found += (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev, status.st_ctime_ns)
            else:
                found += _GONE

    def _know(self, device: int, where: str | int) -> None:
        if device not in self._numbers:
            self._numbers[device] = self._file_systems.number(device, where)

    def _table(self) -> FileTable:
        answers = [self._answers[start] for start in sorted(self._answers)]
        joined = b"".join(answer.tobytes() for answer, _ in answers)
        sizes, changed_ns, inodes, devices, ctimes = np.ascontiguousarray(
            np.frombuffer(joined, np.int64).reshape(-1, 5).T
        )
        own = np.repeat(np.array([device for _, device in answers], np.int64), [len(one) // 5 for one, _ in answers])
        systems = np.zeros(self._num_files, np.uint64)
        for device, number in self._numbers.items():
            is_on = devices == device
            systems[is_on] = number.of_files(ctimes[is_on])
            if not number.is_numbered:
                inodes[is_on] = 0
        return FileTable(sizes, changed_ns, inodes.view(np.uint64), systems, devices == own)

    def _question(self, directory: bytes) -> Any:
        """Return what asks for a name in an open directory; links lead where the view's process would find them."""
        view = self._view
        if view is None:
            return os.stat

        def ask(name: bytes, *, dir_fd: int) -> os.stat_result:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            return view.stat(os.fsdecode(directory + name)) if stat.S_ISLNK(status.st_mode) else status

        return ask

    def _note_error(self, err: OSError, path: bytes) -> None:
        if self._is_strict and not isinstance(err, FileNotFoundError | NotADirectoryError):
            relative = os.fsdecode(path.removeprefix(self._prefix))
            if self._left_out is not None and leave_out(err, relative, self._left_out):
                return
            raise_translated(err, os.fsdecode(path), listing=True)


def _packed(numbers: list[int]) -> array[int]:
    """Return numbers of 8 bytes each; what is larger wraps around."""
    try:
        return array("q", numbers)
    except OverflowError:
        return array("q", array("Q", [number & _BITS for number in numbers]).tobytes())
