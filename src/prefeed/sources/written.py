"""Which files the loaders' processes have written: a reader of one of them takes the file itself, not cached bytes.

One file beside the server's socket, which every process of the node appends to and reads::

    words    uint64    0: another number after each record   1: records begin here   2: not 0: all files count as written
    records  from byte 4096 on, one after the other: NUL kind pid pid-namespace identity length path real-path NUL

A record is there before the file changes, and it takes no server: a reader compares one number with the one it saw last.
Only the server drops records, by moving their beginning.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed.system.files import punch

_HEADER_BYTES: Final = 4096
_CHANGED, _BEGIN, _ALL = 0, 1, 2
_FILE, _BELOW = b"F", b"D"
_FROM_FIRST: Final = 1 << 20
"""Room of dropped records that is given back; less is not worth a call."""


@dataclass(frozen=True, slots=True)
class Change:
    """A file that was opened for writing, replaced, moved or removed, or is about to be.

    Attributes:
        path: Absolute, as it was named.
        real: The same with all symbolic links resolved, as /proc shows open files.
        identity: See ``identity_of``; 0 when there was no file.
        below: It is, or was, a directory: all files below it count.
        pid: Process that did it.
        namespace: Its PID namespace: process ids of another mean nothing here.
    """

    path: str
    real: str
    identity: int
    below: bool
    pid: int
    namespace: int


class WrittenFiles:
    """The files that count as written.

    Records are seen by all processes when ``add`` has returned. Where none can be kept, all files count as written.

    **Threads and processes.** Opened at first use; inherited by forked children; a pickled one is its path. Any thread.
    """

    def __init__(self, path: Path) -> None:
        """Use this file, which is made at first use; its directory exists."""
        self._path = path
        self._words: memoryview | None = None
        self._descriptor = -1
        self._closes: Callable[[], Any] = lambda: None
        self._seen = 0
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        return (WrittenFiles, (self._path,))

    def any(self) -> bool:
        """Return whether any file counts as written. Costs next to nothing while that stays as it is."""
        words = self._words
        if words is None or words[_CHANGED] != self._seen:
            self._refresh()
        return self._any

    def covers(self, path: str, identity: int = 0) -> bool:
        """Return whether a file counts as written, as of the last ``any``.

        Args:
            path: Absolute.
            identity: Of the file that the cached bytes are of; 0 when it is not known.
        """
        if self._is_all or path in self._files or identity in self._identities:
            return True
        return bool(self._below) and self._is_below(path)

    def add(self, path: str, real: str, identity: int = 0, *, below: bool = False) -> int:
        """Let the file count as written, before it is; returns what ``has_kept`` is asked with when it was.

        Args:
            path: As it is named.
            real: The same without symbolic links.
            identity: Of the file that is there; 0 when there is none.
            below: It is a directory, and all files below it are meant.
        """
        if not self._is_open():
            return 0
        assert self._words is not None
        begin = self._words[_BEGIN]
        change = Change(path, real, identity, below, os.getpid(), _namespace())
        try:
            self._append(change)
        except OSError:
            self._words[_ALL] = 1
        self._tell()
        return begin

    def has_kept(self, begin: int) -> bool:
        """Return whether a record that ``add`` has answered so is still in force."""
        return self._words is None or self._words[_BEGIN] == begin

    def changes(self) -> tuple[list[Change], int]:
        """Return all records in force, and where they end."""
        if not self._is_open():
            return [], 0
        assert self._words is not None
        data, start = self._read(self._words[_BEGIN])
        return list(_parsed(data)), start + len(data)

    def drop(self, end: int, kept: Iterable[Change]) -> None:
        """Records before ``end``, but for these, are no longer in force. The server alone does this."""
        if not self._is_open():
            return
        assert self._words is not None
        with contextlib.suppress(OSError):  # else the next time
            for change in kept:
                self._append(change)
            before = self._words[_BEGIN]
            self._words[_BEGIN] = end
            self._words[_ALL] = 0
            self._tell()
            if end - before >= _FROM_FIRST:
                punch(self._descriptor, _HEADER_BYTES, end - _HEADER_BYTES)

    def touch(self) -> None:
        """Keep away who removes files of ``/tmp`` that look unused."""
        with contextlib.suppress(OSError):
            os.utime(self._path)

    def close(self) -> None:
        """Let go of the file; a later use opens it again."""
        self._words = None
        self._closes()

    def _append(self, change: Change) -> None:
        path, real = os.fsencode(change.path), os.fsencode(change.real)
        kind = _BELOW if change.below else _FILE
        head = b"%s%d %d %x %d " % (kind, change.pid, change.namespace, change.identity, len(path))
        record = b"\0%s%s%s\0" % (head, path, real)  # the first ends what a full disk, or a kill, has left of another
        if os.write(self._descriptor, record) != len(record):
            raise OSError(f"{self._path} has no room")

    def _tell(self) -> None:
        # Never the same twice: a reader that has seen it has seen every record that was there before it was set.
        assert self._words is not None
        self._words[_CHANGED] = int.from_bytes(os.urandom(8))

    def _is_open(self) -> bool:
        if self._words is None:
            try:
                self._descriptor, self._words = _opened(self._path)
            except OSError:
                return False
            self._closes = weakref.finalize(self, os.close, self._descriptor)
        return True

    def _forget(self) -> None:
        self._any = self._is_all = False
        self._position = 0
        self._begun = -1
        self._files: set[str] = set()
        self._identities: set[int] = set()
        self._below: set[str] = set()

    def _refresh(self) -> None:
        if not self._is_open():
            self._any = self._is_all = True
            return
        assert self._words is not None
        seen, begin = self._words[_CHANGED], self._words[_BEGIN]
        if begin != self._begun:
            self._forget()
            self._begun = self._position = begin
        data, start = self._read(self._position)
        for change in _parsed(data):
            names = {change.path, change.real}
            self._files |= names
            if change.below:
                self._below |= {name.rstrip("/") + "/" for name in names}
            if change.identity:
                self._identities.add(change.identity)
        self._position = start + len(data)
        self._is_all = bool(self._words[_ALL])
        self._any = self._is_all or bool(self._files)
        self._seen = seen  # what was added meanwhile has set another

    def _read(self, start: int) -> tuple[bytes, int]:
        """Return whole records from there on, and where they begin."""
        start = max(start, _HEADER_BYTES)
        size = os.fstat(self._descriptor).st_size - start
        data = os.pread(self._descriptor, size, start) if size > 0 else b""
        return data[: data.rfind(b"\0") + 1], start

    def _is_below(self, path: str) -> bool:
        directory = os.path.realpath(path[: path.rfind("/")] or "/") + "/"
        return any(path.startswith(place) or directory.startswith(place) for place in self._below)


def _opened(path: Path) -> tuple[int, memoryview]:
    """Open the file, made whole where there is none, and map its words."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        building, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            os.posix_fallocate(building, 0, _HEADER_BYTES)  # a mapped hole on a full disk ends in SIGBUS
            with contextlib.suppress(FileExistsError):  # somebody was quicker
                os.link(name, path)
        finally:
            os.close(building)
            os.unlink(name)
        descriptor = os.open(path, flags)
    try:
        words = memoryview(mmap.mmap(descriptor, _HEADER_BYTES)).cast("Q")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, words


