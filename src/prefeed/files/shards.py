"""Shards in the order in which they are opened: the next ones are fetched while one is read.

order     a.tar        b.tar        c.tar        d.tar
          |== read ==>|             |            not begun: the bytes that may be ahead are
                 |== being fetched =======>|
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Final, Generic, TypeVar

from prefeed.client.block_file import BlockFile
from prefeed.config import Config, settings_of
from prefeed.files.opening import open as open_object

_MOST_AHEAD: Final = 16
"""Shards that are open behind the one that is read: each costs a request when it is opened."""

_AT_ONCE: Final = 2
"""Number opened at a time: a reader that waits for the one that is due waits for these requests."""

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
    ahead = OpenedAhead(iter(urls), lambda url: open_object(url, readahead=True, config=settings), settings)
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


class OpenedAhead(Generic[Item]):
    """Items in order, and their files; the next files are open already, and fetched.

    What opening an item raised stands in the place of its file; None in the place of one that is not to be opened ahead. An
    error of the items themselves is raised where it is due.

    **Ownership**: files that were given belong to the caller; ``close`` closes the others. **Threads**: one.
    """

    def __init__(self, items: Iterator[Item], open_one: Callable[[Item], File | None], config: Config) -> None:
        """Open ahead.

        Args:
            items: In the order in which they are read.
            open_one: Opens the object of an item.
            config: Says how much may be fetched ahead.
        """
        self._items = items
        self._open = open_one
        self._most_bytes = config.lookahead // _SHARE
        self._waiting: deque[tuple[Item, File | Exception | None]] = deque()
        self._end: Exception | None = None

    def __iter__(self) -> Iterator[tuple[Item, File | Exception | None]]:
        return self

    def __next__(self) -> tuple[Item, File | Exception | None]:
        """Return the next item and its file; the items behind it are opened."""
        if not self._waiting and self._end is None:
            self._take_one()
        if not self._waiting:
            end, self._end = self._end or StopIteration(), StopIteration()
            try:
                raise end
            finally:
                del end  # as in ``shards``
        due = self._waiting.popleft()
        for _ in range(_AT_ONCE):
            if self._end is None and len(self._waiting) < _MOST_AHEAD and self._bytes_ahead < self._most_bytes:
                self._take_one()
        return due

    def close(self) -> None:
        """Close the files that were not given; no more are opened."""
        self._end = StopIteration()
        while self._waiting:
            _, file = self._waiting.popleft()
            if file is not None and not isinstance(file, Exception):
                file.close()

    @property
    def _bytes_ahead(self) -> int:
        return sum(file.size for _, file in self._waiting if isinstance(file, BlockFile))

    def _take_one(self) -> None:
        try:
            item = next(self._items)
        except Exception as err:  # noqa: BLE001 - raised when it is due; Ctrl-C is due at once
            self._end = err
            return
        try:
            file: File | Exception | None = self._open(item)
            if isinstance(file, BlockFile):
                file.begin()
        except Exception as err:  # noqa: BLE001 - raised when it is due
            file = err
        self._waiting.append((item, file))
