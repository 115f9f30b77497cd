"""Files that loaders' processes have written, once nobody has them open for writing any more: they may be cached again."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from prefeed.server.node import Node
from prefeed.sources.written import Change, WrittenFiles, still_open


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
            self._written.drop(end, [*kept, *self._forget(closed)])

    def _forget(self, changes: Sequence[Change]) -> list[Change]:
        """Take what is cached of these files for out of date: it is asked for anew before anybody is given it.

        Returns:
            Those of manifests. What these list never changes: their readers go on reading the file itself.
        """
        listed: list[Change] = []
        names = {name for change in changes for name in (change.path, change.real)}
        inodes = {change.identity for change in changes if change.identity}
        is_moved = any(change.below for change in changes)
        for dataset in self._node.datasets.values():
            if (catalogue := dataset.catalogue) is not None:
                ids = None if is_moved else catalogue.ids_of(names, inodes)
                self._node.checks.outdate(dataset.number, ids)
            else:
                listed += [change for change in changes if self._node.registry.lists(dataset, change)]
        return listed

    def close(self) -> None:
        """Let go of the records."""
        self._written.close()
