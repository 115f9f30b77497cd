"""Time as an argument: production code is given ``time.monotonic``, tests a clock of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Clock = Callable[[], float]
"""Returns seconds from an arbitrary start; never runs backwards."""


@contextmanager
def call_periodically(act: Callable[[], None], *, every_seconds: float, name: str) -> Iterator[None]:
    """Inside it a thread of this name calls a function again and again; that the function fails with OSError means nothing."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_seconds):
            with suppress(OSError):
                act()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
