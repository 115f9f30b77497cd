"""Handles signals that schedulers send to all processes of a job, for example USR1 before its time limit.

These signals are meant for the trainer, and by default most of them end a process. Processes of prefeed end only at TERM, INT, QUIT and faults.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from signal import SIGINT, SIGQUIT, SIGTERM
from typing import Final

END_SIGNALS: Final = frozenset({SIGTERM, SIGINT, SIGQUIT})
"""Signals that end a process of prefeed."""

_KEPT: Final = {
    signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP,  # faults
    signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
    signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH,  # end nothing by default
}  # fmt: skip

JOB_SIGNALS: Final = frozenset(signal.valid_signals() - END_SIGNALS - _KEPT)
"""Signals that end a process by default, and which processes of prefeed ignore."""


@contextmanager
def ignore_job_signals() -> Iterator[None]:
    """Ignore ``JOB_SIGNALS`` in the block and in processes started there. Only for the main thread."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in JOB_SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, JOB_SIGNALS)  # blocked by a start in ``hold_job_signals``
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def hold_job_signals() -> Iterator[None]:
    """Block ``JOB_SIGNALS`` in processes started in the block, so that none ends before it ignores them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, JOB_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
