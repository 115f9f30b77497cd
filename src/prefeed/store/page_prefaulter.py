"""A reservation whose next part is made by a thread, so that whoever writes does not wait for the kernel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from prefeed.store.reservation import Reservation

_AHEAD_BYTES: Final = 8 * 1024**2


class PageMaker(Reservation):
    """Part of a mapped file that is backed by pages, and up to 8 MiB more than was asked for, from the first time on.

    Making the pages of an object takes the kernel as long as copying it there; measured, the loop of a server that
    fills its tier had 20 % more time for objects (2026-11, docs/adr/0001-store.md).

    **Ownership.** ``close`` ends the thread.

    **Threads.** One asks. Pages are made, and the file is mapped anew, by one thread at a time.
    """

    def __init__(self, path: Path, *, reserved_bytes: int, map_bytes: int) -> None:
        super().__init__(path, reserved_bytes=reserved_bytes, map_bytes=map_bytes)
        self._lock = threading.Lock()
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def try_reserve(self, upto_bytes: int, *, from_bytes: int = 0) -> bool:
        """Do what ``Reservation`` does; pages that there are already are not waited for."""
        is_there = self.has_pages(upto_bytes, from_bytes=from_bytes)
        if not is_there:
            with self._lock:
                is_there = super().try_reserve(upto_bytes, from_bytes=from_bytes)
        wanted = min(upto_bytes + _AHEAD_BYTES, self.map_bytes)
        if is_there and self.reserved_bytes < wanted:
            self._ask(wanted)
        return is_there

    def remap(self, map_bytes: int, resize: Callable[[int], bool]) -> None:
        """Let the file be mapped anew with another size, while no pages are made; the function returns False if it was not."""
        with self._lock:
            if resize(map_bytes):
                self.remapped(map_bytes)

    def release(self, from_bytes: int) -> None:
        """Do what ``Reservation`` does, while no pages are made."""
        with self._lock:
            super().release(from_bytes)

    def close(self) -> None:
        """Close the file, once what is being made is there; its pages stay."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread.join()
            self._thread = None
        super().close()

    def _ask(self, upto_bytes: int) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="prefeed-pages", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads are to be had: who writes makes them
                thread.start()
                self._thread = thread
        if self._thread is not None:
            self._asked.put(upto_bytes)

    def _run(self) -> None:
        while (upto_bytes := self._asked.get()) is not None:
            with self._lock, contextlib.suppress(OSError):  # who writes comes to the same error, and tells of it
                super().try_reserve(upto_bytes)
