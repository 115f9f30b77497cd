"""When replacements are in place: while any thread is inside a scope, or somebody observes writes, or for good."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from prefeed.interception.asking import Asking, asking
from prefeed.interception.places import Places
from prefeed.interception.protocol import FileReader
from prefeed.interception.writing import WriteObserver, observers


class _Process:
    """What the threads of a process share; ``lock`` guards the rest.

    Attributes:
        num_inside: Scopes entered and not left, all threads together.
        is_for_good: Installed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may read files as well
        self.places = Places()
        self.num_inside = 0
        self.is_for_good = False

    def restore_unused(self) -> None:
        """Put everything back, unless somebody needs what is in place."""
        if not self.num_inside and not self.is_for_good and not observers:
            self.places.restore_all()

    def continue_forked(self) -> None:
        """In a forked child: of the threads that were inside, one is left."""
        self.num_inside = asking.depth
        self.restore_unused()
        self.lock.release()


_process = _Process()
os.register_at_fork(
    before=_process.lock.acquire,
    after_in_parent=_process.lock.release,
    after_in_child=_process.continue_forked,
)


_NOBODY: Any = object()


class _Scope:
    __slots__ = ("_before", "_reader")

    def __init__(self, reader: FileReader) -> None:
        self._reader = reader

    def __enter__(self) -> None:
        with _process.lock:
            if _process.places.num_modules != len(sys.modules):
                _process.places.replace_all()
            _process.num_inside += 1
        self._before = vars(asking).get("reader", _NOBODY)
        asking.reader = self._reader
        asking.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is _NOBODY:
            vars(asking).pop("reader", None)
        else:
            asking.reader = self._before
        asking.depth -= 1
        with _process.lock:
            _process.num_inside -= 1
            _process.restore_unused()


def reads_from(reader: FileReader) -> AbstractContextManager[None]:
    """Inside it, and in this thread only, files that are read by path are asked of the reader first.

    Scopes nest: the inner reader is asked alone. Entering costs about a microsecond once installed.
    """
    return _Scope(reader)


def answer_everywhere(reader: FileReader | None) -> None:
    """Outside of every scope, in all threads and in forks, this reader is asked; None: nobody, as at first.

    It takes effect where the replacements are in place; see ``install``.
    """
    Asking.reader = reader


def current_reader() -> FileReader | None:
    """Return who is asked in this thread; None where nobody is."""
    return asking.reader


def install(*, finished: str = "") -> None:
    """Replacements are in place from now on, scope or no scope: entering one is cheaper. Idempotent.

    Args:
        finished: Name of a module that was imported this moment, before anybody could bind what it has.
    """
    with _process.lock:
        _process.is_for_good = True
        _process.places.replace_all(finished=finished)


def uninstall() -> None:
    """Everything is as it was before ``install``, as soon as no thread is inside a scope. Idempotent.

    What someone else has put over a replacement is left alone, and goes on working.
    """
    with _process.lock:
        _process.is_for_good = False
        _process.restore_unused()


def observe_writes(observer: WriteObserver) -> bool:
    """Tell the observer of every file that this process changes, from now on, in all threads and in forks.

    Returns:
        False when that is so already.
    """
    with _process.lock:
        is_new = observer not in observers
        if is_new:
            observers.append(observer)
        _process.places.replace_all()
    return is_new


def end_observing(observer: WriteObserver) -> None:
    """Tell it no more. Idempotent."""
    with _process.lock:
        if observer in observers:
            observers.remove(observer)
            _process.restore_unused()
