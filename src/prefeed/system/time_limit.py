"""Runs code of a program for a limited time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["run_within"]

_AGAIN_SECONDS: Final = 0.01
"""Time after which a thread that still runs is interrupted again: its code may have caught the first exception."""


class _TooLongError(SystemExit):
    """Ends the thread; it is no ``Exception``, which code of a program may catch."""


def run_within(seconds: float, function: Callable[[], None]) -> bool:
    """Run a function in a thread, and interrupt it if it takes longer; return whether it came to its end.

    The thread has ended when this returns. Code that waits inside a function written in C is interrupted when that returns.
    """

    def run() -> None:
        with suppress(_TooLongError):
            function()

    thread = threading.Thread(target=run, name="prefeed-limited", daemon=True)  # a program may count unnamed ones
    try:
        thread.start()
    except RuntimeError:  # the limit of threads is reached
        return False
    is_late = True
    try:
        thread.join(seconds)
        is_late = thread.is_alive()
    finally:
        while thread.is_alive():
            interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
            interrupt(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TooLongError))
            thread.join(_AGAIN_SECONDS)
    return not is_late
