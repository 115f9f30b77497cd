"""Moments in which a loader's worker has nothing to do: all batches asked of it are made, and the loop is busy with others.

torch's worker asks its queue for the next batch then. So that is where audits are made that can wait: in the worker's own
thread, as any other sample. A loop that is always waiting for its workers leaves no such moment: then they are made when the
worker is told to end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from queue import Empty
from types import FrameType
from typing import Any, Final

from prefeed.stage.auditing import waiting

_IDLE_SECONDS: Final = 0.002
"""A loop that takes a batch at once asks for the next one sooner than that."""


def audit_when_idle(worker: FrameType, scope: Callable[[], AbstractContextManager[Any]]) -> None:
    """Make audits from now on whenever this worker has nothing to do.

    Args:
        worker: torch's loop, which reads from ``index_queue``; one of another torch, without that, is left alone.
        scope: Opens what samples are made in.
    """
    queue: Any = worker.f_locals.get("index_queue")
    if callable(getattr(queue, "get", None)):
        queue.get = _Asking(queue.get, scope).get
        waiting.is_attended = True


class _Asking:
    """In place of the ``get`` of a worker's queue."""

    def __init__(self, original: Callable[..., Any], scope: Callable[[], AbstractContextManager[Any]]) -> None:
        self._original = original
        self._scope = scope

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while waiting and block:
            try:
                return self._ended(self._original(timeout=_IDLE_SECONDS))
            except Empty:
                with self._scope():
                    waiting.make_one()
        return self._ended(self._original(block, timeout))

    def _ended(self, asked: Any) -> Any:
        if asked is None and waiting:
            with self._scope():
                waiting.make_rest()
        return asked
