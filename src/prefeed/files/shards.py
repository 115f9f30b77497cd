"""Prefetches shards in the order of reading. While one shard is read, the next ones are opened and fetched.

order     a.tar        b.tar        c.tar        d.tar
          |== read ==>|             |            not started: the lookahead is used up
                 |== fetched ahead ========>|
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
"""Maximum number of shards open ahead of the current one. Opening a shard costs one request."""

_MAX_OPENING: Final = 2
"""Maximum number of shards that are being opened concurrently."""

_SHARE: Final = 4
"""Divisor of the lookahead that gives the share for the shards after the current one."""

Item = TypeVar("Item")
File = BlockFile | BinaryIO


def shards(urls: Iterable[str | os.PathLike[str]], *, config: Config | None = None) -> Iterator[File]:
    """Yield each object as an open file, and prefetch the next ones.

    A file is closed when the next one is requested. The error of an object is raised when its turn comes.

    Args:
        urls: URLs in the order of reading, as in ``prefeed.open``. Up to 16 are consumed ahead.
        config: Settings; defaults to those in force in the process.

    Raises:
        SourceError: The origin refused a request or did not respond.
    """
    settings = settings_of(config)
    ahead = FilePrefetcher(iter(urls), lambda url: open_object(url, readahead=True, config=settings), settings)
    try:
        for _, file in ahead:
            if isinstance(file, Exception):
                try:
                    raise file
                finally:
                    del file  # The error and this frame would form a reference cycle.
            assert file is not None
            with file:
                yield file
    finally:
        ahead.close()


_being_opened: Final[set[threading.Thread]] = set()


def close() -> None:
    """Close the connections that open files of this process share. A later read opens them again.

    Waits for shards that are being opened, because their threads would connect again.
    """
    for thread in list(_being_opened):
        thread.join()
    close_blocks()


class FilePrefetcher(Generic[Item]):
    """Iterator over items and their files that opens and fetches the next files ahead.

    If opening fails, the exception is returned instead of the file. None is returned for items that are not opened here. An error of
    the iterator of items is raised when its turn comes.

    **Ownership**: returned files belong to the caller, and ``close`` closes the others. **Threads**: one thread calls the iterator,
    which consumes the items in that thread. Files ahead are opened in background threads.
    """

    def __init__(self, items: Iterator[Item], open_one: Callable[[Item], File | None], config: Config) -> None:
        """Create a prefetcher.

        Args:
            items: Items in the order of reading.
            open_one: Function that opens the object of an item, called in any thread.
            config: Settings with the size of the lookahead.
        """
        self._items = items
        self._open = open_one
        self._max_bytes = config.limits.lookahead_bytes // _SHARE
        self._waiting: deque[_Opening[Item]] = deque()
        self._end: Exception | None = None

    def __iter__(self) -> Iterator[tuple[Item, File | Exception | None]]:
        return self

    def __next__(self) -> tuple[Item, File | Exception | None]:
        """Return the next item and its file, and start to open the following ones."""
        if not self._waiting and self._end is None:
            self._take_one()
        if not self._waiting:
            end, self._end = self._end or StopIteration(), StopIteration()
            try:
                raise end
            finally:
                del end  # See ``shards``.
        due = self._waiting.popleft()
        result = due.result()
        while self._end is None and self._can_open():
            if (opening := self._take_one()) is not None:
                opening.begin()
        return due.item, result

    def close(self) -> None:
        """Close the files that were not returned, without waiting. Files that are being opened are closed afterwards."""
        self._end = StopIteration()
        while self._waiting:
            self._waiting.popleft().abandon()

    def _can_open(self) -> bool:
        """Return True if the limits allow to open another file."""
        if len(self._waiting) >= _MAX_AHEAD or sum(not one.is_done for one in self._waiting) >= _MAX_OPENING:
            return False
        return sum(one.size_bytes for one in self._waiting) < self._max_bytes

    def _take_one(self) -> _Opening[Item] | None:
        """Take the next item and add it to the queue; return None at the end."""
        try:
            item = next(self._items)
        except Exception as err:  # noqa: BLE001 - raised when its turn comes; only Ctrl-C is raised now
            self._end = err
            return None
        opening = _Opening(item, self._open)
        self._waiting.append(opening)
        return opening


class _Opening(Generic[Item]):
    """Item and its file, which is opened by a thread that ``begin`` starts, or otherwise by ``result``."""

    def __init__(self, item: Item, open_one: Callable[[Item], File | None]) -> None:
        self.item = item
        self.is_done: bool = False
        self._open = open_one
        self._result: File | Exception | None = None
        self._thread: threading.Thread | None = None
        self._process_id = os.getpid()
        self._is_abandoned = False

    def begin(self) -> None:
        """Open the file in a background thread."""
        thread = threading.Thread(target=self._run_in_thread, name="prefeed-open", daemon=True)
        _being_opened.add(thread)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # No thread is available, so ``result`` opens the file.
            _being_opened.discard(thread)

    def result(self) -> File | Exception | None:
        """Return the file or the exception, once; None if the item is not opened here."""
        if self._thread is not None and self._process_id == os.getpid():
            self._thread.join()
        if not self.is_done:
            self._run()
        result, self._result = self._result, None  # Avoid a reference cycle through an error's traceback.
        return result

    def abandon(self) -> None:
        """Close the file, now or after it was opened.

        Does not wait, because garbage collection may call this in any thread, even in the one that opens the file.
        """
        self._is_abandoned = True
        if self.is_done:
            self._close_file()

    @property
    def size_bytes(self) -> int:
        """Size of the object; 0 until it is known."""
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
        except Exception as err:  # noqa: BLE001 - raised when its turn comes
            self._result = err
        self.is_done = True

    def _close_file(self) -> None:
        file, self._result = self._result, None
        if file is not None and not isinstance(file, Exception):
            file.close()
