"""What a training run says of itself in the log: hit rates from time to time, and one line at the end of an epoch.

An epoch is a whole pass: these are counted, and told to the node. One that the loop has left has a line of its own and no
number, once that is known: when the next one begins. So has what a framework tries before it trains.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from weakref import ref

from prefeed.client.consumer import Consumer
from prefeed.client.untold import keep_untold
from prefeed.config import Config
from prefeed.run_summary import counters
from prefeed.types import EpochWait, OriginReads, ReadCounts

_log = logging.getLogger("prefeed")

_NO_READS = "; no reads through the cache"

_LEAST_LEFT = 2
"""A loop that took fewer batches has only had a look, maybe thousands of times: nothing is said of it."""

Publish = Callable[[EpochWait], None]
"""Is told of each epoch that ended."""

Counts = Callable[[], ReadCounts | None]
"""Asks the node how the loader's reads went so far; None when it is not told."""


class WaitReporter:
    """Measures how long the training loop waits for one loader, and reports.

    Args:
        name: What the log calls the loader.
        rank: Of the process among those that train together; None when it trains alone.
        num_epochs: That there were before, of a loader in whose place this one is.
        counts: Asked at the end of each epoch, after one that was broken off, and each time that a line is due.
        publish: Told of each epoch that ended.
        interval_seconds: Between two lines of hit rates; 0: none.
        clock: Monotonic seconds.

    **Threads**: the training loop's.
    """

    def __init__(
        self,
        name: str,
        counts: Counts,
        publish: Publish,
        *,
        rank: int | None = None,
        num_epochs: int = 0,
        interval_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._shown = name if rank is None else f"{name} (rank {rank})"
        self._rank = rank
        self._counts = counts
        self._publish = publish
        self._interval = interval_seconds
        self._clock = clock
        self._epoch = num_epochs
        self._is_running = False
        self._is_trial = False
        self._num_left: int | None = None
        self._num_a_pass: int | None = None
        self._num_batches = 0
        self._began = self._last_line = clock()
        self._waited = 0.0
        self._asked_at = self._answered_at = 0.0
        self._at_line = ReadCounts()
        self._at_epoch = ReadCounts()
        self._counted_until = self._counted_waited = 0.0

    def epoch_begins(
        self, num_batches: int | None = None, *, num_a_pass: int | None = None, is_trial: bool = False
    ) -> None:  # fmt: skip
        """The loop asks for an iterator; the time from now on is the epoch's, and so are the reads.

        Args:
            num_batches: Batches that it will give; None when that is not known.
            num_a_pass: If it gives more, each group of that many is an epoch.
            is_trial: Somebody only tries whether the loop runs: that is no epoch, however far it comes.
        """
        self._num_a_pass = num_a_pass
        if self._is_running:
            self._was_left()
        self._is_trial = is_trial
        self._begin(num_batches, self._clock())

    def has_begun(self) -> None:
        """The loop has its iterator: it waited for that, too."""
        now = self._clock()
        self._waited = now - self._began
        self._count(now)

    def asked(self) -> None:
        """The loop asks for a batch."""
        self._asked_at = self._clock()

    def answered(self, *, is_batch: bool = True) -> None:
        """The loop has a batch, or hears that there is none, also by an error: it waited from ``asked`` until now."""
        now = self._answered_at = self._clock()
        if is_batch and not self._is_running and self._num_a_pass and self._num_batches >= self._num_a_pass:
            self._begin(self._num_a_pass, self._asked_at)  # the iterator begins another pass
        self._waited += now - self._asked_at
        self._num_batches += is_batch
        self._count(now)
        if is_batch and self._num_left is not None:
            self._num_left -= 1
        if self._interval and now - self._last_line >= self._interval:
            self._last_line = now
            self._say_rates()

    @property
    def waited_seconds(self) -> float:
        """How long the loop has waited in this pass."""
        return self._waited

    @property
    def num_epochs(self) -> int:
        """Epochs that began."""
        return self._epoch

    @property
    def is_between_passes(self) -> bool:
        """True when an epoch has ended, and no further batch came yet."""
        return not self._is_running

    @property
    def has_last(self) -> bool:
        """True when the loop has the last batch of an epoch that did not end yet: Lightning asks for no further one."""
        return self._is_running and self._num_left == 0

    def epoch_ends(self) -> None:
        """The loop has the last batch; a second call says nothing."""
        if not self._is_running:
            return
        now = self._clock()
        self._count(now)
        self._is_running = False
        epoch = self._so_far(self._epoch + 1, until=now)
        if self._is_trial:
            self._say(f"sanity check of {self._shown}", epoch, self._counts())
            return
        self._epoch += 1
        self._publish(epoch)
        self._say(f"epoch {self._epoch} of {self._shown}", epoch, self._counts())

    def _was_left(self) -> None:
        """The loop has left the epoch before its end: its reads belong to no other epoch."""
        left, counts = self._so_far(0, until=self._answered_at), self._counts()
        if left.batches < _LEAST_LEFT:
            self._at_epoch = counts or self._at_epoch
            return
        of_all = "" if self._num_left is None else f" of {left.batches + self._num_left}"
        what = "sanity check" if self._is_trial else "unfinished epoch"
        self._say(f"{what} of {self._shown}, {left.batches}{of_all} batches", left, counts)

    def _so_far(self, epoch: int, *, until: float) -> EpochWait:
        return EpochWait(
            loader=self._name, rank=self._rank, epoch=epoch, batches=self._num_batches,
            seconds=until - self._began, waited_seconds=self._waited,
        )  # fmt: skip

    def _say(self, what: str, epoch: EpochWait, counts: ReadCounts | None) -> None:
        waited = 100 * epoch.waited_share
        text = f"prefeed: {what}: {waited:.1f} % of {epoch.seconds:.1f} s spent waiting for data"
        if counts is not None:
            reads = _since(counts, self._at_epoch)
            self._at_epoch = counts
            if not reads.reads:
                text += _NO_READS
            elif reads.direct_reads == reads.reads:
                text += f"; none of {reads.reads} reads went through the cache"
            else:
                text += f"; hit ratio {reads.hits / reads.reads:.3f} of {reads.reads} reads"
                if counts.best_hit_ratio is not None:
                    text += f", best possible without reading ahead {counts.best_hit_ratio:.3f}"
        _log.info("%s", text)

    def _begin(self, num_batches: int | None, now: float) -> None:
        self._is_running = True
        self._num_left = num_batches
        self._num_batches = 0
        self._began = self._counted_until = now
        self._waited = self._counted_waited = 0.0

    def _count(self, now: float) -> None:
        """Count for the run summary after each batch, because the process may be killed within an epoch."""
        if self._is_running and counters.is_counting():
            counters.add(counters.LOOP_NS, int((now - self._counted_until) * 1e9))
            counters.add(counters.WAITED_NS, int((self._waited - self._counted_waited) * 1e9))
            self._counted_until, self._counted_waited = now, self._waited

    def _say_rates(self) -> None:
        counts = self._counts()
        if counts is None or (counts.best_hit_ratio is None and counts.direct_reads == counts.reads):
            return  # no server was asked for any of them
        cycle, self._at_line = _since(counts, self._at_line), counts
        _log.info("prefeed: %s last_cycle_metrics:([%s]) sum_metrics:([%s])", self._shown, rates(cycle), rates(counts))


def rates(counts: ReadCounts) -> str:
    """Return counts and rates under the names that cube_torch prints; a late read is a miss."""
    missed = counts.reads - counts.hits
    of_all = 100 / counts.reads if counts.reads else 0.0
    return (
        f"request_count:{counts.reads} hit_count:{counts.hits} miss_count:{missed} "
        f"hit_rate:{counts.hits * of_all:.2f}% miss_rate:{missed * of_all:.2f}%"
    )


def _since(now: ReadCounts, then: ReadCounts) -> ReadCounts:
    """Return what was added; a new server, or a loader attached again, begins at zero."""
    if now.reads < then.reads:
        return now
    return ReadCounts(
        hits=now.hits - then.hits,
        late=now.late - then.late,
        misses=now.misses - then.misses,
        direct_reads=now.direct_reads - then.direct_reads,
        best_hit_ratio=now.best_hit_ratio,
    )


class Reported:
    """What ties a loader to the node, as far as its ``WaitReporter`` asks it and tells it.

    Its callbacks refer to it weakly: in a cycle it would be up to the garbage collector when the connection is closed, and in
    which thread.
    """

    _consumer: Consumer | None = None

    def read_counts(self) -> ReadCounts | None:
        """Return how the loader's reads went so far; None without a server."""
        return None if self._consumer is None else self._consumer.read_counts()

    def publish(self, epoch: EpochWait) -> None:
        """Tell the node how an epoch went, or keep it here without a server."""
        epoch = replace(epoch, reads=self.reads_of_epoch())
        if self._consumer is not None and self._consumer.is_connected:
            self._consumer.epoch_ended(epoch)
        else:
            keep_untold(epoch, self.config_in_place())

    def reads_of_epoch(self) -> OriginReads | None:
        """Return how the samples of the epoch were read; None without a server."""
        consumer = self._consumer
        if consumer is None:
            return None
        return OriginReads(origin=consumer.origin, in_place=False, round_trip_seconds=consumer.round_trip_seconds)

    def config_in_place(self) -> Config | None:
        """Return the settings of a loader whose epoch was read in place; None: there is a plan, or none was wanted."""
        return None

    @property
    def counts(self) -> Counts:
        """What a ``WaitReporter`` asks; None once this is gone."""
        return partial(_read_counts, ref(self))

    @property
    def told(self) -> Publish:
        """What a ``WaitReporter`` tells; nothing once this is gone."""
        return partial(_publish, ref(self))


def _read_counts(reported: ref[Reported]) -> ReadCounts | None:
    found = reported()
    return None if found is None else found.read_counts()


def _publish(reported: ref[Reported], epoch: EpochWait) -> None:
    found = reported()
    if found is not None:
        found.publish(epoch)
