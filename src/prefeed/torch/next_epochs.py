"""Announces the orders of the epochs that follow the present one.

The order of the next epoch can be predicted if torch's own samplers draw it: from a generator, or from the number of the
epoch. Its first window is announced when the loop has the last batch, and earlier for a distributed sampler. A wrong
prediction costs fetches, never a sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from prefeed.client.in_place import Unheard
from prefeed.core.plan import Ids
from prefeed.loaders.kinds import Order
from prefeed.torch.order import Shadow, distributed_sampler, is_worth_foreseeing, shadow_order, with_epoch
from prefeed.torch.pass_plan import PassPlan
from prefeed.torch.windows import PlanTarget


class NextEpochs:
    """Orders of later epochs, as far as they were announced.

    Args:
        sampler: The user's sampler or batch sampler.
        target: Receives the plans.
        present: Plan of the present pass.

    Attributes:
        announced: Objects of the announced epoch, until it begins; None if none is announced.
        is_foreseen: The order after the present epoch was sent, so that residents can be chosen by it.
    """

    def __init__(self, sampler: Any, target: PlanTarget, present: PassPlan) -> None:
        self.is_foreseen = False
        self._sampler = sampler
        self._target = target
        self._present = present
        self.announced: Ids | None = None
        self._last_epoch: int | None = None
        self._order_of: tuple[int, Order] | None = None

    def begin(self, plan: Ids, *, is_partial: bool) -> None:
        """Register the plan of an epoch that begins, or confirm it if it was announced."""
        announced, self.announced = self.announced, None
        is_announced = announced is not None and np.array_equal(announced, plan)
        consumer = self._target.consumer
        begin = consumer.begin_announced if is_announced else consumer.begin
        self.is_foreseen &= is_announced
        begin(plan, is_partial=is_partial)

    def announce_drawn_by(
        self, index_sampler: Any, seed_source: torch.Generator | bool | None, *, begins: bool = False
    ) -> None:
        """Announce the first window that a sampler will draw next.

        Args:
            index_sampler: Sampler or batch sampler.
            seed_source: Generator that torch draws the base seed from; see ``order.Shadow``.
            begins: Whether the epoch is about to begin, while torch starts workers.
        """
        if isinstance(self._target.consumer, Unheard) or not is_worth_foreseeing(index_sampler, is_awaited=begins):
            return
        ahead, windows = Shadow(index_sampler, draw_seed_from=seed_source), self._present.windows
        order = windows.read_first(ahead)
        self._announce(order, begins=begins, is_partial=ahead.has_more or windows.is_holding)

    def announce_distributed(self) -> None:
        """Announce the next order of a distributed sampler before the loop has the last batch: it depends on its epoch.

        Most loops count epochs with ``set_epoch``; one that did not count the last time will not the next time.
        """
        sampler = self._foreseeable()
        if sampler is None:
            return
        step = int(sampler.epoch != self._last_epoch)
        self._last_epoch = sampler.epoch
        self._announce(self._order_in(sampler.epoch + step))
        self._foresee(sampler.epoch + 2 * step)

    def foresee_distributed(self) -> None:
        """Send the order after the epoch that has begun, once batches flow, so that residents can be chosen by it."""
        sampler = None if self.is_foreseen else self._foreseeable()
        if sampler is not None:
            self._foresee(sampler.epoch + int(sampler.epoch != self._last_epoch))

    def _foreseeable(self) -> DistributedSampler[Any] | None:
        """Return the distributed sampler if its next orders can be sent, each in one window; otherwise None."""
        sampler = distributed_sampler(self._sampler)
        if sampler is None or self._target.consumer.reads_once or not self._present.fits_window:
            return None
        return sampler if is_worth_foreseeing(sampler) else None

    def _foresee(self, epoch: int) -> None:
        self.is_foreseen = True
        self._target.consumer.foresee(self._target.planned_ids(self._order_in(epoch))[0])

    def _order_in(self, epoch: int) -> Order:
        """Return the order that the distributed sampler will draw in an epoch; the last one is remembered."""
        if self._order_of is None or self._order_of[0] != epoch:
            self._order_of = (epoch, shadow_order(with_epoch(self._sampler, epoch)))
        return self._order_of[1]

    def _announce(self, order: Order, *, begins: bool = False, is_partial: bool = False) -> None:
        self._target.prepare()
        self.announced = self._target.planned_ids(order)[0]
        is_partial = is_partial or self._target.access.cached is not None
        self._target.consumer.announce(self.announced, begins=begins, is_partial=is_partial)
