"""Files that loaders' processes have written, once nobody has them open for writing any more: they may be cached again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from prefeed.server.node import Node
from prefeed.sources.written import Change, WrittenFiles, still_open


class Rewritten:
    """Drops the records of written files when an epoch begins; what was cached of them goes first.

    Args:
        written: Their records.
        node: Has what is cached.
        call_soon: Runs a function in the loop's thread.

    **Threads**: the loop's; /proc is read in one of its own.
    """

    def __init__(self, written: WrittenFiles, node: Node, *, call_soon: Callable[[Callable[[], None]], None]) -> None:
        self._written = written
        self._node = node
        self._call_soon = call_soon
        self._is_looking = False

    def epoch_begins(self) -> None:
        """Look which of the files are closed, if there are any, and take these back into the cache's care."""
        self._written.touch()
        if self._is_looking or not self._written.any():
            return
        self._is_looking = True
        threading.Thread(target=self._look, name="prefeed-written", daemon=True).start()

    def close(self) -> None:
        """Let go of the records."""
        self._written.close()

    def _look(self) -> None:
        try:
            changes, end = self._written.changes()
            kept = still_open(changes)
        except OSError:
            changes, kept, end = [], [], 0
        self._call_soon(lambda: self._drop(changes, kept, end))

    def _drop(self, changes: Sequence[Change], kept: Sequence[Change], end: int) -> None:
        self._is_looking = False
        if not end:
            return
        stays = set(kept)
        closed = [change for change in changes if change not in stays]
        listed = self._node.forget_written(closed)
        self._written.drop(end, dict.fromkeys([*kept, *listed]))
