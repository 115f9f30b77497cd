"""Provides time as an argument: production code passes ``time.monotonic``, tests pass their own clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Clock = Callable[[], float]
"""Returns seconds since an arbitrary start and never runs backwards."""


@contextmanager
def call_periodically(act: Callable[[], None], *, every_seconds: float, name: str) -> Iterator[None]:
    """Call a function periodically in a thread during the block. OSErrors of the function are ignored."""
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
