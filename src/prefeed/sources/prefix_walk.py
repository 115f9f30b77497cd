"""Listing an object store prefix by prefix, many at a time: each answer names a thousand objects, and takes its time.

A store lists in order, a page after the other, and says of no page where it begins before the one before it has come. What
has many objects below few prefixes is therefore listed prefix by prefix; a flat one, and one with few objects a prefix, page
by page, which costs the fewest requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from queue import Empty, Queue
from typing import Final

from prefeed.types import ObjectInfo

THREADS: Final = 32
_LEAST_MEAN: Final = 100
"""Objects a prefix, on average over the first pages, below which pages are listed one after the other: a tenth of a page.

With it, prefix by prefix is at most ten times the requests, 32 at a time: a third of the time.
"""

_LOOK_AHEAD_PAGES: Final = 2
_DRAIN_SECONDS: Final = 0.05

ListPages = Callable[[str], Iterator[list[ObjectInfo]]]
"""Yields all objects below a prefix, ``""`` the root, page after page; a page is one request."""

ListLevel = Callable[[str], tuple[list[ObjectInfo], list[str]]]
"""Returns the objects right below a prefix, and the prefixes there, without a slash at their ends."""


def walk_prefixes(
    list_pages: ListPages, list_level: ListLevel, *, threads: int = THREADS
) -> Iterator[list[ObjectInfo]]:
    """Yield every object below the root once, in batches, in any order.

    Of a batch that waits to be taken the others wait too: memory is that of some pages for each thread, and of the names of
    the prefixes. The first error of any request is raised.

    Args:
        list_pages: Asks for pages.
        list_level: Asks for one level.
        threads: Most requests at a time.
    """
    return _Walk(list_pages, list_level, threads).batches()


class _Walk:
    """One listing.

    **Threads**: the pool's list, the caller's takes.
    """

    def __init__(self, list_pages: ListPages, list_level: ListLevel, threads: int) -> None:
        self._list_pages = list_pages
        self._list_level = list_level
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="prefeed-list")
        self._found: Queue[list[ObjectInfo] | BaseException | None] = Queue(maxsize=2 * threads)
        self._lock = threading.Lock()
        self._num_unfinished = 0
        self._num_running = 0
        self._is_stopped = False

    def batches(self) -> Iterator[list[ObjectInfo]]:
        self._submit("")
        try:
            while (found := self._found.get()) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            self._is_stopped = True
            self._pool.shutdown(wait=False, cancel_futures=True)
            while self._num_running:  # what they found is taken, and thrown away
                try:
                    self._found.get(timeout=_DRAIN_SECONDS)
                except Empty:
                    continue

    def _submit(self, prefix: str) -> None:
        with self._lock:
            if self._is_stopped:
                return
            self._num_unfinished += 1
            self._pool.submit(self._run, prefix)

    def _run(self, prefix: str) -> None:
        with self._lock:
            self._num_running += 1
        try:
            if not self._is_stopped:
                self._list(prefix)
        except BaseException as err:  # noqa: BLE001 - it is raised to whoever takes what is found
            self._found.put(err)
        finally:
            with self._lock:
                self._num_unfinished -= 1
                is_last = self._num_unfinished == 0
            if is_last:
                self._found.put(None)
            with self._lock:
                self._num_running -= 1

    def _list(self, prefix: str) -> None:
        pages = self._list_pages(prefix)
        first = [page for _, page in zip(range(_LOOK_AHEAD_PAGES), pages, strict=False)]
        if len(first) == _LOOK_AHEAD_PAGES and _is_worth_it(first, prefix):
            objects, prefixes = self._list_level(prefix)
            directories = set(prefixes)
            self._give([info for info in objects if info.size_bytes or info.path not in directories])
            for below in prefixes:
                self._submit(below)
            return
        for page in chain(first, pages):
            if self._is_stopped:
                return
            self._give(page)

    def _give(self, objects: list[ObjectInfo]) -> None:
        if objects:
            self._found.put(objects)


def _is_worth_it(pages: list[list[ObjectInfo]], prefix: str) -> bool:
    """Return whether these objects lie below few prefixes."""
    start = len(prefix) + 1 if prefix else 0
    num_objects, below = 0, set()
    for page in pages:
        for info in page:
            name, slash, _ = info.path[start:].partition("/")
            below.add(name + slash)
        num_objects += len(page)
    return num_objects >= _LEAST_MEAN * len(below)
