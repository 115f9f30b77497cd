"""Signals that schedulers send to every process of a job, for example USR1 before its time is over: they are for the trainer.

The default of nearly all of them is to end the process. prefeed's processes end by TERM, INT and QUIT, and by faults.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGQUIT, SIGTERM
from typing import Final

ENDING: Final = frozenset({SIGTERM, SIGINT, SIGQUIT})
"""Ask a process of prefeed's to end."""

_KEPT: Final = {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,  # faults
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH,  # end nothing by default
}  # fmt: skip

OF_JOBS: Final = frozenset(signal.valid_signals() - ENDING - _KEPT)
"""Would end a process by default, and mean nothing to one of prefeed's."""


@contextmanager
def ignoring_signals_of_jobs() -> Iterator[None]:
    """Ignore ``OF_JOBS`` inside the block, also in the processes that are started there; in the main thread only."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in OF_JOBS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, OF_JOBS)  # after a start inside ``holding_signals_of_jobs``
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def holding_signals_of_jobs() -> Iterator[None]:
    """Start a process inside the block: ``OF_JOBS`` wait in it until it ignores them, so that none ends it before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OF_JOBS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
