"""Batches on their way from the sampler to torch, told to the node server on the way.

torch asks the sampler for a batch whenever one was consumed, so what it draws also tells how far the loop has come:
when it draws batch k, batch k - (prefetch_factor * num_workers) has been handed over; k - 1 without workers.

A sampler may never end, and its iterator may last for the whole run. Each pass over it is an epoch then: it begins when its first
batch is drawn, and, where workers are ahead of the loop, once more when the loop comes to it.

Workers take batches in turns and read them side by side, so objects are needed in the order

    batch 0, sample 0 · batch 1, sample 0 · batch 0, sample 1 · batch 1, sample 1 · …        (2 workers)

and that is the order of the plan: see ``interleave``.

An order that is long, or slow to draw, is told in windows: the first when the epoch begins, the next ones while the loop
goes on (``windows``).

An epoch may begin in place, without a server. Then the order is kept, and what is left of it is the plan once the loader
joins (``join``), in the middle of the epoch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DistributedSampler

from prefeed.client.access import AccessMap, Ends
from prefeed.client.consumer import Consumer
from prefeed.client.in_place import Samples, Unheard
from prefeed.core.plan import Ids, Window
from prefeed.loaders.guesses import LOOK, Guess, Supposing
from prefeed.loaders.kinds import Order
from prefeed.loaders.order import interleave
from prefeed.system.thread_lock import ThreadLock
from prefeed.torch.forecasts import Forecast, try_forecast
from prefeed.torch.order import (
    CHUNK,
    FIRST,
    WINDOW,
    Buffered,
    ReadAhead,
    ReadOnce,
    Shadow,
    UntilEnd,
    batch_size_of,
    batches_are_of_integers,
    distributed_sampler,
    drawn_order,
    indices_of,
    is_readable_ahead,
    is_worth_foreseeing,
    pass_length,
    read_ahead,
    read_ahead_of_user,
    repeated_by,
    shadow_order,
    with_epoch,
)

_END: Final = object()
_NO_SAMPLES: Final[Order] = np.empty(0, dtype=np.int64)

_MOST_AHEAD: Final = 16
"""Chunks that are read ahead of a sampler that draws one sample after the other."""

_MOST_IDS: Final = 1 << 22
"""Objects of one window, where a sample has many."""

_TOLD_EVERY: Final = 4096
"""Objects after which the server hears how far the loop is, of an order that is told as it is drawn."""


class _Drawing:
    """Draws the batches of an iterator, each while the sampler is locked."""

    def __init__(self, batches: Iterator[Any], sampler: PlannedSampler) -> None:
        self._batches, self._sampler = batches, sampler

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._sampler.lock:
            return next(self._batches)


def _num_indices(batch: Any) -> int:
    return len(indices_of(batch))


def _supposing(access: AccessMap | Samples, consumer: Consumer | Unheard, guess: Guess) -> Supposing:
    assert not isinstance(access, Samples)
    assert not isinstance(consumer, Unheard)
    return Supposing(access, consumer, guess)


class PlannedSampler:
    """Yields what the user's (batch) sampler yields, when torch asks, and keeps the node server informed.

    Args:
        inner: The user's sampler or batch sampler.
        access: Access map of the dataset.
        consumer: Where plans go.
        trust: Read the sampler ahead even if its class is not known to allow it.
        num_workers, batches_ahead: Of the loader; batches torch has asked for and not yet handed over.
        seed_source: What torch draws an epoch's base seed from; see ``windows.Shadow``.
        guess: What unknown samples probably open.

    **Invariants**: the batches, their order and every random generator are as without it.
    **Threads**: batches are drawn by the loop; ``join`` may be called by another thread.
    """

    def __init__(
        self,
        inner: Any,
        access: AccessMap | Samples,
        consumer: Consumer | Unheard,
        *,
        trust: bool,
        num_workers: int,
        batches_ahead: int,
        seed_source: torch.Generator | bool | None,
        guess: Guess | None = None,
    ) -> None:
        self.inner = inner
        self._access = access
        self._consumer = consumer
        self._trust = trust
        self._num_workers = num_workers
        self._batches_ahead = batches_ahead
        self._seed_source = seed_source
        self._announced: Ids | None = None
        self._ends = Ends()
        self._last_epoch: int | None = None
        self._foreseen = False
        self._order_of: tuple[int, Order] | None = None
        self._rest: Any = None
        self._num_seen = 0
        self._repeated = repeated_by(inner)
        self._pass_length = pass_length(inner, num_samples=len(access), batch_size=batch_size_of(inner))
        self._plan_now = Window(_NO_SAMPLES)
        self._position = 0
        self._num_before = 0  # of the plan, what is left of the pass before
        self._num_told = 0
        self._drawn: deque[Ids] = deque(maxlen=batches_ahead)
        self._is_ahead = False
        self._ahead: ReadAhead | Forecast | None = None
        self._may_forecast = True
        self._held: Order = _NO_SAMPLES
        self._supposing = None if guess is None else _supposing(access, consumer, guess)
        self._has_begun = False  # a pass, whose order is kept
        self._num_drawn = 0  # samples of it that torch has
        self.lock: ThreadLock = ThreadLock()  # held while a batch is drawn, and while the loader joins
        self._is_guessed = False  # what is held waits for samples to be made
        self._read: list[Order] = []  # of a pass that workers have begun and the loop has not
        self._read_at = 0

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def num_read_ahead(self) -> int:
        """Batches, or indices, that the sampler itself has given, and torch has not asked for."""
        return self._ahead.num_kept if isinstance(self._ahead, Buffered) else 0

    def __iter__(self) -> Iterator[Any]:
        if self._rest is not None or is_readable_ahead(self.inner):
            # Nothing happens before torch asks for the first batch, when torch's own samplers draw too.
            return _Drawing(self._batches(), self)
        # Another class may draw in ``__iter__``. Torch calls it before it draws the base seed, and for workers once more afterwards.
        forecast = self._try_forecast(self.inner)
        batches = iter(self.inner) if forecast is None else forecast.begin(self.inner)
        return _Drawing(self._passes(batches, is_whole=True, forecast=forecast), self)

    def _batches(self) -> Iterator[Any]:
        rest, self._rest = self._rest, None
        inner = self.inner if rest is None else rest
        if isinstance(inner, ReadAhead) or is_readable_ahead(inner):
            ahead = inner if isinstance(inner, ReadAhead) else read_ahead(inner)
            self._begin(ahead, self._first_of(ahead))
            yield from self._follow(iter(ahead))
            self._announce_distributed()
        else:
            yield from self._passes(iter(inner), is_whole=rest is None)

    def _try_forecast(self, inner: Any) -> Forecast | None:
        """Return a forecast of a sampler of another class; None if there can be none, or an earlier one was of no use."""
        is_repeated = self._repeated is not None and is_readable_ahead(self._repeated)
        forecast = None if self._trust or is_repeated or not self._may_forecast else try_forecast(inner)
        self._may_forecast = forecast is not None
        return forecast

    def leave(self) -> None:
        """The next epoch begins in place: its order is kept, and the server is not told."""
        with self.lock:
            self._access, self._consumer, self._supposing = Samples(len(self._access)), Unheard(), None
            self._announced, self._has_begun = None, False

    def join(self, access: AccessMap, consumer: Consumer, guess: Guess | None = None) -> None:
        """Tell this consumer what is left of the epoch that began in place, and what follows.

        **Blocking**: as ``Consumer.begin``, and meanwhile for who draws a batch. Any thread.
        """
        with self.lock:
            self._access, self._consumer = access, consumer
            self._supposing = None if guess is None else _supposing(access, consumer, guess)
            if self._has_begun:
                self._plan_rest(access, consumer)

    def _plan_rest(self, access: AccessMap, consumer: Consumer) -> None:
        """Plan what the loop has not got yet of the samples that were kept in the order in which they are drawn."""
        kept, num_before = self._plan_now, self._num_before
        before = access.object_ids(kept.part(self._position, num_before))[0]
        rest = kept.part(max(self._position, num_before), kept.end).astype(np.int64, copy=False)
        num_passed = self._ends.num_samples - len(rest)
        self._ends = Ends()
        if num_passed:
            self._ends.append(num_passed, 0, np.zeros(num_passed, dtype=np.int64))
        ids = self._plan(self._fitting(rest, num_asked=max(0, self._num_drawn - num_passed)))
        drawn = [access.object_ids(ids)[0] for ids in self._drawn]
        self._drawn.clear()
        self._drawn.extend(drawn)
        told = drawn if self._ahead is None else []
        plan = np.concatenate((before, ids, *told))
        self._num_told = sum(map(len, told))
        self._plan_now, self._position, self._num_before, self._read_at = Window(plan), 0, len(before), 0
        self._foreseen = False
        consumer.begin(plan, is_partial=self._may_read_others(self._ahead))

    def pass_begins(self) -> None:
        """The loop has all batches of a pass over a sampler that never ends: files count as they are from now on.

        Nothing happens before torch has asked for a batch of the next pass: that is its beginning then.
        """
        with self.lock:
            if self._is_ahead:
                read_at = self._read_at
                self._begin_pass(self._ahead, np.concatenate((_NO_SAMPLES, *self._read)))
                self._read_at = read_at

    def resume(self, rest: Any, *, num_seen: int = 0) -> None:
        """The epoch that begins next is resumed: these are the batches, or indices, that are left of it.

        Args:
            rest: Batches, or indices, or what reads them ahead; None: all of them.
            num_seen: How many came before.
        """
        self._rest, self._num_seen = rest, num_seen

    def iterator_begins(self, seed_source: torch.Generator | bool) -> None:
        """Torch is about to start workers, and then asks for the first batch: fetch for it meanwhile.

        Args:
            seed_source: What torch draws the base seed from when it makes an iterator.
        """
        if self._rest is not None:
            if not isinstance(self._rest, ReadAhead) and is_readable_ahead(self._rest):
                self._announce_drawn_by(self._rest, None, begins=True)
        elif self._announced is None and is_readable_ahead(self.inner):
            self._announce_drawn_by(self.inner, seed_source, begins=True)

    def epoch_ended(self) -> None:
        """The loop has the last batch: if the next order can be foreseen, announce it."""
        if self._consumer.reads_once:
            return  # after the last epoch a whole lookahead would have been fetched in vain
        # A distributed sampler's next order is another one than it would draw now.
        if self._announced is None and is_readable_ahead(self.inner) and distributed_sampler(self.inner) is None:
            self._announce_drawn_by(self.inner, self._seed_source)

    def _passes(self, batches: Iterator[Any], *, is_whole: bool, forecast: Forecast | None = None) -> Iterator[Any]:
        """Yield batches of a sampler of another class, which may have no end; each pass over it is an epoch.

        Args:
            batches: What it yields.
            is_whole: The first pass begins with its first batch; else some were seen before.
            forecast: What it will probably yield.
        """
        try:
            yield from self._passes_over(UntilEnd(batches), is_whole, forecast)
        finally:
            if forecast is not None:
                forecast.leave()

    def _passes_over(self, batches: Iterator[Any], is_whole: bool, forecast: Forecast | None) -> Iterator[Any]:
        for number in itertools.count():
            ahead: ReadAhead | Forecast | None
            ahead, following = self._next_pass(batches, is_whole=is_whole or number > 0)
            if forecast is None or forecast.is_left:
                order = None if ahead is None else self._first_of(ahead)
                first = next(following, _END)
            else:
                first = forecast.begin_pass(partial(next, following, _END), self._pass_length)
                ahead, order = forecast, self._first_of(forecast)
                if ahead.is_left and len(order) <= self._batches_ahead * max(1, _num_indices(first)):
                    ahead = order = None  # torch asks for as many at once
                    self._may_forecast = forecast.give_up(
                        "it draws from a global generator for each batch, raises, or is slow"
                    )
            if first is _END and number:
                return
            if number:
                before = self._plan_now.part(self._position, self._plan_now.end).copy()
                self._begin_pass(ahead, order, before=before)
                self._is_ahead = self._num_workers > 0
                self._read = [] if order is None else [order]
            else:
                self._drawn.clear()
                self._begin_pass(ahead, order)
            if first is _END:
                return
            following = itertools.chain((first,), following)
            if order is None:
                yield from self._tell(following)
            elif not isinstance(ahead, Forecast):
                yield from self._follow(following)
            else:
                yield from self._follow(ahead.agreeing(following, self._note_drawn))
                if ahead.unforeseen:
                    self._may_forecast, is_ahead = not ahead.is_wrong, self._is_ahead
                    self._begin_pass(None, None)
                    self._is_ahead = is_ahead
                    yield from self._tell(itertools.chain(ahead.unforeseen, following))

    def _note_drawn(self, order: Order) -> None:
        self._drawn.append(self._access.object_ids(order)[0])

    def _next_pass(self, batches: Iterator[Any], *, is_whole: bool) -> tuple[ReadAhead | None, Iterator[Any]]:
        """Return what reads the pass ahead that begins, None where its order is not known, and its batches."""
        length = self._pass_length
        if length is not None and not is_whole:
            length -= self._num_seen % length
        following = itertools.islice(batches, length)
        if is_whole and self._repeated is not None and is_readable_ahead(self._repeated):
            return Shadow(self._repeated), following
        if self._trust:
            ahead = read_ahead_of_user(following)
            return ahead, iter(ahead)
        return None, following

    def _begin_pass(
        self, ahead: ReadAhead | Forecast | None, order: Order | None, *, before: Ids | None = None
    ) -> None:
        """An epoch begins.

        Args:
            ahead: Reads what follows.
            order: Of its samples, as far as it was read; None when they are told as they are drawn.
            before: Objects of the pass before that the loop has not got yet: workers are ahead of it.
        """
        self._is_ahead = False
        self._begin(ahead, order, before=before)
        if isinstance(ahead, Forecast):
            return  # they are in the plan
        for ids in self._drawn:
            self._consumer.extend(ids)
        self._num_told = sum(map(len, self._drawn))

    def _begin(self, ahead: ReadAhead | Forecast | None, order: Order | None, *, before: Ids | None = None) -> None:
        announced, self._announced = self._announced, None
        self._ahead, self._ends, self._read, self._read_at = ahead, Ends(), [], 0
        self._has_begun, self._num_drawn = True, 0
        plan = self._plan(_NO_SAMPLES if order is None else order)
        if before is not None:
            plan = np.concatenate((before, plan))
        self._plan_now, self._position, self._num_before = Window(plan), 0, 0 if before is None else len(before)
        is_announced = announced is not None and np.array_equal(announced, plan)
        begin = self._consumer.begin_announced if is_announced else self._consumer.begin
        self._foreseen &= is_announced
        begin(plan, is_partial=self._may_read_others(ahead))

    # ------------------------------------------------------------ windows

    @property
    def _has_more(self) -> bool:
        """True while samples may follow those that are planned."""
        return self._ahead is not None and (self._ahead.has_more or len(self._held) > 0)

    def _first_of(self, ahead: ReadAhead | Forecast) -> Order:
        """Return the first window of an order."""
        order = ahead.read(self._whole_groups(ahead.window))
        return self._fitting(order, num_asked=self._batches_ahead * (self._batch_size() or 1), may_wait=True)

    def _whole_groups(self, num_samples: int) -> int:
        """Return about ``num_samples``, in whole groups of batches that workers read side by side."""
        return -(-num_samples // self._group) * self._group

    @property
    def _group(self) -> int:
        """Samples of the batches that workers read side by side."""
        return (self._batch_size() or 1) * max(1, self._num_workers)

    def _fitting(self, order: Order, *, num_asked: int, may_wait: bool = False) -> Order:
        """Return as much of the order as a window takes, and hold the rest back: a sample may be of many objects.

        Args:
            order: Of samples that are not planned.
            num_asked: How many of them torch has asked for, or asks for at once.
            may_wait: An epoch is about to begin.
        """
        most = len(order)
        if len(order) >= CHUNK:
            self._access.refresh()
            mean = len(self._access.object_ids(order[:CHUNK])[0]) / CHUNK
            most = self._whole_groups(int(_MOST_IDS / mean)) if mean > 1 else most
        reached = self._guessed(order[:most], may_wait=may_wait)
        self._is_guessed = reached < min(most, len(order))
        if self._is_guessed:
            most = max(reached, self._whole_groups(num_asked))
        order, self._held = order[:most], order[most:]
        return order

    def _guessed(self, order: Order, *, may_wait: bool) -> int:
        """Return how many samples of an order can be planned, in whole groups, where what some open is a guess."""
        if self._supposing is None:
            return len(order)
        self._supposing.look()
        size = self._whole_groups(LOOK)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            reached = self._supposing.reach(self._in_reading_order(part), may_wait=may_wait)
            if reached < len(part):
                return start + reached - reached % self._group
        return len(order)

    def _read_on(self, num_drawn: int) -> None:
        """Read another window, when the loop has come so far that one is due; ``num_drawn``: samples of the pass that torch has."""
        ahead = self._ahead
        if ahead is None or not self._has_more:
            self._read_at = num_drawn + CHUNK  # nothing follows in this pass
            return
        num_planned = self._ends.num_samples
        most = max(FIRST, min(CHUNK, num_planned))  # ever more: the first batches wait for little
        if isinstance(ahead, Forecast):
            most = FIRST  # of Python code
        if not self._is_guessed:  # else it is looked at with each batch
            self._read_at = num_drawn + most // 2
        most_ahead = WINDOW if ahead.window == WINDOW else _MOST_AHEAD * CHUNK
        if num_planned - num_drawn >= most_ahead:
            return
        try:
            order = self._held if len(self._held) else ahead.read(self._whole_groups(most))
        except Exception:  # noqa: BLE001 - it is the user's: he hears of it when torch comes there
            ahead.has_more = False
            return
        order = self._fitting(order, num_asked=max(0, num_drawn + 1 - num_planned))
        if not len(order):
            return
        if self._is_ahead:
            self._read.append(order)
        ids = self._plan(order)
        self._plan_now.extend(ids, needed_from=self._position)
        self._consumer.extend(ids, are_read_soon=False)

    # ------------------------------------------------------------ what follows the epoch

    def _announce_distributed(self) -> None:
        """A distributed sampler's next order is known before the loop has the last batch: it depends on its epoch.

        Most loops count epochs with ``set_epoch``; one that did not count the last time will not the next time.
        """
        sampler = self._foreseeable()
        if sampler is None:
            return
        step = int(sampler.epoch != self._last_epoch)
        self._last_epoch = sampler.epoch
        self._announce(self._order_in(sampler.epoch + step))
        self._foresee(sampler.epoch + 2 * step)

    def _foresee_distributed(self) -> None:
        """Tell what comes after the epoch that has begun, once batches flow: what is kept can be chosen by it."""
        sampler = None if self._foreseen else self._foreseeable()
        if sampler is not None:
            self._foresee(sampler.epoch + int(sampler.epoch != self._last_epoch))

    def _foreseeable(self) -> DistributedSampler[Any] | None:
        """Return the distributed sampler whose next orders are told, each in one window; None when they are not."""
        sampler = distributed_sampler(self.inner)
        if sampler is None or self._consumer.reads_once or self._has_more or self._ends.num_samples > WINDOW:
            return None
        return sampler if is_worth_foreseeing(sampler) else None

    def _foresee(self, epoch: int) -> None:
        self._foreseen = True
        self._consumer.foresee(self._planned_ids(self._order_in(epoch))[0])

    def _order_in(self, epoch: int) -> Order:
        """Return what the distributed sampler will draw in an epoch; the last one asked for is remembered."""
        if self._order_of is None or self._order_of[0] != epoch:
            self._order_of = (epoch, shadow_order(with_epoch(self.inner, epoch)))
        return self._order_of[1]

    def _announce_drawn_by(
        self, index_sampler: Any, seed_source: torch.Generator | bool | None, *, begins: bool = False
    ) -> None:
        """Announce what the sampler draws next, the first window of it."""
        if isinstance(self._consumer, Unheard) or not is_worth_foreseeing(index_sampler, is_awaited=begins):
            return
        ahead = Shadow(index_sampler, draw_seed_from=seed_source)
        order = self._first_of(ahead)
        self._announce(order, begins=begins, is_partial=ahead.has_more or len(self._held) > 0)

    def _announce(self, order: Order, *, begins: bool = False, is_partial: bool = False) -> None:
        self._prepare()
        self._announced = self._planned_ids(order)[0]
        is_partial = is_partial or self._access.cached is not None
        self._consumer.announce(self._announced, begins=begins, is_partial=is_partial)

    # ------------------------------------------------------------ objects

    def _prepare(self) -> None:
        self._access.refresh()
        self._choose_residency()

    def _choose_residency(self) -> None:
        """Where a stage keeps samples, their objects are read once: the sample will be found the next time; else they are kept."""
        if self._access.cached is not None:
            self._consumer.keep(resident=not self._consumer.reads_once and not self._access.cached.has_room())

    def _plan(self, order: Order) -> Ids:
        """Return the object ids in the order of reading, and note where in them each sample ends."""
        self._prepare()
        ids, counts = self._planned_ids(order)
        self._ends.append(len(order), len(ids), counts)
        return ids

    def _planned_ids(self, order: Order) -> tuple[Ids, npt.NDArray[np.integer] | None]:
        """Return the object ids in the order of reading, and how many each sample has; None: one each."""
        return self._access.object_ids(self._in_reading_order(order))

    def _in_reading_order(self, order: Order) -> Order:
        batch_size = self._batch_size()
        if batch_size is None or isinstance(self._access, Samples):  # kept as it is drawn
            return order
        return interleave(order, batch_size=batch_size, num_workers=self._num_workers)

    def _batch_size(self) -> int | None:
        return batch_size_of(self.inner if self._repeated is None else self._repeated)

    def _may_read_others(self, ahead: ReadAhead | Forecast | None) -> bool:
        """Return whether the epoch may read objects that its plan omits: later windows, or files of samples made again."""
        return ahead is None or self._has_more or self._access.cached is not None

    # ------------------------------------------------------------ progress

    def _advance(self, samples: int) -> None:
        """The loop has that many samples."""
        self._position = self._num_before + self._ends.id_at(samples)
        self._consumer.advance(self._position)

    def _follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of a plan that is registered, and say how far the loop is."""
        ahead, group = self._batches_ahead, max(1, self._num_workers)
        ends = deque([0], maxlen=ahead + group + 1)  # of the batches drawn last
        count = len if batches_are_of_integers(self.inner) else _num_indices
        for drawn, batch in enumerate(batches, start=1):
            self._num_drawn = end = ends[-1] + count(batch)
            ends.append(end)
            done = drawn - ahead
            if self._access.cached is not None:
                self._choose_residency()
            if done > 0:
                # Workers read a group of batches side by side: a position inside a group is the group's start.
                passed = ends[done - done % group - drawn - 1]
                if isinstance(self._consumer, Unheard):
                    self._position = self._num_before + passed  # a sample is an object
                else:
                    self._advance(passed)
                if end >= self._read_at or self._is_guessed:
                    self._read_on(end)
            if done == 1:
                self._foresee_distributed()
            yield iter(batch) if isinstance(batch, ReadOnce) else batch

    def _tell(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches as torch asks for them, and tell the server of each; what is guessed of one with the next one."""
        held = _NO_SAMPLES
        for batch in batches:
            order = drawn_order([batch])
            if self._supposing is not None:
                self._supposing.look()
                reached = self._supposing.reach(order)
                order, held = np.concatenate((held, order[:reached])), order[reached:]
            ids = self._access.object_ids(order)[0]
            self._choose_residency()
            self._drawn.append(ids)
            self._consumer.extend(ids)
            self._num_told += len(ids)
            done = self._num_told - sum(map(len, self._drawn))
            if done - self._position >= _TOLD_EVERY:
                self._position = done
                self._consumer.advance(done)
            yield batch
