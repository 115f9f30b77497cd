"""Batches on their way from the sampler to torch, told to the node server on the way.

torch asks the sampler for a batch whenever one was consumed, so what it draws also tells how far the loop has come:
when it draws batch k, batch k - (prefetch_factor * num_workers) has been handed over; k - 1 without workers.

A sampler may go on for ever, its iterator for the whole run. Each pass over it is an epoch then: it begins when its first
batch is drawn, and, where workers are ahead of the loop, once more when the loop comes to it.

Workers take batches in turns and read them side by side, so objects are needed in the order

    batch 0, sample 0 · batch 1, sample 0 · batch 0, sample 1 · batch 1, sample 1 · …        (2 workers)

and that is the order of the plan: see ``interleave``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DistributedSampler

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.torch.order import (
    Order,
    batch_size_of,
    distributed_sampler,
    drawn_order,
    indices_of,
    is_readable_ahead,
    pass_length,
    repeated_by,
    shadow_order,
    with_epoch,
)

_END: Final = object()
_NO_SAMPLES: Final[Order] = np.empty(0, dtype=np.int64)


class _ReadOnce(list[Any]):
    """The indices of a batch that can be read only once; torch is given an iterator again."""


def interleave(order: Order, *, batch_size: int, num_workers: int) -> Order:
    """Return the order in which workers ask for samples, when each makes every ``num_workers``-th batch.

    Args:
        order: Sample indices in batch order, shape (n,); the last batch may be short.
        batch_size: Samples a batch.
        num_workers: Workers that take batches in turns; below 2 nothing changes.

    Returns:
        The same indices, shape (n,), in groups of ``num_workers`` batches; what is left of the last group last.
    """
    if num_workers < 2 or batch_size < 2:
        return order
    group = batch_size * num_workers
    whole = len(order) - len(order) % group
    # (groups, workers, batch_size) → (groups, batch_size, workers)
    turned = order[:whole].reshape(-1, num_workers, batch_size).transpose(0, 2, 1).reshape(-1)
    rest = [order[start : start + batch_size] for start in range(whole, len(order), batch_size)]
    longest = max(map(len, rest), default=0)
    last = [batch[i] for i in range(longest) for batch in rest if i < len(batch)]
    return np.concatenate((turned, np.array(last, dtype=order.dtype)))


class PlannedSampler:
    """Yields what the user's (batch) sampler yields, when torch asks, and keeps the node server informed.

    Args:
        inner: The user's sampler or batch sampler.
        access: Access map of the dataset.
        consumer: Where plans go.
        trust: Read the sampler ahead although its class is not known to allow it.
        num_workers, batches_ahead: Of the loader; batches torch has asked for and not yet handed over.
        seed_source: What torch draws an epoch's base seed from; see ``shadow_order``.

    **Invariants**: the batches, their order and every random generator are as without it.
    """

    def __init__(
        self,
        inner: Any,
        access: AccessMap,
        consumer: Consumer,
        *,
        trust: bool,
        num_workers: int,
        batches_ahead: int,
        seed_source: torch.Generator | bool | None,
    ) -> None:
        self.inner = inner
        self._access = access
        self._consumer = consumer
        self._trust = trust
        self._num_workers = num_workers
        self._batches_ahead = batches_ahead
        self._seed_source = seed_source
        self._announced: npt.NDArray[np.integer] | None = None
        self._ends: Order | None = None
        self._last_epoch: int | None = None
        self._foreseen = False
        self._order_of: tuple[int, Order] | None = None
        self._rest: Any = None
        self._num_seen = 0
        self._repeated = repeated_by(inner)
        self._pass_length = pass_length(inner, num_samples=len(access), batch_size=batch_size_of(inner))
        self._plan_now: npt.NDArray[np.integer] = np.empty(0, dtype=np.int64)
        self._position = 0
        self._num_before = 0  # of the plan, what is left of the pass before
        self._drawn: deque[npt.NDArray[np.integer]] = deque(maxlen=batches_ahead)
        self._is_ahead = False
        self._order: Order | None = None

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        # A generator: nothing happens before torch asks for the first batch, when torch's own samplers draw too.
        rest, self._rest = self._rest, None
        inner = self.inner if rest is None else rest
        if is_readable_ahead(inner):
            self._begin(shadow_order(inner))
            yield from self._follow(iter(inner))
            self._announce_distributed()
        else:
            yield from self._passes(iter(inner), is_whole=rest is None)

    def pass_begins(self) -> None:
        """The loop has all batches of a pass over a sampler that goes on: files count as they are from now on.

        Nothing happens before torch has asked for a batch of the next pass: that is its beginning then.
        """
        if self._is_ahead:
            self._begin_pass(self._order)

    def resume(self, rest: Any, *, num_seen: int = 0) -> None:
        """The epoch that begins next is one that goes on: these are the batches, or indices, that are left of it.

        Args:
            rest: Batches, or indices; None: all of them.
            num_seen: How many came before.
        """
        self._rest, self._num_seen = rest, num_seen

    def iterator_begins(self, seed_source: torch.Generator | bool) -> None:
        """Torch is about to start workers, and then asks for the first batch: fetch for it meanwhile.

        Args:
            seed_source: What torch draws the base seed from when it makes an iterator.
        """
        if self._rest is not None:
            if is_readable_ahead(self._rest):
                self._announce(shadow_order(self._rest), begins=True)
        elif self._announced is None and is_readable_ahead(self.inner):
            self._announce(shadow_order(self.inner, draw_seed_from=seed_source), begins=True)

    def epoch_ended(self) -> None:
        """The loop has the last batch: if the next order can be foreseen, announce it."""
        if self._consumer.reads_once:
            return  # after the last epoch a whole lookahead would have been fetched for nobody
        if self._announced is None and is_readable_ahead(self.inner):
            self._announce(shadow_order(self.inner, draw_seed_from=self._seed_source))

    def _passes(self, batches: Iterator[Any], *, is_whole: bool) -> Iterator[Any]:
        """Yield batches of a sampler of another class, which may have no end; each pass over it is an epoch.

        Args:
            batches: What it yields.
            is_whole: The first pass begins with its first batch; else some were seen before.
        """
        for number in itertools.count():
            order, following = self._next_pass(batches, is_whole=is_whole or number > 0)
            first = next(following, _END)
            if first is _END and number:
                return
            if number:
                self._begin_pass(order, before=self._plan_now[self._position :])
                self._is_ahead = self._num_workers > 0
            else:
                self._drawn.clear()
                self._begin_pass(order)
            if first is _END:
                return
            following = itertools.chain((first,), following)
            yield from self._tell(following) if order is None else self._follow(following)

    def _next_pass(self, batches: Iterator[Any], *, is_whole: bool) -> tuple[Order | None, Iterator[Any]]:
        """Return the order of the pass that begins, None where it is not known, and its batches."""
        length = self._pass_length
        if length is not None and not is_whole:
            length -= self._num_seen % length
        following = itertools.islice(batches, length)
        if is_whole and self._repeated is not None and is_readable_ahead(self._repeated):
            return shadow_order(self._repeated), following
        if self._trust:
            drawn = [_ReadOnce(batch) if isinstance(batch, Iterator) else batch for batch in following]
            return drawn_order(drawn), iter(drawn)
        return None, following

    def _begin_pass(self, order: Order | None, *, before: npt.NDArray[np.integer] | None = None) -> None:
        """An epoch begins.

        Args:
            order: Of its samples; None when they are told as they are drawn.
            before: Objects of the pass before that the loop has not got yet: workers are ahead of it.
        """
        self._is_ahead, self._order = False, order
        self._begin(_NO_SAMPLES if order is None else order, before=before)
        for ids in self._drawn:
            self._consumer.extend(ids)

    def _begin(self, order: Order, *, before: npt.NDArray[np.integer] | None = None) -> None:
        announced, self._announced = self._announced, None
        plan, self._ends = self._plan(order)
        if before is not None:
            plan = np.concatenate((before, plan))
        self._plan_now, self._position, self._num_before = plan, 0, 0 if before is None else len(before)
        if announced is not None and np.array_equal(announced, plan):
            self._consumer.begin_announced(plan)
        else:
            self._foreseen = False
            self._consumer.begin(plan)

    def _announce_distributed(self) -> None:
        """A distributed sampler's next order is known before the loop has the last batch: it depends on its epoch.

        Most loops count epochs with ``set_epoch``; one that did not count the last time will not the next time.
        """
        sampler = distributed_sampler(self.inner)
        if sampler is None or self._consumer.reads_once:
            return
        step = self._epochs_to_next(sampler)
        self._last_epoch = sampler.epoch
        self._announce(self._order_in(sampler.epoch + step))
        self._foresee(sampler.epoch + 2 * step)

    def _foresee_distributed(self) -> None:
        """Tell what comes after the epoch that has begun, once batches flow: what is kept can be chosen by it."""
        sampler = distributed_sampler(self.inner)
        if sampler is not None and not self._foreseen and not self._consumer.reads_once:
            self._foresee(sampler.epoch + self._epochs_to_next(sampler))

    def _foresee(self, epoch: int) -> None:
        self._foreseen = True
        self._consumer.foresee(self._planned_ids(self._order_in(epoch))[0])

    def _epochs_to_next(self, sampler: DistributedSampler[Any]) -> int:
        return 1 if sampler.epoch != self._last_epoch else 0

    def _order_in(self, epoch: int) -> Order:
        """Return what the distributed sampler will draw in an epoch; the last one asked for is remembered."""
        if self._order_of is None or self._order_of[0] != epoch:
            self._order_of = (epoch, shadow_order(with_epoch(self.inner, epoch)))
        return self._order_of[1]

    def _announce(self, order: Order, *, begins: bool = False) -> None:
        self._announced = self._plan(order)[0]
        self._consumer.announce(self._announced, begins=begins)

    def _plan(self, order: Order) -> tuple[npt.NDArray[np.integer], Order | None]:
        """Return the object ids in the order of reading, and where in them each sample ends; None: one a sample."""
        self._access.refresh()
        if self._access.cached is not None:  # what is made of an object will be found the next time, not the object
            self._consumer.resident = not self._consumer.reads_once and not self._access.cached.has_room()
        ids, counts = self._planned_ids(order)
        return ids, None if counts is None else np.cumsum(counts)

    def _planned_ids(self, order: Order) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.integer] | None]:
        """Return the object ids in the order of reading, and how many each sample has; None: one each."""
        batch_size = batch_size_of(self.inner if self._repeated is None else self._repeated)
        if batch_size is not None:
            order = interleave(order, batch_size=batch_size, num_workers=self._num_workers)
        return self._access.object_ids(order)

    def _advance(self, samples: int) -> None:
        """The loop has that many samples."""
        if self._ends is not None and samples:
            samples = int(self._ends[min(samples, len(self._ends)) - 1]) if len(self._ends) else 0
        self._position = self._num_before + samples
        self._consumer.advance(self._position)

    def _follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of a plan that is registered, and say how far the loop is."""
        ends: list[int] = [0]
        for batch in batches:
            ends.append(ends[-1] + len(indices_of(batch)))
            done = len(ends) - 1 - self._batches_ahead
            if done > 0:
                # Workers read a group of batches side by side: a position inside a group is the group's start.
                self._advance(ends[done - done % max(1, self._num_workers)])
            if done == 1:
                self._foresee_distributed()
            yield iter(batch) if isinstance(batch, _ReadOnce) else batch

    def _tell(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches as torch asks for them, and tell the server of each."""
        for batch in batches:
            ids = self._access.object_ids(drawn_order([batch]))[0]
            self._drawn.append(ids)
            self._consumer.extend(ids)
            yield batch
