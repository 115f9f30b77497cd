"""Runs a function for a limited time."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

__all__ = ["run_within"]

_AGAIN_SECONDS: Final = 0.01
"""Time between two interrupts of a thread, because a program's code may catch the first exception."""


class _TooLongError(SystemExit):
    """Exception that ends the thread. Not an ``Exception``, which a program's code may catch."""


def run_within(seconds: float, function: Callable[[], None]) -> bool:
    """Run a function in a thread, and interrupt it after a time limit. Return whether it completed.

    The thread has ended when this function returns. A call into C is interrupted when it returns.
    """

    def run() -> None:
        with suppress(_TooLongError):
            function()

    thread = threading.Thread(target=run, name="prefeed-limited", daemon=True)  # programs may count unnamed threads
    try:
        thread.start()
    except RuntimeError:  # no more threads allowed
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
