"""Reads the order of a sampler in windows that become parts of a plan.

Workers take batches in turns and read them side by side, so objects are needed in the order

    batch 0, sample 0 · batch 1, sample 0 · batch 0, sample 1 · batch 1, sample 1 · …        (2 workers)

and that is the order of the plan: see ``interleave``. A window has whole groups of such batches.

An order that is long, or slow to draw, is planned in windows: the first one when the epoch begins, the next ones while
the loop goes on. ``PlanWindows`` decides when a window is due, and how many samples it takes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.in_place import Samples, Unheard
from prefeed.core.plan import Ids
from prefeed.loaders.guesses import LOOK, Guess, Supposing
from prefeed.loaders.kinds import Order
from prefeed.loaders.order import interleave
from prefeed.torch.forecasts import Forecast
from prefeed.torch.order import CHUNK, FIRST, WINDOW, ReadAhead, batch_size_of

NO_SAMPLES: Final[Order] = np.empty(0, dtype=np.int64)

_MOST_AHEAD: Final = 16
"""Chunks that are read ahead of a sampler that draws one sample after the other."""

_MOST_IDS: Final = 1 << 22
"""Maximum objects of one window. A sample may have many."""


class ReadingOrder:
    """Order in which the workers of a loader read samples.

    Args:
        sampler: Sampler or batch sampler of one pass. Its batch size may change between passes.
        num_workers: Workers of the loader.
        batches_ahead: Batches that torch has drawn and the loop has not received.
    """

    def __init__(self, sampler: Any, *, num_workers: int, batches_ahead: int) -> None:
        self._sampler = sampler
        self.num_workers = num_workers
        self.batches_ahead = batches_ahead

    @property
    def batch_size(self) -> int | None:
        """Samples per batch; None if the sampler has no batch size."""
        return batch_size_of(self._sampler)

    @property
    def group(self) -> int:
        """Samples of the batches that workers read side by side."""
        return (self.batch_size or 1) * max(1, self.num_workers)

    def whole_groups(self, num_samples: int) -> int:
        """Round a number of samples up to whole groups of batches that workers read side by side."""
        return -(-num_samples // self.group) * self.group

    def apply(self, order: Order) -> Order:
        """Return samples in the order in which workers read them."""
        batch_size = self.batch_size
        if batch_size is None:
            return order
        return interleave(order, batch_size=batch_size, num_workers=self.num_workers)


class PlanTarget:
    """Access map and consumer of a loader, which turn samples into objects and receive plans.

    While the loader reads directly, stand-ins take their place: the order is kept as samples, and no server hears of it.

    Attributes:
        access: Access map of the dataset.
        consumer: Receives the plans.
        supposing: Decides how much of a guess is planned; None without a guess.
        reading: Order in which the workers read.
    """

    def __init__(
        self,
        access: AccessMap | Samples,
        consumer: Consumer | Unheard,
        reading: ReadingOrder,
        guess: Guess | None = None,
    ) -> None:
        self.reading = reading
        self.switch(access, consumer, guess)

    def switch(self, access: AccessMap | Samples, consumer: Consumer | Unheard, guess: Guess | None = None) -> None:
        """Send plans to this consumer from now on."""
        self.access, self.consumer = access, consumer
        self.supposing: Supposing | None = None
        if guess is not None:
            assert not isinstance(access, Samples)
            assert not isinstance(consumer, Unheard)
            self.supposing = Supposing(access, consumer, guess)

    def prepare(self) -> None:
        """Load files that were learned of samples, and choose whether objects are kept."""
        self.access.refresh()
        self.choose_residency()

    def choose_residency(self) -> None:
        """Let objects be read once if a stage cache has space for their samples; otherwise keep them.

        A sample that the stage cache stores is found there the next time, without its objects.
        """
        if self.access.cached is not None:
            self.consumer.keep(resident=not self.consumer.reads_once and not self.access.cached.has_room())

    def object_ids(self, order: Order) -> Ids:
        """Return the objects of samples, in the order of the samples."""
        return self.access.object_ids(order)[0]

    def planned_ids(self, order: Order) -> tuple[Ids, npt.NDArray[np.integer] | None]:
        """Return the objects in the order of reading, and how many each sample has; None: one each."""
        return self.access.object_ids(self._in_reading_order(order))

    def num_plannable(self, order: Order, *, may_wait: bool) -> int:
        """Return how many samples of an order can be planned, in whole groups. Files of some may be a guess."""
        if self.supposing is None:
            return len(order)
        self.supposing.look()
        size = self.reading.whole_groups(LOOK)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            reached = self.supposing.reach(self._in_reading_order(part), may_wait=may_wait)
            if reached < len(part):
                return start + reached - reached % self.reading.group
        return len(order)

    def _in_reading_order(self, order: Order) -> Order:
        # Samples that are kept until the loader joins stay in the order of the sampler.
        return order if isinstance(self.access, Samples) else self.reading.apply(order)


class PlanWindows:
    """Order of a pass in windows: how much was read and held back, and when more is due.

    Args:
        target: Turns samples into objects.

    Attributes:
        ahead: Reads the pass ahead; None if its order is not known.
        read_at: Samples that torch has drawn when the next window may be due.
        is_guessed: Samples are held back until others, which tell whether a guess is right, were made.
    """

    def __init__(self, target: PlanTarget) -> None:
        self._target = target
        self.ahead: ReadAhead | Forecast | None = None
        self.read_at = 0
        self.is_guessed = False
        self._held: Order = NO_SAMPLES

    @property
    def is_holding(self) -> bool:
        """True while samples that were read are held back."""
        return len(self._held) > 0

    @property
    def has_more(self) -> bool:
        """True while samples may follow those that are planned."""
        return self.ahead is not None and (self.ahead.has_more or self.is_holding)

    def begin(self, ahead: ReadAhead | Forecast | None) -> None:
        """Begin a pass, whose first window was read."""
        self.ahead, self.read_at = ahead, 0

    def read_first(self, ahead: ReadAhead | Forecast) -> Order:
        """Read the first window of an order."""
        reading = self._target.reading
        order = ahead.read(reading.whole_groups(ahead.window))
        return self.fit(order, num_asked=reading.batches_ahead * (reading.batch_size or 1), may_wait=True)

    def read_next(self, *, num_drawn: int, num_planned: int) -> Order:
        """Read the next window if it is due; otherwise return no samples.

        Args:
            num_drawn: Samples of the pass that torch has drawn.
            num_planned: Samples of the pass that are planned.
        """
        ahead = self.ahead
        if ahead is None or not self.has_more:
            self.read_at = num_drawn + CHUNK  # nothing follows in this pass
            return NO_SAMPLES
        most = max(FIRST, min(CHUNK, num_planned))  # ever more: the first batches wait for little
        if isinstance(ahead, Forecast):
            most = FIRST  # of Python code
        if not self.is_guessed:  # else it is looked at with each batch
            self.read_at = num_drawn + most // 2
        most_ahead = WINDOW if ahead.window == WINDOW else _MOST_AHEAD * CHUNK
        if num_planned - num_drawn >= most_ahead:
            return NO_SAMPLES
        try:
            order = self._held if self.is_holding else ahead.read(self._target.reading.whole_groups(most))
        except Exception:  # noqa: BLE001 - it is the user's: he hears of it when torch comes there
            ahead.has_more = False
            return NO_SAMPLES
        return self.fit(order, num_asked=max(0, num_drawn + 1 - num_planned))

    def fit(self, order: Order, *, num_asked: int, may_wait: bool = False) -> Order:
        """Return as much of the order as a window takes, and hold the rest back. A sample may have many objects.

        Args:
            order: Samples that are not planned.
            num_asked: Number of them that torch has requested, or requests at once.
            may_wait: Whether an epoch is about to begin.
        """
        target, most = self._target, len(order)
        if len(order) >= CHUNK:
            target.access.refresh()
            mean = len(target.object_ids(order[:CHUNK])) / CHUNK
            most = target.reading.whole_groups(int(_MOST_IDS / mean)) if mean > 1 else most
        reached = target.num_plannable(order[:most], may_wait=may_wait)
        self.is_guessed = reached < min(most, len(order))
        if self.is_guessed:
            most = max(reached, target.reading.whole_groups(num_asked))
        order, self._held = order[:most], order[most:]
        return order