def _parsed(data: bytes) -> Iterator[Change]:
    for record in data.split(b"\0"):
        fields = record[1:].split(b" ", 4)
        if len(fields) == 5:
            pid, namespace, identity, length, names = fields
            path, real = names[: int(length)], names[int(length) :]
            if not real:
                continue  # the beginning of a record: who wrote it knows that it was not whole
            yield Change(
                os.fsdecode(path), os.fsdecode(real), int(identity, 16), record[:1] == _BELOW, int(pid), int(namespace)
            )


def _namespace() -> int:
    process_id = os.getpid()
    if process_id not in _namespaces:
        _namespaces.clear()  # that of the process that this one was forked from
        try:
            _namespaces[process_id] = os.stat("/proc/self/ns/pid").st_ino
        except OSError:
            _namespaces[process_id] = 0
    return _namespaces[process_id]


_namespaces: dict[int, int] = {}


def still_open(changes: Iterable[Change]) -> list[Change]:
    """Return the changes whose files some process has open for writing, or mapped, or where that cannot be told.

    Descriptors are looked for in all processes of this user, mappings in those that made the changes and their children.
    """
    changes = list(changes)
    here = _namespace()
    writers = {change.pid for change in changes if change.namespace == here}
    children = _children_of(writers) if writers else set()
    found: set[str] = set()
    untold: set[int] = set()
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        try:
            # A process that has changed its user belongs to root here until it runs another program.
            if os.stat(f"/proc/{pid}").st_uid == os.getuid() or pid in children:
                found.update(_open_for_writing(f"/proc/{pid}"))
                if pid in children:
                    found.update(_mapped_for_writing(f"/proc/{pid}"))
        except PermissionError:
            untold |= children & {pid}
        except OSError:
            pass  # it has ended
    return [change for change in changes if change.namespace != here or change.real in found or (change.pid in untold)]


def open_for_writing() -> set[str]:
    """Return the files that this process may write without opening them again: by descriptor, or in shared memory."""
    return {*_open_for_writing("/proc/self"), *_mapped_for_writing("/proc/self")}


def _open_for_writing(process: str) -> Iterator[str]:
    for number in os.listdir(f"{process}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            link = f"{process}/fd/{number}"
            if (path := os.readlink(link))[0] == "/" and os.lstat(link).st_mode & 0o200:
                yield path


def _mapped_for_writing(process: str) -> Iterator[str]:
    with open(f"{process}/maps", "rb") as file:
        for line in file:
            if b"w-s " in line[:80]:
                fields = line.split(None, 5)
                if len(fields) == 6 and fields[1][1:4] == b"w-s":
                    yield os.fsdecode(fields[5].rstrip(b"\n"))


def _children_of(processes: set[int]) -> set[int]:
    """Return these processes, their children, and so on, as far as the chain of parents is there."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
            parents[pid] = int(file.read().rpartition(b")")[2].split()[1])
    found = set(processes)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found
