"""Filling the tiers on request: plans that no reader follows, and reports of how far they have come.

::

    into memory ──all there, or no disk tier──→ done
        │ memory is full                          ↑
        ↓                                         │
    looking: what has the disk? ─→ onto disk ─→ looking: what has it now?
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core.table import RESIDENT
from prefeed.server.datasets import Dataset, KeyIndex
from prefeed.server.disk import DiskTier
from prefeed.server.node import Node
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.system.clock import Clock
from prefeed.types import ENTRY_KEY_BYTES, WarmResult

_REPORT_SECONDS: Final = 0.1
"""Pause between two reports of one warm-up."""

_FEED_BYTES: Final = 32 * 1024**2
_MOST_UNWRITTEN_BYTES: Final = 64 * 1024**2
"""More is not fetched for the disk while so much waits for it: with what is on its way it stays below what it drops."""

_FEED_OBJECTS: Final = 4096
_GUESSED_BYTES: Final = 1024**2

Ids = npt.NDArray[np.integer]
Report = Callable[[WarmResult, bool], None]
"""Told how far it has come, and whether that is the end."""


class _Stage(Enum):
    MEMORY = auto()
    LOOKING = auto()
    DISK = auto()
    COUNTING = auto()


class _Look:
    """Which objects of an order the disk tier has, found out in a thread: there may be millions of keys."""

    def __init__(self, disk: DiskTier, dataset: Dataset, ids: Ids) -> None:
        self.on_disk: npt.NDArray[np.bool_] | None = None  # of each object of the order
        self._disk, self._dataset, self._ids = disk, dataset, ids
        threading.Thread(target=self._look, name="prefeed-look", daemon=True).start()

    def _look(self) -> None:
        table = np.frombuffer(self._dataset.entry_keys, dtype=np.uint8).reshape(-1, ENTRY_KEY_BYTES)
        found = np.zeros(len(self._ids), dtype=bool)
        held = self._disk.keys()
        if held:
            found[KeyIndex(held).match(memoryview(table[self._ids].tobytes()))[1]] = True
        self.on_disk = found


@dataclass(slots=True)
class _WarmUp:
    report: Report
    dataset: Dataset
    ids: Ids
    max_in_flight: int
    started: float
    residents_before: int
    stage: _Stage = _Stage.MEMORY
    look: _Look | None = None
    rest: Ids = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    refused_before: int = 0
    num_on_disk: int = 0
    num_to_disk: int = 0


class WarmUps:
    """The warm-ups under way.

    **Threads**: the loop's thread.
    """

    def __init__(self, node: Node, *, clock: Clock, call_later: Callable[[float, Callable[[], None]], None]) -> None:
        self._node = node
        self._clock = clock
        self._call_later = call_later
        self._warm_ups: dict[int, _WarmUp] = {}
        self._consumers = itertools.count(-1, -1)  # clients' own are positive

    def begin(self, dataset: Dataset, report: Report, ids: Ids | None = None, *, max_in_flight: int = 0) -> int:
        """Fill the tiers until all is in them or they are full; return the consumer's number.

        Args:
            dataset: Whose objects they are.
            report: Told how far it is.
            ids: The objects in the order in which they are fetched; None: all.
            max_in_flight: Most at a time; 0: as many as the origin takes.
        """
        consumer = next(self._consumers)
        if ids is None:
            ids = np.arange(dataset.manifest.num_objects, dtype=np.uint32)
        before = int(self._residents(dataset, ids).sum())
        self._warm_ups[consumer] = _WarmUp(report, dataset, ids, max_in_flight, self._clock(), before)
        self._register(consumer, ids)
        if len(self._warm_ups) == 1:
            self._call_later(_REPORT_SECONDS, self._report_regularly)
        return consumer

    def abandon(self, consumer: int) -> None:
        """The client that asked is gone."""
        if self._warm_ups.pop(consumer, None) is not None:
            self._node.scheduler.end_consumer(consumer)

    def report_done(self) -> None:
        """Continue each, and report those that are over; called when all consequences of the last events are done."""
        over = [consumer for consumer, warm_up in self._warm_ups.items() if self._goes_over(consumer, warm_up)]
        for consumer in over:
            warm_up = self._warm_ups.pop(consumer)
            warm_up.report(self._result(warm_up), True)
            self._node.scheduler.end_consumer(consumer)

    # ---------------------------------------------------------------- from stage to stage

    def _goes_over(self, consumer: int, warm_up: _WarmUp) -> bool:
        """Do the next step of one if it is time; return True when it is over."""
        disk = self._node.disk
        if warm_up.stage == _Stage.MEMORY:
            if not self._is_idle(consumer, warm_up):
                return False
            if disk is None or self._residents(warm_up.dataset, warm_up.ids).all():
                return True
            self._look(warm_up, disk, _Stage.LOOKING)
        elif disk is None:
            return True
        elif warm_up.stage == _Stage.DISK:
            self._feed(consumer, warm_up, disk)
            if self._is_idle(consumer, warm_up) and not len(warm_up.rest) and not disk.unwritten_bytes:
                self._look(warm_up, disk, _Stage.COUNTING)
        elif warm_up.look is not None and warm_up.look.on_disk is not None:
            return self._has_looked(consumer, warm_up, disk, warm_up.look.on_disk)
        return False

    def _look(self, warm_up: _WarmUp, disk: DiskTier, stage: _Stage) -> None:
        warm_up.stage = stage
        warm_up.look = _Look(disk, warm_up.dataset, warm_up.ids)

    def _has_looked(
        self, consumer: int, warm_up: _WarmUp, disk: DiskTier, on_disk: npt.NDArray[np.bool_]
    ) -> bool:  # fmt: skip
        not_in_memory = ~self._residents(warm_up.dataset, warm_up.ids)
        num_on_disk = int((on_disk & not_in_memory).sum())
        if warm_up.stage == _Stage.COUNTING:
            warm_up.num_to_disk = max(0, num_on_disk - warm_up.num_on_disk)
            warm_up.num_on_disk = num_on_disk
            return True
        warm_up.num_on_disk = num_on_disk
        warm_up.rest = warm_up.ids[not_in_memory & ~on_disk & _is_lasting(warm_up)]
        warm_up.refused_before = disk.num_refused
        warm_up.stage = _Stage.DISK
        self._register(consumer, warm_up.rest[:0], past_memory=True)
        self._feed(consumer, warm_up, disk)
        return False

    def _feed(self, consumer: int, warm_up: _WarmUp, disk: DiskTier) -> None:
        """Let the next ones be fetched for the disk, when it keeps up; none when it is full."""
        if disk.num_refused > warm_up.refused_before:
            warm_up.rest = warm_up.rest[:0]
        if not len(warm_up.rest) or self._node.scheduler.has_work(consumer):
            return
        if disk.unwritten_bytes <= _MOST_UNWRITTEN_BYTES:
            count = self._num_to_feed(warm_up)
            self._node.scheduler.extend_plan(consumer, warm_up.rest[:count])
            warm_up.rest = warm_up.rest[count:]
            self._node.pump()

    def _num_to_feed(self, warm_up: _WarmUp) -> int:
        sizes = warm_up.dataset.manifest.sizes[warm_up.rest[:_FEED_OBJECTS]]
        known = np.where(sizes == np.uint64(UNKNOWN_SIZE), np.uint64(_GUESSED_BYTES), sizes)
        return max(1, int(np.searchsorted(np.cumsum(known), _FEED_BYTES)))

    def _register(self, consumer: int, ids: Ids, *, past_memory: bool = False) -> None:
        warm_up = self._warm_ups[consumer]
        self._node.scheduler.register_warm_up(
            consumer, warm_up.dataset.number, ids,
            max_in_flight=warm_up.max_in_flight or None, past_memory=past_memory,
        )  # fmt: skip

    def _is_idle(self, consumer: int, warm_up: _WarmUp) -> bool:
        in_flight = self._node.scheduler.tables[warm_up.dataset.number].in_flight
        return in_flight == 0 and not self._node.scheduler.has_work(consumer)

    # ---------------------------------------------------------------- reports

    def _report_regularly(self) -> None:
        for warm_up in list(self._warm_ups.values()):
            warm_up.report(self._result(warm_up), False)
        if self._warm_ups:
            self._call_later(_REPORT_SECONDS, self._report_regularly)

    def _residents(self, dataset: Dataset, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return of each of these objects whether it is kept in memory, shape (num_ids,)."""
        resident: npt.NDArray[np.bool_] = self._node.scheduler.tables[dataset.number].states[ids] == RESIDENT
        return resident

    def _result(self, warm_up: _WarmUp) -> WarmResult:
        dataset, ids = warm_up.dataset, warm_up.ids
        resident = int(self._residents(dataset, ids).sum())
        sizes = dataset.manifest.sizes[ids]
        failures = self._node.scheduler.tables[dataset.number].failures
        return WarmResult(
            objects=len(ids),
            bytes=int(sizes[sizes != np.uint64(UNKNOWN_SIZE)].sum()),
            resident=resident,
            fetched=max(0, resident - warm_up.residents_before) + warm_up.num_to_disk,
            failed=int(np.isin(ids, list(failures)).sum()) if failures else 0,
            seconds=self._clock() - warm_up.started,
            on_disk=warm_up.num_on_disk,
        )


def _is_lasting(warm_up: _WarmUp) -> npt.NDArray[np.bool_]:
    """Return of each object whether the disk tier keeps it: not without a version."""
    manifest = warm_up.dataset.manifest
    if manifest.grows:
        return np.ones(len(warm_up.ids), dtype=bool)
    lasts: npt.NDArray[np.bool_] = manifest.version_hashes[warm_up.ids] != 0
    return lasts
