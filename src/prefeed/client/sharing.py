"""What readers that take turns have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import util
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset
from prefeed.client.writes import written_files
from prefeed.sources.written import WrittenFiles


class Shared:
    """What readers that take turns have in common: with 200 datasets open, one connection and not 200.

    It is one connection per home, and one record of written files per server's directory.

    **Ownership.** Its maker closes it; readers that use it close only a connection that broke.
    **Threads and processes.** One reader at a time; a forked child makes its own.
    """

    def __init__(self) -> None:
        self._connections: dict[Path, Connection] = {}
        self._written: dict[str, WrittenFiles] = {}

    def connection(self, home: Path, open_one: Callable[[], Connection]) -> Connection:
        """Return the connection to the server of a home, opened if there is none, or only one that either side has closed."""
        connection = self._connections.get(home)
        if connection is None or not connection.is_alive():
            if connection is not None:
                connection.close()
            connection = self._connections[home] = open_one()
        return connection

    def written(self, dataset: NodeDataset) -> WrittenFiles | None:
        """Return which files of a dataset count as written; see ``written_files``."""
        if not dataset.runtime_dir or not dataset.manifest.url.startswith("/"):
            return written_files(dataset)
        found = self._written.get(dataset.runtime_dir)
        if found is None:
            found = written_files(dataset)
            assert found is not None  # its objects are files
            self._written[dataset.runtime_dir] = found
        return found

    def close(self) -> None:
        """Let go of all of it."""
        for connection in self._connections.values():
            connection.close()
        for written in self._written.values():
            written.close()
        self._connections.clear()
        self._written.clear()


class Reports(Protocol):
    """A reader for one thread at a time: an ``ObjectReader``, or an object that has one."""

    def report(self) -> None:
        """The server knows of all reads that have ended."""

    def close(self) -> None:
        """Report, and let go of what is open."""


R = TypeVar("R", bound=Reports)


class IdleReaders(Generic[R]):
    """Readers of one dataset for many threads: a reader serves one read at a time, and then waits here for the next.

    A process that ends reports the last reads.

    **Threads and processes**: any thread, without a lock; a forked child begins with none.
    """

    def __init__(self) -> None:
        self._idle: dict[int, list[R]] = {}  # by process
        self._end: tuple[int, util.Finalize[Any]] | None = None
        self._is_closed = False

    @contextmanager
    def one(self, make: Callable[[], R]) -> Iterator[R]:
        """Inside it, a reader is no other thread's.

        Args:
            make: Makes a reader that shares nothing with others; called when none waits.
        """
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            reader = idle.pop()
        except IndexError:
            if (
                self._end is None or self._end[0] != os.getpid()
            ):  # a forked child forgets what its parent has registered
                self._end = os.getpid(), util.Finalize(None, _close_idle, args=(ref(self),), exitpriority=10)
            reader = make()
        try:
            yield reader
        finally:
            idle.append(reader)
            if self._is_closed:
                self.close_idle()

    def each(self) -> Iterator[R]:
        """Yield the readers that are not in use; each is no other thread's until the next one is yielded."""
        idle = self._idle.get(os.getpid(), [])
        for reader in _taken(idle):
            yield reader
            idle.append(reader)

    def report(self) -> None:
        """The server knows of all reads that have ended, but for those of readers that are in use."""
        for reader in self.each():
            reader.report()

    def close_idle(self) -> None:
        """As ``report``; readers that are not in use are closed."""
        for reader in _taken(self._idle.get(os.getpid(), [])):
            reader.close()

    def close(self) -> None:
        """As ``close_idle``; readers that are in use are closed after their read."""
        self._is_closed = True
        if self._end is not None and self._end[0] == os.getpid():
            self._end[1].cancel()
        self.close_idle()


def _close_idle(readers: ref[IdleReaders[Any]]) -> None:
    found = readers()
    if found is not None:
        found.close_idle()


def _taken(idle: list[R]) -> Iterator[R]:
    """Take as many readers as there are now; no other thread has them then."""
    with contextlib.suppress(IndexError):  # another thread may take the last one
        for _ in range(len(idle)):
            yield idle.pop(0)
