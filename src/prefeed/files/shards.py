"""Shards in the order in which they are opened: the next ones are fetched while one is read.

order     a.tar        b.tar        c.tar        d.tar
          |== read ==>|             |            not begun: the bytes that may be ahead are
                 |== being fetched =======>|
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, Generic, TypeVar

from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import close_blocks
from prefeed.config import Config, settings_of
from prefeed.files.opening import open as open_object

_MAX_AHEAD: Final = 16
"""Shards that are open behind the one that is read: each costs a request when it is opened."""

_MAX_OPENING: Final = 2
"""Number opened at a time."""

_SHARE: Final = 4
"""This fraction of the lookahead, as a divisor, is for the shards behind the one that is read."""

Item = TypeVar("Item")
File = BlockFile | BinaryIO


def shards(urls: Iterable[str | os.PathLike[str]], *, config: Config | None = None) -> Iterator[File]:
    """Yield each object as an open file, in this order; the next ones are fetched while one is read.

    A file is closed when the next one is asked for. The error of an object is raised where the object would be read.

    Args:
        urls: In the order in which they are read; taken up to 16 ahead. See ``prefeed.open``.
        config: Settings; defaults to those in force in the process.

    Raises:
        SourceError: The origin's own error.
    """
    settings = settings_of(config)
    ahead = FilePrefetcher(iter(urls), lambda url: open_object(url, readahead=True, config=settings), settings)
    try:
        for _, file in ahead:
            if isinstance(file, Exception):
                try:
                    raise file
                finally:
                    del file  # an error and the frame that raises it would keep each other
            assert file is not None
            with file:
                yield file
    finally:
        ahead.close()


_being_opened: Final[set[threading.Thread]] = set()


def close() -> None:
    """Let go of the connections that open files of this process share; a later read opens them again.

    Shards that are just being opened ahead are open before: a thread that was not waited for would connect again.
    """
    for thread in list(_being_opened):
        thread.join()
    close_blocks()


class FilePrefetcher(Generic[Item]):
    """Items in order, and their files; the next files are being opened, and fetched.

    What opening an item raised stands in the place of its file; None in the place of one that is not to be opened ahead. An
    error of the items themselves is raised where it is due.

    **Ownership**: files that were given belong to the caller; ``close`` closes the others. **Threads**: one calls it, and items are
    drawn in that one; those that are not due yet are opened in threads of their own.
    """

    def __init__(self, items: Iterator[Item], open_one: Callable[[Item], File | None], config: Config) -> None:
        """Open ahead.

        Args:
            items: In the order in which they are read.
            open_one: Opens the object of an item, in any thread.
            config: Says how much may be fetched ahead.
        """
        self._items = items
        self._open = open_one
        self._max_bytes = config.limits.lookahead_bytes // _SHARE
        self._waiting: deque[_Opening[Item]] = deque()
        self._end: Exception | None = None

    def __iter__(self) -> Iterator[tuple[Item, File | Exception | None]]:
        return self

    def __next__(self) -> tuple[Item, File | Exception | None]:
        """Return the next item and its file; the items behind it are being opened."""
        if not self._waiting and self._end is None:
            self._take_one()
        if not self._waiting:
            end, self._end = self._end or StopIteration(), StopIteration()
            try:
                raise end
            finally:
                del end  # as in ``shards``
        due = self._waiting.popleft()
        result = due.result()
        while self._end is None and self._can_open():
            if (opening := self._take_one()) is not None:
                opening.begin()
        return due.item, result

    def close(self) -> None:
        """Close the files that were not given, those that are being opened when they are open; waits for nothing."""
        self._end = StopIteration()
        while self._waiting:
            self._waiting.popleft().abandon()

    def _can_open(self) -> bool:
        """Return whether one more may be opened."""
        if len(self._waiting) >= _MAX_AHEAD or sum(not one.is_done for one in self._waiting) >= _MAX_OPENING:
            return False
        return sum(one.size_bytes for one in self._waiting) < self._max_bytes

    def _take_one(self) -> _Opening[Item] | None:
        """Draw the next item, which waits from now on."""
        try:
            item = next(self._items)
        except Exception as err:  # noqa: BLE001 - raised when it is due; Ctrl-C is due at once
            self._end = err
            return None
        opening = _Opening(item, self._open)
        self._waiting.append(opening)
        return opening


class _Opening(Generic[Item]):
    """An item, and its file once it is open: by a thread that ``begin`` starts, else by ``result``."""

    def __init__(self, item: Item, open_one: Callable[[Item], File | None]) -> None:
        self.item = item
        self.is_done: bool = False
        self._open = open_one
        self._result: File | Exception | None = None
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()
        self._is_abandoned = False

    def begin(self) -> None:
        """Open the file in a thread: another one is read meanwhile."""
        thread = threading.Thread(target=self._run_in_thread, name="prefeed-open", daemon=True)
        _being_opened.add(thread)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # no more threads are to be had: it is opened when it is due
            _being_opened.discard(thread)

    def result(self) -> File | Exception | None:
        """Return the file, or what opening it raised, once; None if it is not to be opened."""
        if self._thread is not None and self._process_id == os.getpid():
            self._thread.join()
        if not self.is_done:
            self._run()
        result, self._result = self._result, None  # an error would keep itself, through the frame that met it
        return result

    def abandon(self) -> None:
        """The file is not wanted any more: it is closed, now or when it is open.

        Waits for nothing: what holds it may be collected in any thread, also the one that opens it, or one that this waits for.
        """
        self._is_abandoned = True
        if self.is_done:
            self._close_file()

    @property
    def size_bytes(self) -> int:
        """Size of the object; 0 while it is not known."""
        return self._result.size if isinstance(self._result, BlockFile) else 0

    def _run_in_thread(self) -> None:
        try:
            self._run()
            if self._is_abandoned:
                self._close_file()
        finally:
            _being_opened.discard(threading.current_thread())

    def _run(self) -> None:
        try:
            file = self._open(self.item)
            if isinstance(file, BlockFile):
                file.begin()
            self._result = file
        except Exception as err:  # noqa: BLE001 - raised when it is due
            self._result = err
        self.is_done = True

    def _close_file(self) -> None:
        file, self._result = self._result, None
        if file is not None and not isinstance(file, Exception):
            file.close()
