"""Yields the batches of the user's sampler, and plans the reads of each epoch on the way.

torch asks the sampler for a batch whenever one was consumed, so what it draws also tells how far the loop has come:
when it draws batch k, batch k - (prefetch_factor * num_workers) has been handed over; k - 1 without workers.

A sampler may never end, and its iterator may last for the whole run. Each pass over it is an epoch then: it begins when its first
batch is drawn, and, where workers are ahead of the loop, once more when the loop comes to it.

An epoch may begin in place, without a server. Then the order is kept, and what is left of it is the plan once the loader
joins (``join``), in the middle of the epoch.

``PlannedSampler`` draws the batches. ``PassPlan`` is the plan of the present pass, which ``PlanWindows`` reads in windows, and
``NextEpochs`` announces the orders that follow. All three send plans to the ``PlanTarget``.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.in_place import Samples, Unheard
from prefeed.core.plan import Ids
from prefeed.loaders.guesses import Guess
from prefeed.loaders.kinds import Order
from prefeed.system.thread_lock import ThreadLock
from prefeed.torch.forecasts import Forecast, try_forecast
from prefeed.torch.next_epochs import NextEpochs
from prefeed.torch.order import (
    Buffered,
    ReadAhead,
    ReadOnce,
    Shadow,
    UntilEnd,
    batch_size_of,
    batches_are_of_integers,
    distributed_sampler,
    indices_of,
    is_readable_ahead,
    pass_length,
    read_ahead,
    read_ahead_of_user,
    repeated_by,
)
from prefeed.torch.pass_plan import PassPlan
from prefeed.torch.windows import NO_SAMPLES, PlanTarget, ReadingOrder

_END: Final = object()


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


class PlannedSampler:
    """Yields what the user's (batch) sampler yields, when torch asks, and keeps the node server informed.

    Args:
        inner: The user's sampler or batch sampler.
        access: Access map of the dataset.
        consumer: Where plans go.
        trust: Read the sampler ahead even if its class is not known to allow it.
        num_workers, batches_ahead: Of the loader; batches torch has asked for and not yet handed over.
        seed_source: What torch draws an epoch's base seed from; see ``order.Shadow``.
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
        self.lock: ThreadLock = ThreadLock()  # held while a batch is drawn, and while the loader joins
        self._trust = trust
        self._seed_source = seed_source
        self._repeated = repeated_by(inner)
        self._pass_length = pass_length(inner, num_samples=len(access), batch_size=batch_size_of(inner))
        self._rest: Any = None
        self._num_seen = 0
        self._may_forecast = True
        one_pass = inner if self._repeated is None else self._repeated
        reading = ReadingOrder(one_pass, num_workers=num_workers, batches_ahead=batches_ahead)
        self._target = PlanTarget(access, consumer, reading, guess)
        self._present = PassPlan(self._target)
        self._next = NextEpochs(inner, self._target, self._present)

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def num_read_ahead(self) -> int:
        """Batches, or indices, that the sampler itself has given, and torch has not asked for."""
        ahead = self._present.windows.ahead
        return ahead.num_kept if isinstance(ahead, Buffered) else 0

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
            self._begin(ahead, self._present.windows.read_first(ahead))
            yield from self._follow(iter(ahead))
            self._next.announce_distributed()
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
            self._target.switch(Samples(len(self._target.access)), Unheard())
            self._next.announced = None
            self._present.has_begun = False

    def join(self, access: AccessMap, consumer: Consumer, guess: Guess | None = None) -> None:
        """Tell this consumer what is left of the epoch that began in place, and what follows.

        **Blocking**: as ``Consumer.begin``, and meanwhile for who draws a batch. Any thread.
        """
        with self.lock:
            self._target.switch(access, consumer, guess)
            if self._present.has_begun:
                plan = self._present.plan_rest(access)
                self._next.is_foreseen = False
                consumer.begin(plan, is_partial=self._present.is_partial)

    def pass_begins(self) -> None:
        """The loop has all batches of a pass over a sampler that never ends: files count as they are from now on.

        Nothing happens before torch has asked for a batch of the next pass: that is its beginning then.
        """
        with self.lock:
            present = self._present
            if present.is_ahead:
                windows, read_at = present.windows, present.windows.read_at
                self._begin_pass(windows.ahead, np.concatenate((NO_SAMPLES, *present.read)))
                windows.read_at = read_at

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
                self._next.announce_drawn_by(self._rest, None, begins=True)
        elif self._next.announced is None and is_readable_ahead(self.inner):
            self._next.announce_drawn_by(self.inner, seed_source, begins=True)

    def epoch_ended(self) -> None:
        """The loop has the last batch: if the next order can be foreseen, announce it."""
        if self._target.consumer.reads_once:
            return  # after the last epoch a whole lookahead would have been fetched in vain
        # A distributed sampler's next order is another one than it would draw now.
        if self._next.announced is None and is_readable_ahead(self.inner) and distributed_sampler(self.inner) is None:
            self._next.announce_drawn_by(self.inner, self._seed_source)

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
        present, reading = self._present, self._target.reading
        for number in itertools.count():
            ahead: ReadAhead | Forecast | None
            ahead, following = self._next_pass(batches, is_whole=is_whole or number > 0)
            if forecast is None or forecast.is_left:
                order = None if ahead is None else present.windows.read_first(ahead)
                first = next(following, _END)
            else:
                first = forecast.begin_pass(partial(next, following, _END), self._pass_length)
                ahead, order = forecast, present.windows.read_first(forecast)
                if ahead.is_left and len(order) <= reading.batches_ahead * max(1, _num_indices(first)):
                    ahead = order = None  # torch asks for as many at once
                    self._may_forecast = forecast.give_up(
                        "it draws from a global generator for each batch, raises, or is slow"
                    )
            if first is _END and number:
                return
            if number:
                self._begin_pass(ahead, order, before=present.rest())
                present.is_ahead = reading.num_workers > 0
                present.read = [] if order is None else [order]
            else:
                present.drawn.clear()
                self._begin_pass(ahead, order)
            if first is _END:
                return
            following = itertools.chain((first,), following)
            if order is None:
                yield from present.tell(following)
            elif not isinstance(ahead, Forecast):
                yield from self._follow(following)
            else:
                yield from self._follow(ahead.agreeing(following, present.note_drawn))
                if ahead.unforeseen:
                    self._may_forecast, is_ahead = not ahead.is_wrong, present.is_ahead
                    self._begin_pass(None, None)
                    present.is_ahead = is_ahead
                    yield from present.tell(itertools.chain(ahead.unforeseen, following))

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
        self._present.is_ahead = False
        self._begin(ahead, order, before=before)
        if not isinstance(ahead, Forecast):  # whose plan has them
            self._present.tell_drawn()

    def _begin(self, ahead: ReadAhead | Forecast | None, order: Order | None, *, before: Ids | None = None) -> None:
        plan = self._present.begin(ahead, order, before=before)
        self._next.begin(plan, is_partial=self._present.is_partial)

    def _follow(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches of a plan that is registered, and report how far the loop is."""
        present, target = self._present, self._target
        ahead, group = target.reading.batches_ahead, max(1, target.reading.num_workers)
        ends = deque([0], maxlen=ahead + group + 1)  # of the batches drawn last
        count = len if batches_are_of_integers(self.inner) else _num_indices
        for drawn, batch in enumerate(batches, start=1):
            present.num_drawn = ends[-1] + count(batch)
            ends.append(present.num_drawn)
            target.choose_residency()
            done = drawn - ahead
            if done > 0:
                # Workers read a group of batches side by side: a position inside a group is the group's start.
                present.advance(ends[done - done % group - drawn - 1])
            if done == 1:
                self._next.foresee_distributed()
            yield iter(batch) if isinstance(batch, ReadOnce) else batch
