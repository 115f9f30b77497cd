"""Signals that schedulers send to every process of a job, for example USR1 before its time is over: they are for the trainer.

The default of nearly all of them is to end the process. prefeed's processes end by TERM, INT and QUIT, and by faults.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGQUIT, SIGTERM
from typing import Final

END_SIGNALS: Final = frozenset({SIGTERM, SIGINT, SIGQUIT})
"""Ask a process of prefeed's to end."""

_KEPT: Final = {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,  # faults
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH,  # end nothing by default
}  # fmt: skip

JOB_SIGNALS: Final = frozenset(signal.valid_signals() - END_SIGNALS - _KEPT)
"""Would end a process by default, and mean nothing to one of prefeed's."""


@contextmanager
def ignore_job_signals() -> Iterator[None]:
    """Ignore ``JOB_SIGNALS`` inside the block, also in the processes that are started there; in the main thread only."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in JOB_SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, JOB_SIGNALS)  # after a start inside ``hold_job_signals``
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_job_signals() -> Iterator[None]:
    """Start a process inside the block: ``JOB_SIGNALS`` wait in it until it ignores them, so that none ends it before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
