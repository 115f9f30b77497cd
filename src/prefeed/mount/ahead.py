"""Prefetches for the programs on a mount: predicted reads of each process group become a plan on the node server."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from prefeed.client.consumer import Consumer
from prefeed.mount.order import OrderPredictor, Prediction

_READS_PER_UPDATE: Final = 16
_MAX_PENDING: Final = 4096


class MountReadAhead:
    """Sends the predicted reads of each process group to the node server.

    **Ownership.** The creator closes it. **Threads and processes.** Any thread. **Blocking.** One thread at a time waits for the
    server; the others only record their reads.
    """

    def __init__(
        self,
        num_objects: int,
        open_consumer: Callable[[], Consumer | None],
        group_of: Callable[[int], int] = os.getpgid,
    ) -> None:
        """Predict reads of ``num_objects`` objects.

        Args:
            num_objects: Number of objects in the manifest.
            open_consumer: Connects to the node server; returns None if there is no server.
            group_of: Returns the process group of a thread. Raises ``OSError`` if the thread has ended.
        """
        self._orders = OrderPredictor(num_objects)
        self._open_consumer = open_consumer
        self._group_of = group_of
        self._groups: dict[int, int] = {}
        self._reads: deque[tuple[int, int]] = deque(maxlen=_MAX_PENDING)
        self._lock = threading.Lock()
        self._consumers: dict[int, Consumer] = {}

    def record_read(self, task: int, object_id: int, *, is_hit: bool) -> None:
        """Record that a thread starts to read an object. Before a read that waits, the server gets the next plan."""
        self._reads.append((task, object_id))
        if (not is_hit or len(self._reads) >= _READS_PER_UPDATE) and self._lock.acquire(blocking=False):
            try:
                self._process_reads()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the connections, which ends the plans."""
        with self._lock:
            for consumer in self._consumers.values():
                consumer.close()
            self._consumers.clear()

    def _process_reads(self) -> None:
        while self._reads:
            task, object_id = self._reads.popleft()
            group = self._find_group(task)
            following = self._orders.record_read(group, object_id)
            if following is not None:
                self._send_plan(group, following)

    def _find_group(self, task: int) -> int:
        group = self._groups.get(task)
        if group is None:
            try:
                group = self._group_of(task)
            except OSError:
                group = 0  # ended, or in another namespace
            if len(self._groups) >= _MAX_PENDING:
                self._groups.clear()  # thread ids are reused
            self._groups[task] = group
        return group

    def _send_plan(self, group: int, following: Prediction) -> None:
        consumer = self._consumers.get(group)
        if consumer is None:
            opened = self._open_consumer()
            if opened is None:
                self._orders.forget_sent(group)
                return
            self._close_unused()
            consumer = self._consumers[group] = opened
            following = following._replace(is_new=True)
        if following.is_new:
            consumer.begin(np.array(following.ids, np.int64), is_partial=True)
        else:
            if following.ids:
                consumer.extend(np.array(following.ids, np.int64), are_read_soon=False)
            consumer.advance(following.position)

    def _close_unused(self) -> None:
        """Close the plans of groups that are no longer predicted."""
        for group in set(self._consumers) - set(self._orders.groups()):
            self._consumers.pop(group).close()
