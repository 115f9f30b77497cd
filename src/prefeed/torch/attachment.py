"""What ties one loader to the node server, epoch after epoch."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final
from weakref import ref

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.in_place import Samples, Unheard
from prefeed.client.joining import Joining
from prefeed.client.launch import is_listening
from prefeed.client.node import NodeClient
from prefeed.config import Config, current
from prefeed.core.requests import Again
from prefeed.errors import ConfigError, DeclarationError, FilesUnknownError, PrefeedError, SampleSetError
from prefeed.loaders.access import Opening, access_of, guess_of, node_settings
from prefeed.loaders.kinds import length_of
from prefeed.loaders.report import Reported, WaitReporter
from prefeed.loaders.stages import begin_pass, has_cached_stage
from prefeed.run_summary import counters
from prefeed.shown import described
from prefeed.system.thread_lock import ThreadLock
from prefeed.torch.in_place import InPlace
from prefeed.torch.items import LoaderView, is_stream, samples_as_torchs, shown_as, works_in_threads
from prefeed.torch.naming import is_trial, name_of, rank_of_process
from prefeed.torch.order import pass_length
from prefeed.torch.place import Place, ReadTotals, Refusal, measures, refusal_of
from prefeed.torch.planning import PlannedSampler
from prefeed.torch.resuming import Position, Rest, num_batches_of
from prefeed.torch.ring import Lease, Rings, can_pin
from prefeed.torch.samples import Staged
from prefeed.torch.serving import Served
from prefeed.types import OriginReads, ReadCounts

_log = logging.getLogger("prefeed")

_BATCH_BUFFER_BYTES: Final = 1 << 30
"""Maximum shared memory that a loader keeps and reuses for its workers' batches; 0 for none. Other batches are sent as torch sends them."""

_LEAST_HIT_RATIO_OF_PARTS: Final = 0.5
"""Below this bound of the hit ratio, a loader that reads small parts of large files reads them directly: most parts would fetch a whole file."""


