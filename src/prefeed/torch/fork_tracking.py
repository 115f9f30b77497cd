"""Forked children of this process that may still read what was shared with them when they were forked.

A child has the parent's memory as it was at the fork, shared mappings included. What it may look at must not be used
for something else before it has ended.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

__all__ = ["Child", "before_each_fork"]


class Child:
    """A child that is forked now or was forked, and its own children.

    It has one end of a pipe, which the kernel closes when it ends or runs another program; nobody writes into it.

    **Ownership**: whoever keeps the object; the descriptor is closed with it.
    """

    def __init__(self) -> None:
        self._ours: Connection | None = None
        self._theirs: Connection | None = None
        try:
            self._ours, self._theirs = multiprocessing.Pipe(duplex=False)
        except OSError:
            pass  # no descriptor left: it counts as one that never ends

    def has_ended(self) -> bool:
        """Return True when nobody is left who has the memory of the fork; does not block."""
        return self._ours is not None and self._ours.poll()

    def _was_forked(self) -> None:
        """In the parent; also when the fork failed, and then nobody has the other end."""
        if self._theirs is not None:
            self._theirs.close()

    def _is_this(self) -> None:
        """In the child: keep the end of the pipe for life."""
        if self._ours is not None:
            self._ours.close()
        _inherited.append(self._theirs)


class _Forking(threading.local):
    child: Child | None = None


_inherited: list[Connection | None] = []
_forking = _Forking()  # a thread of its own may fork between this one's hooks
_asked: list[Callable[[Callable[[], Child]], None]] = []


def before_each_fork(tell: Callable[[Callable[[], Child]], None]) -> None:
    """Have a function called before each fork of this process, with a function that returns the child.

    The latter is called by those who have something that the child may read: a pipe is made only then.
    """
    _asked.append(tell)


def _before() -> None:
    _forking.child = None
    for tell in _asked:
        tell(_child_to_be)


def _child_to_be() -> Child:
    if _forking.child is None:
        _forking.child = Child()
    return _forking.child


def _after_in_parent() -> None:
    child, _forking.child = _forking.child, None
    if child is not None:
        child._was_forked()


def _after_in_child() -> None:
    child, _forking.child = _forking.child, None
    if child is not None:
        child._is_this()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
