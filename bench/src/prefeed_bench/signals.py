"""Lets SIGTERM clean up as Ctrl-C does: servers end, homes and scratch directories go."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Turn SIGTERM into ``SystemExit`` inside the block; main thread only."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