class Attachment(Reported):
    """What ties one loader to the node server; opened at its first epoch, or a later one when that could not be done.

    **Ownership**: ``Attachments``, while there is the loader, and iterators. When the last of them is collected, the
    consumer's connection closes and the server forgets its plan.
    """

    def __init__(self, config: Config | None, *, explicit: bool) -> None:
        self.explicit = explicit
        self.num_epochs_before = 0  # of loaders that this one is in the place of
        self.planned: PlannedSampler | None = None
        self.served: Served | None = None
        self._config = config
        self._consumer: Consumer | None = None
        self._report: WaitReporter | None = None
        self._rings: Rings | None = None
        self._place: Place | None = None
        self._access: AccessMap | None = None
        self._changing = ThreadLock()  # the thread that joins, and the loop that lets go
        self._given_up = False
        self._num_workers = 0  # that the plan is interleaved for
        self._again = Again()
        self._said = ""  # why the last try to attach failed
        self._has_opened = False  # a sample below the roots; later ones may use files that are open by then
        self._name = ""
        self._place_said = ""
        self._is_unserved = False  # the epoch was in place so far
        self._is_named = False  # by a sample set that cannot be used, which is worth a warning
        self._totals = ReadTotals()
        self.position: Position = Position()
        self.turn: int = 0  # of the iterator that was made last: an older one is not counted any more

    @property
    def config(self) -> Config:
        """Settings given to the loader, or those in force."""
        return self._config or current()

    @property
    def num_epochs(self) -> int:
        """Epochs that began."""
        return 0 if self._report is None else self._report.num_epochs

    def leave(self, loader: Any, reason: str) -> None:
        """The loader is left alone; the reason is said once."""
        self._say(Refusal(reason))
        self._note(name_of(loader))

    @property
    def stand_in(self) -> Served | InPlace | None:
        """What stands in for the dataset of a loader with a plan."""
        return self.served if self._place is None else self._place.dataset

    def serve(self, loader: TorchDataLoader[Any]) -> Served | Staged | None:
        """Return what stands in for the dataset in the next epoch; None: nothing does."""
        if works_in_threads(loader) and has_cached_stage(loader.dataset):
            self.leave(
                loader,
                f"the workers of its class, {type(loader).__name__}, are threads, which share the cache of a stage",
            )
            return None
        begin_pass(loader.dataset)
        served = self.attach(loader) or self.staged(loader)
        if self._place is None:
            self._note(name_of(loader), is_served=served is not None)
        return served

    def attach(self, loader: TorchDataLoader[Any]) -> Served | InPlace | None:
        """Return the served dataset, or the one that begins in place; None when this loader cannot be helped, which is said once."""
        place = self._place
        if place is not None and place.pid != os.getpid():  # its memory is the parent's
            place = self._place = None
        if place is not None and self._num_workers == loader.num_workers:
            return place.dataset
        is_connected = self._consumer is None or self._consumer.is_connected
        if self.served is not None and is_connected and self._num_workers == loader.num_workers:
            return self.served
        began = time.monotonic()
        if (self._given_up and self.served is None) or not self._again.is_due(began):
            return None
        refusal = self._try_open(loader)
        if refusal is None:
            if self._place is not None:
                return self._place.dataset
            self._has_attached()
            return self.served
        self._again.failed(began=began, now=time.monotonic())
        self._given_up = not refusal.may_pass
        self._say(refusal, is_staged=has_cached_stage(loader.dataset))
        return None

    def staged(self, loader: TorchDataLoader[Any]) -> Staged | None:
        """Return the dataset of a loader without a plan whose samples come from the cache of a stage; else None."""
        if not has_cached_stage(loader.dataset) or not samples_as_torchs(loader) or is_stream(loader):
            return None
        config = self.config
        if not config.enabled:
            return None
        self._rings = self._rings or Rings(_BATCH_BUFFER_BYTES)
        return Staged(loader.dataset)

    def _note(self, name: str, *, is_served: bool = False) -> None:
        """Record for the run summary that an iterator is served, or why not."""
        if is_served:
            counters.note(counters.SERVED, name)
        elif self._said:
            counters.note(counters.REFUSED, name, self._said)

    def _has_attached(self) -> None:
        self._given_up = False
        self._again.succeeded()
        if self._said:
            self._said = ""
            _log.log(logging.WARNING if self.explicit else logging.INFO, "prefeed: used for this loader from now on")

    def _say(self, refusal: Refusal, *, is_staged: bool = False) -> None:
        """Say why there is no plan; a reason that stays the same is said once."""
        if refusal.reason == self._said:
            return
        self._said = refusal.reason
        level = logging.WARNING if self._is_named or (self.explicit and not is_staged) else logging.INFO
        _log.log(
            level, "prefeed: %s: %s%s",
            "no plan" if is_staged else "not used for this loader", refusal.reason,
            " (later epochs try again)" if refusal.may_pass else "",
        )  # fmt: skip

    def view(self, loader: Any, served: Served | Staged | None, rest: Rest | None = None) -> Any:
        """Return what iterators are made from instead of the loader: its dataset is served, its sampler planned.

        Args:
            loader: The user's.
            served: What ``serve`` gave.
            rest: Of an epoch that is resumed.
        """
        view: Any = LoaderView(loader)
        sampler: Any = None
        if served is not None:
            view.dataset = served
        if served is not None and served is self.stand_in and self.planned is not None:
            shown_as(loader).begin(self.planned, rest)
            sampler = self.planned
        if self.explicit and not isinstance(loader.dataset, IterableDataset):
            sampler = self.position.watched(loader, sampler, rest)
        if sampler is not None:
            view._index_sampler = sampler
        if isinstance(served, Served) and served is self.served:
            shown_as(loader).serve(view, served)
        return view

    def read_counts(self) -> ReadCounts | None:
        """Return how the loader's reads went so far, by the counts of its own processes: those of a killed server are lost.

        A read in place is a direct one. Only the best possible ratio is the server's. None while nothing stands in for the dataset.
        """
        known, stand_in = super().read_counts(), self.stand_in
        best = None if known is None else known.best_hit_ratio
        if stand_in is None:
            return None
        return replace(self._totals.now(stand_in.shared, self._place), best_hit_ratio=best)

    def _stand_in_ends(self) -> None:
        if self.stand_in is not None:
            self._totals.keep(self.stand_in.shared, self._place)

    def reads_of_epoch(self) -> OriginReads | None:
        """Return how the samples of the epoch were read, without those that were returned before; None where that is not known."""
        place, consumer = self._place, self._consumer
        if place is None:
            return super().reads_of_epoch()
        reads = place.reads(round_trip_seconds=None if consumer is None else consumer.round_trip_seconds)
        return self._totals.not_reported(reads)

    def config_in_place(self) -> Config | None:
        """Return the settings of the node whose server may hear that the epoch was read in place; None: it was not."""
        return None if self._place is None or self._place.is_joined else self._place.config

    def epoch_begins(self, loader: TorchDataLoader[Any], *, num_seen: int = 0) -> None:
        """An iterator is about to be made; ``turn`` is its number from now on.

        Args:
            loader: The user's.
            num_seen: Batches of the epoch that the loop had before, when it resumes one.
        """
        counters.begin_epoch()
        if self._report is None:
            self._name = name_of(loader)
            self._report = WaitReporter(
                self._name, self.counts, self.told,
                rank=rank_of_process(), num_epochs=self.num_epochs_before, interval_seconds=self.config.report_interval,
                clock=time.monotonic,
            )  # fmt: skip
        self.turn += 1
        length, num_a_pass = num_batches_of(loader), _pass_length(loader)
        left = None if length is None else max(0, length - num_seen)
        if length is None and num_a_pass is not None:  # it may have no end
            left = num_a_pass - num_seen % num_a_pass
        if self._place is not None:
            self._begin_in_place(self._place)
        elif self.served is not None:
            self.served.epoch_begins()
        self._report.epoch_begins(left, num_a_pass=num_a_pass, is_trial=is_trial())

    def has_begun(self) -> None:
        """The iterator is made, its workers are started."""
        if self._report is not None:
            self._report.has_begun()

    def foresee(self, seed_source: torch.Generator | bool) -> None:
        """Workers are about to be started: let the server fetch for the first batch meanwhile."""
        if self.planned is not None:
            self.planned.iterator_begins(seed_source)

    def try_lease(self, loader: TorchDataLoader[Any]) -> Lease | None:
        """Return recycled memory for the batches of workers; None when batches go as torch sends them."""
        if self._rings is None:
            return None
        return self._rings.try_lease(
            loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            pinned=loader.pin_memory and can_pin(),
        )

    def next_batch(self, torchs: Callable[[], Any], turn: int) -> Any:
        """Return the next batch as torch gives it; the report hears of it, and of the end of the epoch.

        Args:
            torchs: Gives the batch.
            turn: Of the iterator that is asked.
        """
        if turn != self.turn:
            return torchs()
        report = self._report
        assert report is not None  # an epoch has begun
        report.asked()
        is_next_pass = report.is_between_passes
        if is_next_pass and self.planned is not None:
            self.planned.pass_begins()
            if self._place is not None:
                self._place.dataset.shared.epoch_begins()
            elif self.served is not None:
                self.served.epoch_begins()
        try:
            batch = torchs()
        except StopIteration:
            report.answered(is_batch=False)
            self.position.ended()
            self._epoch_ended(report)
            raise
        except BaseException:  # such as torch's timeout
            report.answered(is_batch=False)
            raise
        report.answered()
        self.position.advanced()
        place = self._place
        if place is not None and place.should_join(waited_seconds=report.waited_seconds, is_next_pass=is_next_pass):
            if self._again.is_due(time.monotonic()):
                place.begin_joining(ref(self), at_once=True)
        if report.has_last:
            self._tell_reads()
            report.epoch_ends()
        return batch

    def _tell_reads(self) -> None:
        if self.served is not None:
            self.served.reader.report()

    def _epoch_ended(self, report: WaitReporter) -> None:
        self._tell_reads()
        report.epoch_ends()
        served, planned, place = self.served, self.planned, self._place
        if place is not None:
            self._place_ended(place)
            if not place.is_joined:
                return
        if served is None or planned is None:
            return  # there is no plan, or it was let go meanwhile
        self._has_opened = self._has_opened or not served.opens_nothing()
        if not self._has_opened:
            dataset = type(served.inner).__name__
            self._give_up(Refusal(f"the samples of its dataset, {dataset}, open no files below {served.roots}"))
        elif self._fetches_more_than_it_reads(served):
            served.shared.reads_directly = True
            self._give_up(
                Refusal("its samples read small parts of large files, and most of these files do not fit in memory")
            )
        elif place is None or not place.begins_in_place(is_connected=True):
            planned.epoch_ended()

    def _fetches_more_than_it_reads(self, served: Served) -> bool:
        """Return whether each epoch would fetch whole files again of which samples read small parts."""
        if not served.shared.are_read_in_parts():
            return False
        counts = self.read_counts()
        best = None if counts is None else counts.best_hit_ratio
        return best is not None and best < _LEAST_HIT_RATIO_OF_PARTS

    def _give_up(self, refusal: Refusal) -> None:
        """Let the loader go, and say why."""
        self._stand_in_ends()
        with self._changing:
            self._let_go()
            self.served = self.planned = self._rings = self._place = None
        self._given_up = not refusal.may_pass
        self._say(refusal)
        self._note(f"later epochs of {self._name}")

    def _try_open(self, loader: TorchDataLoader[Any]) -> Refusal | None:
        """Attach to the node; return why not, or None."""
        try:
            reason = self._open(loader, node_settings(loader.dataset, self.config))
            return Refusal(reason) if reason else None
        except DeclarationError:
            raise  # somebody wrote it for this, and would wait in vain for what it promises
        except (SampleSetError, ConfigError) as err:
            if self.explicit and self.served is None:
                raise  # named by somebody; one that was deleted while its loader trains is not missed
            self._is_named = True
            return Refusal(str(err))
        except FilesUnknownError as err:
            return Refusal(str(err))  # of the dataset, whatever becomes of the node
        except (PrefeedError, OSError) as err:
            return Refusal(str(err), may_pass=True)
        except Exception as err:
            if self.explicit:
                raise
            # The user did not ask for this loader to be served: an error of its dataset in our code must not be noticed.
            _log.debug("prefeed: attaching failed", exc_info=True)
            return Refusal(described(err))

    def _open(self, loader: Any, config: Config) -> str:
        if not config.enabled:
            return "PREFEED_ENABLED is 0"
        if reason := shown_as(loader).why_unknown():
            return reason
        if not samples_as_torchs(loader):
            return f"its class, {type(loader).__name__}, chooses the sampler in a way of its own"
        opening = access_of(loader.dataset, config, explicit=self.explicit)
        if _may_begin_in_place(loader, opening, config):
            self._stand_in_ends()
            with self._changing:
                self._let_go()
                self._consumer = self.served = None
                self._place = Place(loader, opening, config)
            try:
                self._set_up(loader, Samples(len(loader.dataset)), Unheard(), config)
            except BaseException:
                self._place = None  # it has no plan: the loader is left alone
                raise
            return ""
        node = NodeClient.connect(config)
        try:
            access = opening(node)
        except BaseException:
            node.close()
            raise
        self._stand_in_ends()
        with self._changing:
            self._let_go()
            self._place, self._consumer, self.served = None, Consumer(node, access.dataset), None
        self._set_up(loader, access, self._consumer, config)
        self.served = Served(loader.dataset, access, self._consumer.number)
        if self.served.writes is not None:
            self.served.writes.begin()
        return ""

    def _set_up(
        self, loader: TorchDataLoader[Any], access: AccessMap | Samples, consumer: Consumer | Unheard, config: Config
    ) -> None:
        self._num_workers = loader.num_workers
        draws_seed = not (loader.persistent_workers and loader.num_workers > 0)
        seed_source = (loader.generator or True) if draws_seed else None
        self.planned = PlannedSampler(
            loader._index_sampler,
            access,
            consumer,
            trust=config.trust_samplers,
            num_workers=loader.num_workers,
            batches_ahead=max(1, (loader.prefetch_factor or 0) * loader.num_workers),
            seed_source=seed_source,
            guess=None if isinstance(access, Samples) else guess_of(loader.dataset, access, config),
        )
        self._rings = self._rings or Rings(_BATCH_BUFFER_BYTES)

    # ------------------------------------------------------------ epochs that begin in place

    def _begin_in_place(self, place: Place) -> None:
        """Another epoch begins: in place, or through the server that the loader has joined before."""
        self._count_unserved(place)
        place.epoch_ended()
        self._totals.epoch_begins(place)
        assert self.planned is not None
        with self._changing:
            consumer = self._consumer
            is_connected = place.is_joined and consumer is not None and consumer.is_connected
            in_place = place.begins_in_place(is_connected=is_connected)
            place.epoch_begins(in_place=in_place)
            if in_place:
                self.planned.leave()
        self._is_unserved = in_place
        if not in_place:
            self._note(self._name, is_served=True)
        if in_place and self._again.is_due(time.monotonic()):
            place.begin_joining(ref(self))

    def _count_unserved(self, place: Place, *, is_said: bool = True) -> None:
        """The epoch before was read in place to its end, or to where the loop left it."""
        if not self._is_unserved:
            return
        self._is_unserved, why = False, place.why_in_place()
        counters.note(counters.REFUSED, self._name, self._said or why)
        if is_said and why != self._place_said:
            self._place_said = why
            place.say(self._name, why)

    def _place_ended(self, place: Place) -> None:
        place.epoch_ended()
        if place.joining is not None and place.joining.is_waiting:
            place.joining.stop()
        if not place.is_joined:
            self._count_unserved(place)

    @property
    def was_connected(self) -> bool:
        """Whether the loader has connected to the server before."""
        return self._consumer is not None

    @property
    def is_connected(self) -> bool:
        """Whether the loader has a connection to the server, and knows its files there."""
        return self._consumer is not None and self._access is not None and self._consumer.is_connected

    def join(self, place: Place, joining: Joining, node: NodeClient | Refusal | None, began: float) -> None:
        """Join the server in the middle of the epoch; called in the thread of ``joining``, which ends after it.

        Args:
            place: The loader's.
            joining: The try to join.
            node: A new connection, or why none was made; None if the loader is connected.
            began: When connecting began, by the monotonic clock.
        """
        if isinstance(node, Refusal):
            self._could_not_join(place, node, began)
            return
        consumer, access = self._consumer, self._access
        try:
            if node is not None:
                access = place.open_on(node)
                consumer = Consumer(node, access.dataset)
            assert consumer is not None
            assert access is not None
            try:
                self._join(place, joining, consumer, replace(access, dataset=consumer.dataset))
            finally:
                if consumer is not self._consumer:
                    consumer.close()
        except Exception as err:  # noqa: BLE001 - whatever the user's dataset does to us, samples are read in place
            self._could_not_join(place, refusal_of(err), began)

    def _could_not_join(self, place: Place, refusal: Refusal, began: float) -> None:
        self._again.failed(began=began, now=time.monotonic())
        place.is_refused = not refusal.may_pass
        self._say(refusal)

    def _join(self, place: Place, joining: Joining, consumer: Consumer, access: AccessMap) -> None:
        guess = guess_of(place.dataset.inner, access, place.config) or place.guess(access)
        with self._changing:
            before, planned, served = self._consumer, self.planned, self.served
            if joining.is_stopped or planned is None:
                return
            if consumer is not before or served is None:
                self._close()
                self._consumer, self._access = consumer, access
                served = Served(place.dataset.inner, access, consumer.number, shared=place.dataset.shared)
                if served.writes is not None:
                    served.writes.begin()
                self.served = served
            consumer.was_elsewhere()  # what workers wrote that were started since was told to nobody
            planned.join(access, consumer, guess)
            place.dataset.adopt(served, access)
            self._is_unserved = False
        self._note(self._name, is_served=True)
        self._has_attached()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nothing depends on it: the server notices a closed socket. At the very end (dill keeps things so long) modules are empty.
        try:
            self.count_left()
            self._let_go()
        except (AttributeError, TypeError):
            if not is_finalizing():
                raise

    def count_left(self) -> None:
        """The loader ends, or the program, perhaps in an epoch that was read in place so far."""
        if self._place is not None:
            self._place.count_direct()
        if self._is_unserved and self._place is not None and self._place.pid == os.getpid():
            self._count_unserved(self._place, is_said=False)

    def _let_go(self) -> None:
        if self._place is not None:
            self._place.end()
        self._close()

    def _close(self) -> None:
        if self.served is not None:
            self.served.reader.close()
            if self.served.writes is not None:
                self.served.writes.end()
        if self._consumer is not None:
            self._consumer.close()


def _may_begin_in_place(loader: Any, opening: Opening, config: Config) -> bool:
    """Return whether a loader's epochs may begin without the server, because that has to start, or may not be needed.

    What is below the cache of a stage needs the server before its first sample. Workers that are threads, and loaders that make
    items themselves, wait for it.
    """
    if not isinstance(loader, TorchDataLoader) or works_in_threads(loader) or opening.has_cache:
        return False
    if length_of(loader.dataset) is None:  # it declares its files
        return False
    if measures(opening, config):
        return True
    return config.limits.start_ahead and config.autostart and not is_listening(config)


def _pass_length(loader: TorchDataLoader[Any]) -> int | None:
    """Return after how many batches a new epoch begins, if the iterator continues."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    num_samples = length_of(loader.dataset)
    if num_samples is None:
        return None
    return pass_length(loader._index_sampler, num_samples=num_samples, batch_size=getattr(loader, "batch_size", None))
