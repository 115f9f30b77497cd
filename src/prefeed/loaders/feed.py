"""``Feed``: what ties one loader of any framework to the node server, epoch after epoch.

    sampler ─indices→ Feed ─ids→ plan ──→ node server fetches ahead
                        │                      ↑ reads
    framework ←samples─ ServedSource ──────────┘   in whichever threads and processes

The integration with PyTorch has more to do (``torch.attachment``): it resumes epochs, foresees the next one, and
recycles batches. What both plan by is the same: ``access``, ``guesses``, ``client.consumer``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

import numpy as np

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.node import NodeClient
from prefeed.config import current
from prefeed.core.requests import Again
from prefeed.errors import FilesUnknownError, PrefeedError
from prefeed.loaders.access import access_of, guess_of, node_settings
from prefeed.loaders.by_identity import ByIdentity
from prefeed.loaders.guesses import Supposing
from prefeed.loaders.kinds import Order
from prefeed.loaders.report import Reported, WaitReporter
from prefeed.loaders.sources import ServedSource
from prefeed.loaders.stages import has_cached_stage
from prefeed.run_summary import counters
from prefeed.shown import described

_log = logging.getLogger("prefeed")

_FIRST: Final = 1 << 10
"""Samples that are drawn before an epoch begins: tens of milliseconds where a sampler is slow."""

_CHUNK: Final = 1 << 9
"""Samples that are drawn between two batches."""

_AHEAD: Final = 1 << 16
"""Objects that are planned and not read: no more are drawn."""

_OUT_OF_ORDER: Final = 1 << 12
"""Objects by which workers may be ahead of one another: the server waits for this number more before it gives up one that is not read."""

T = TypeVar("T")


class Feed(Reported):
    """Plans the samples of one loader, and reads them through the cache.

    A loader that cannot be helped is left alone, and one line of the log says why; so does the run summary.

    Args:
        dataset: The user's, map-style.
        name: What messages call the loader.

    **Ownership**: ``Feeds``, for as long as there is the loader, and iterators. When the last of them is collected, the
    connection closes and the server forgets the plan.
    **Threads**: one at a time; which one may change.
    """

    def __init__(self, dataset: Any, name: str) -> None:
        self.name = name
        self.pid: int = os.getpid()
        self._dataset = dataset
        self._consumer: Consumer | None = None
        self._access: AccessMap | None = None
        self._supposing: Supposing | None = None
        self._source: ServedSource | None = None
        self._again = Again()
        self._given_up = False
        self._said = ""
        self._order: Iterator[int] = iter(())
        self._held: Order = np.empty(0, dtype=np.int64)
        self._num_planned = 0  # objects, of all epochs
        self._num_told = 0  # reads that the server knew of when it was asked last, of all epochs
        self._told_before = 0  # the same, when the epoch began
        self._look_at = 0
        self._num_steps = 0
        self._report: WaitReporter | None = None

    # ------------------------------------------------------------ epochs

    def serve(self) -> ServedSource | None:
        """Return what stands in for the dataset in the next epoch; None: nothing does."""
        source = self._try_serve()
        if source is not None:
            counters.note(counters.SERVED, self.name)
        elif self._said:
            counters.note(counters.REFUSED, self.name, self._said)
        return source

    def leave(self, reason: str) -> None:
        """The loader is left alone from now on; the reason is said once."""
        self._given_up = True
        self._let_go()
        self._say(reason)

    def begin(self, order: Iterable[int]) -> None:
        """An epoch begins.

        Args:
            order: Of its samples, as workers will ask for them; drawn as far as it is needed.
        """
        consumer, access = self._consumer, self._access
        if consumer is None or access is None:
            return
        self._order, self._num_steps, self._look_at = iter(order), 0, 0
        self._held = np.empty(0, dtype=np.int64)
        access.refresh()
        ids = self._next_ids(access, _FIRST, may_wait=True)
        counts = consumer.read_counts()
        self._told_before = self._num_told = self._num_planned = 0 if counts is None else counts.reads
        self._num_planned += len(ids)
        consumer.begin(ids, is_partial=True)

    def step(self) -> None:
        """The loop has another batch: more is planned, if there is little ahead of the reads."""
        consumer, access = self._consumer, self._access
        self._num_steps += 1
        if consumer is None or access is None:
            return
        if self._supposing is not None:
            self._supposing.look()
        if self._num_steps >= self._look_at:
            self._look(consumer)
        if self._num_planned - self._num_told < _AHEAD:
            ids = self._next_ids(access, _CHUNK)
            if len(ids):
                self._num_planned += len(ids)
                consumer.extend(ids, are_read_soon=False)

    def epoch_ended(self) -> None:
        """The loop has the last batch."""
        source, access = self._source, self._access
        if source is None or access is None:
            return
        source.report()
        access.refresh()
        if access.learned is not None and access.learned.opens_nothing():
            name = type(self._dataset).__name__
            self.leave(f"the samples of its dataset, {name}, open no files below the roots")
            counters.note(counters.REFUSED, f"later epochs of {self.name}", self._said)

    # ------------------------------------------------------------ the loop

    def loop_begins(self, num_batches: int | None) -> None:
        """The loop asks for an iterator; ``num_batches`` is None when it is not known."""
        counters.begin_epoch()
        if self._report is None:
            self._report = WaitReporter(
                self.name, self.counts, self.told,
                interval_seconds=current().report_interval, clock=time.monotonic,
            )  # fmt: skip
        self._report.epoch_begins(num_batches)

    def next_batch(self, make: Callable[[], T]) -> T:
        """Return the next batch of the loop; the report hears of it, and of the end of the epoch.

        Args:
            make: Gives the batch; raises ``StopIteration`` at the end.
        """
        report = self._report
        assert report is not None  # a loop has begun
        report.asked()
        try:
            batch = make()
        except StopIteration:
            report.answered(is_batch=False)
            if self._source is not None:
                self._source.report()
            report.epoch_ends()
            self.epoch_ended()
            raise
        except BaseException:
            report.answered(is_batch=False)
            raise
        report.answered()
        self.step()
        return batch

    # ------------------------------------------------------------ inside

    def _look(self, consumer: Consumer) -> None:
        """Ask how many objects were read, and decide after how many batches it is asked again."""
        counts = consumer.read_counts()
        if counts is not None:
            self._num_told = max(self._num_told, counts.reads)
        num_read = self._num_told - self._told_before
        pace = max(1.0, num_read / self._num_steps)
        ahead = max(
            _CHUNK, (self._num_planned - self._num_told) // 8
        )  # a question takes milliseconds on a busy machine
        self._look_at = self._num_steps + max(1, int(ahead / pace))
        if num_read > _OUT_OF_ORDER:
            consumer.advance(num_read - _OUT_OF_ORDER)

    def _try_serve(self) -> ServedSource | None:
        is_connected = self._consumer is None or self._consumer.is_connected
        if self._source is not None and is_connected:
            return self._source
        began = time.monotonic()
        if self._given_up or not self._again.is_due(began):
            return self._source
        try:
            self._open()
            self._again.succeeded()
        except FilesUnknownError as err:
            self.leave(str(err))
        except (PrefeedError, OSError) as err:
            self._again.failed(began=began, now=time.monotonic())
            self._say(str(err))
        except Exception as err:  # noqa: BLE001 - the program did not ask for this: an error of its dataset must not reach it
            _log.debug("prefeed: attaching failed", exc_info=True)
            self.leave(described(err))
        return self._source

    def _open(self) -> None:
        config = node_settings(self._dataset, current())
        if not config.enabled:
            raise FilesUnknownError("PREFEED_ENABLED is 0")
        if has_cached_stage(self._dataset):
            raise FilesUnknownError("its samples come from the cache of a stage")
        open_access = access_of(self._dataset, config, explicit=False)
        node = NodeClient.connect(config)
        try:
            access = open_access(node)
        except BaseException:
            node.close()
            raise
        self._let_go()
        self._access, self._consumer = access, Consumer(node, access.dataset)
        guess = guess_of(self._dataset, access, config)
        self._supposing = None if guess is None else Supposing(access, self._consumer, guess)
        self._source = ServedSource(self._dataset, access, self._consumer.number)

    def _next_ids(self, access: AccessMap, most: int, *, may_wait: bool = False) -> Order:
        """Return the objects of the next samples, as far as it is known what these open."""
        drawn = self._held
        if len(drawn) < most:
            more = np.fromiter(islice(self._order, most - len(drawn)), dtype=np.int64)
            drawn = np.concatenate((drawn, more))
        reached = len(drawn) if self._supposing is None else self._supposing.reach(drawn, may_wait=may_wait)
        self._held = drawn[reached:]
        return access.object_ids(drawn[:reached])[0].astype(np.int64, copy=False)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            _log.info("prefeed: not used for %s: %s", self.name, reason)

    def _let_go(self) -> None:
        source, consumer = self._source, self._consumer
        self._source = self._consumer = self._access = self._supposing = None
        if source is not None:
            source.close()
        if consumer is not None:
            consumer.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Not clean-up that anything depends on: the server notices a closed socket, and process exit closes it too.
        if not is_finalizing():
            self._let_go()


class Feeds:
    """The feed of each loader of one framework, as long as there is the loader.

    Args:
        kind: What messages call its loaders.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._feeds: ByIdentity[list[Feed]] = ByIdentity()
        self._names: set[str] = set()

    def of(self, loader: Any, dataset: Any) -> Feed:
        """Return the feed of a loader, in this process.

        Args:
            loader: Any object of the framework that stands for it.
            dataset: What it loads.
        """
        kept = self._feeds.get_or_make(loader, list)
        if not kept or kept[0].pid != os.getpid():  # a forked child has a plan of its own
            kept[:] = [Feed(dataset, self._name_of(dataset))]
        return kept[0]

    def renew(self, loader: Any, dataset: Any) -> None:
        """Let the loader's feed go: from its next epoch on it loads this dataset, under the same name."""
        kept = self._feeds.get_or_make(loader, list)
        if kept:
            kept[:] = [Feed(dataset, kept[0].name)]

    def clear(self) -> None:
        """Let all loaders go; iterators that are in use run to their end."""
        self._feeds.clear()

    def _name_of(self, dataset: Any) -> str:
        name = f"{self._kind} ({type(dataset).__name__})"
        text, number = name, 1
        while text in self._names:
            number += 1
            text = f"{name} #{number}"
        self._names.add(text)
        return text
