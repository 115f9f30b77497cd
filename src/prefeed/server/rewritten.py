"""Files that loaders' processes have written, once nobody has them open for writing any more: they may be cached again."""

from __future__ import annotations

import contextlib

from prefeed.server.node import Node
from prefeed.sources.written import WrittenFiles, still_open


class Rewritten:
    """Drops the records of written files when an epoch begins; what was cached of them goes first.

    Args:
        written: Their records.
        node: Has what is cached.

    **Threads**: the loop's, which looks through /proc for it: some milliseconds, where something was written since.
    """

    def __init__(self, written: WrittenFiles, node: Node) -> None:
        self._written = written
        self._node = node

    def epoch_begins(self) -> None:
        """Take the files that are closed back into the cache's care, before the plan of the epoch is registered."""
        self._written.touch()
        if not self._written.any():
            return
        with contextlib.suppress(OSError):  # else they are read from where they lie for one more epoch
            changes, end = self._written.changes()
            kept = dict.fromkeys(still_open(changes))
            closed = [change for change in changes if change not in kept]
            self._written.drop(end, [*kept, *self._node.forget_written(closed)])

    def close(self) -> None:
        """Let go of the records."""
        self._written.close()
