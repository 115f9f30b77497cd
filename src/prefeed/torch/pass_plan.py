"""Plan of one pass over a sampler: objects in the order of reading, and how far the loop has come.

The plan of a pass begins with the objects of the pass before that the loop has not received, because workers are ahead of
the loop. If the order of a pass is not known, the plan grows with each batch that torch draws.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from prefeed.client.access import AccessMap, Ends
from prefeed.client.in_place import Unheard
from prefeed.core.plan import Ids, Window
from prefeed.loaders.kinds import Order
from prefeed.torch.forecasts import Forecast
from prefeed.torch.order import WINDOW, ReadAhead, drawn_order
from prefeed.torch.windows import NO_SAMPLES, PlanTarget, PlanWindows

_TOLD_EVERY: Final = 4096
"""Objects between two reports of the position, in a pass whose order is planned as it is drawn."""


class PassPlan:
    """Plan of the present pass.

    Args:
        target: Turns samples into objects and receives the plan.

    Attributes:
        windows: Order of the pass, read in windows.
        has_begun: A pass has begun, and its order is kept.
        is_ahead: Workers have begun the pass, and the loop has not.
        drawn: Objects of the last batches that torch drew one by one.
        read: Samples of a pass that ``is_ahead``, window by window.
        num_drawn: Samples of the pass that torch has drawn.
    """

    def __init__(self, target: PlanTarget) -> None:
        self.windows = PlanWindows(target)
        self.has_begun = False
        self.is_ahead = False
        self.drawn: deque[Ids] = deque(maxlen=target.reading.batches_ahead)
        self.read: list[Order] = []
        self.num_drawn = 0
        self._target = target
        self._plan = Window(NO_SAMPLES)
        self._ends = Ends()
        self._position = 0
        self._num_before = 0  # objects of the plan that belong to the pass before
        self._num_told = 0  # objects of batches that were planned as they were drawn

    @property
    def fits_window(self) -> bool:
        """True if the whole pass is planned, in one window."""
        return not self.windows.has_more and self._ends.num_samples <= WINDOW

    @property
    def is_partial(self) -> bool:
        """True if the pass may read objects that its plan omits: later windows, or files of samples computed again."""
        return self.windows.ahead is None or self.windows.has_more or self._target.access.cached is not None

    def rest(self) -> Ids:
        """Return a copy of the planned objects that the loop has not received."""
        return self._plan.part(self._position, self._plan.end).copy()

    def begin(self, ahead: ReadAhead | Forecast | None, order: Order | None, *, before: Ids | None) -> Ids:
        """Begin a pass and return its plan.

        Args:
            ahead: Reads the samples that follow.
            order: First samples of the pass; None if they are planned as they are drawn.
            before: Objects of the pass before that the loop has not received.
        """
        self.windows.begin(ahead)
        self._ends, self.read = Ends(), []
        self.has_begun, self.num_drawn = True, 0
        plan = self._append(NO_SAMPLES if order is None else order)
        if before is not None:
            plan = np.concatenate((before, plan))
        self._plan, self._position, self._num_before = Window(plan), 0, 0 if before is None else len(before)
        return plan

    def plan_rest(self, access: AccessMap) -> Ids:
        """Turn the samples that the loop has not received into a plan, and return it.

        Until now the samples were kept in the order in which they were drawn.

        Args:
            access: Access map of the target, which has just joined.
        """
        kept, num_before, windows = self._plan, self._num_before, self.windows
        before = access.object_ids(kept.part(self._position, num_before))[0]
        rest = kept.part(max(self._position, num_before), kept.end).astype(np.int64, copy=False)
        num_passed = self._ends.num_samples - len(rest)
        self._ends = Ends()
        if num_passed:
            self._ends.append(num_passed, 0, np.zeros(num_passed, dtype=np.int64))
        ids = self._append(windows.fit(rest, num_asked=max(0, self.num_drawn - num_passed)))
        drawn = [access.object_ids(ids)[0] for ids in self.drawn]
        self.drawn.clear()
        self.drawn.extend(drawn)
        told = drawn if windows.ahead is None else []
        plan = np.concatenate((before, ids, *told))
        self._num_told = sum(map(len, told))
        self._plan, self._position, self._num_before, windows.read_at = Window(plan), 0, len(before), 0
        return plan

    def tell_drawn(self) -> None:
        """Add the batches to the plan that torch drew before the pass began."""
        for ids in self.drawn:
            self._target.consumer.extend(ids)
        self._num_told = sum(map(len, self.drawn))

    def note_drawn(self, order: Order) -> None:
        """Remember a batch that is in the plan already."""
        self.drawn.append(self._target.object_ids(order))

    def advance(self, num_passed: int) -> None:
        """Report that the loop has received that many samples, and plan another window if it is due."""
        consumer = self._target.consumer
        if isinstance(consumer, Unheard):
            self._position = self._num_before + num_passed  # a sample is an object
        else:
            self._position = self._num_before + self._ends.id_at(num_passed)
            consumer.advance(self._position)
        if self.num_drawn >= self.windows.read_at or self.windows.is_guessed:
            self._read_on()

    def tell(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and add each one to the plan; guessed files of a batch are added with the next one."""
        target, held = self._target, NO_SAMPLES
        for batch in batches:
            order = drawn_order([batch])
            if target.supposing is not None:
                target.supposing.look()
                reached = target.supposing.reach(order)
                order, held = np.concatenate((held, order[:reached])), order[reached:]
            ids = target.object_ids(order)
            target.choose_residency()
            self.drawn.append(ids)
            target.consumer.extend(ids)
            self._num_told += len(ids)
            done = self._num_told - sum(map(len, self.drawn))
            if done - self._position >= _TOLD_EVERY:
                self._position = done
                target.consumer.advance(done)
            yield batch

    def _read_on(self) -> None:
        """Extend the plan by the next window, if it is due."""
        order = self.windows.read_next(num_drawn=self.num_drawn, num_planned=self._ends.num_samples)
        if not len(order):
            return
        if self.is_ahead:
            self.read.append(order)
        ids = self._append(order)
        self._plan.extend(ids, needed_from=self._position)
        self._target.consumer.extend(ids, are_read_soon=False)

    def _append(self, order: Order) -> Ids:
        """Return the objects of samples in the order of reading, and note the end of each sample."""
        self._target.prepare()
        ids, counts = self._target.planned_ids(order)
        self._ends.append(len(order), len(ids), counts)
        return ids
