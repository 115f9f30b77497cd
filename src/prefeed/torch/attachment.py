"""What ties one loader to the node server, epoch after epoch."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import ref

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.node import NodeClient, keep_untold
from prefeed.config import Config, current
from prefeed.core.requests import Again
from prefeed.errors import ConfigError, DeclarationError, FilesUnknownError, PrefeedError, SampleSetError
from prefeed.loaders.access import access_of, guess_of, node_settings
from prefeed.loaders.kinds import length_of
from prefeed.loaders.report import LoaderReport
from prefeed.loaders.stages import begin_pass, has_cached_stage
from prefeed.tally import program
from prefeed.torch.items import is_stream, shown_as
from prefeed.torch.naming import is_trial, name_of, rank_of_process
from prefeed.torch.order import pass_length
from prefeed.torch.planning import PlannedSampler
from prefeed.torch.resuming import Position, Rest, num_batches_of
from prefeed.torch.ring import Lease, Rings, can_pin
from prefeed.torch.serving import Served, Staged
from prefeed.types import EpochWait, ReadCounts

_log = logging.getLogger("prefeed")

_TRY_AGAIN_TIMES: Final = 20
"""A loader that the cache made slower is served again after so many times what that epoch took: storage may have become slower."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a loader has no plan; ``may_pass``: it is no fault of the loader or its dataset, and later epochs try again."""

    reason: str
    may_pass: bool = False


class Attachment:
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
        self._report: LoaderReport | None = None
        self._rings: Rings | None = None
        self._given_up = False
        self._num_workers = 0  # that the plan is interleaved for
        self._again = Again()
        self._epoch_began = 0.0
        self._slower_until = 0.0
        self._said = ""  # why the last try to attach failed
        self._is_counted = False
        self._has_opened = False  # a sample below the roots; later ones may use files that are open by then
        self._name = ""
        self._is_named = False  # by a sample set that cannot be used, which is worth a warning
        self.position = Position()
        self.turn = 0  # of the iterator that was made last: an older one is not counted any more

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
        self._say(_Refusal(reason))
        self._count(name_of(loader))

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
        self._count(name_of(loader), is_served=served is not None)
        return served

    def attach(self, loader: TorchDataLoader[Any]) -> Served | None:
        """Return the served dataset; None when this loader cannot be helped, which is said once."""
        is_connected = self._consumer is None or self._consumer.is_connected
        if self.served is not None and is_connected and self._num_workers == loader.num_workers:
            return self.served
        began = time.monotonic()
        if (self._given_up and self.served is None) or not self._again.is_due(began) or began < self._slower_until:
            return None
        refusal = self._try_open(loader)
        if refusal is None:
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
        self._rings = self._rings or Rings(config.batch_buffers)
        return Staged(loader.dataset)

    def _count(self, name: str, *, is_served: bool = False, is_let_go: bool = False) -> None:
        """Count for the program's last line: an iterator, which is served or not, or that the loader was let go."""
        is_first, self._is_counted = not self._is_counted, True
        amounts = int(is_served), int(not is_served and not is_let_go), int(is_let_go), 0, 0, 0, 0, int(is_first)
        program.add(program.key_of(program.LOADER, name), *amounts)
        if not is_served and self._said:
            program.add(program.key_of(program.WHY, name, self._said), 1)

    def _has_attached(self) -> None:
        self._given_up = False
        self._again.succeeded()
        if self._said:
            self._said = ""
            _log.log(logging.WARNING if self.explicit else logging.INFO, "prefeed: used for this loader from now on")

    def _say(self, refusal: _Refusal, *, is_staged: bool = False) -> None:
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
            rest: Of an epoch that goes on.
        """
        view: Any = LoaderView(loader)
        sampler: Any = None
        if served is not None:
            view.dataset = served
        if served is not None and served is self.served and self.planned is not None:
            shown_as(loader).begin(self.planned, rest)
            sampler = self.planned
        if self.explicit and not isinstance(loader.dataset, IterableDataset):
            sampler = self.position.watched(loader, sampler, rest)
        if sampler is not None:
            view._index_sampler = sampler
        if served is not None and served is self.served:
            shown_as(loader).serve(view, served)
        return view

    def epoch_begins(self, loader: TorchDataLoader[Any], *, num_seen: int = 0) -> None:
        """An iterator is about to be made; ``turn`` is its number from now on.

        Args:
            loader: The user's.
            num_seen: Batches of the epoch that the loop had before, when it goes on with one.
        """
        if self._report is None:
            self._name = name_of(loader)
            self._report = LoaderReport(
                self._name, partial(_read_counts, ref(self)), partial(_publish, ref(self)),
                rank=rank_of_process(), num_epochs=self.num_epochs_before, interval_seconds=self.config.report_interval,
                clock=time.monotonic,
                tally=partial(program.add, program.key_of(program.LOADER, self._name), 0, 0, 0) if program.is_counting() else None,
            )  # fmt: skip
        self.turn += 1
        length, num_a_pass = num_batches_of(loader), _pass_length(loader)
        left = None if length is None else max(0, length - num_seen)
        if length is None and num_a_pass is not None:  # it may have no end
            left = num_a_pass - num_seen % num_a_pass
        self._epoch_began = time.monotonic()
        if self.served is not None:
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
        if report.is_between_passes and self.planned is not None:
            self.planned.pass_begins()
            if self.served is not None:
                self.served.epoch_begins()
        try:
            batch = torchs()
        except StopIteration:
            report.answered(is_batch=False)
            self.position.ended()
            self._epoch_ended(report)
            raise
        report.answered()
        self.position.advanced()
        if report.has_last:
            self._tell_reads()
            report.epoch_ends()
            self._leave_if_slower()
        return batch

    def _tell_reads(self) -> None:
        if self.served is not None:
            self.served.reader.report()

    def _epoch_ended(self, report: LoaderReport) -> None:
        self._tell_reads()
        report.epoch_ends()
        served, planned = self.served, self.planned
        if served is None or planned is None:
            return  # there is no plan, or it was let go meanwhile
        self._has_opened = self._has_opened or not served.opens_nothing()
        if not self._has_opened:
            dataset = type(served.inner).__name__
            self._give_up(_Refusal(f"the samples of its dataset, {dataset}, open no files below {served.roots}"))
        elif not self._leave_if_slower():
            planned.epoch_ended()

    def _leave_if_slower(self) -> bool:
        """Return True when the epoch showed that the files are better read where they lie, and the loader was let go."""
        reason = "" if self.served is None else self.served.why_slower()
        if reason:
            now = time.monotonic()
            self._slower_until = now + _TRY_AGAIN_TIMES * (now - self._epoch_began)
            self._give_up(_Refusal(reason, may_pass=True))
        return bool(reason)

    def _give_up(self, refusal: _Refusal) -> None:
        """Let the loader go, and say why."""
        self._let_go()
        self.served = self.planned = self._rings = None
        self._given_up = not refusal.may_pass
        self._say(refusal)
        self._count(self._name, is_let_go=True)

    def _try_open(self, loader: TorchDataLoader[Any]) -> _Refusal | None:
        """Attach to the node; return why not, or None."""
        try:
            reason = self._open(loader, node_settings(loader.dataset, self.config))
            return _Refusal(reason) if reason else None
        except DeclarationError:
            raise  # somebody wrote it for this, and would wait in vain for what it promises
        except (SampleSetError, ConfigError) as err:
            if self.explicit and self.served is None:
                raise  # named by somebody; one that was deleted while its loader trains is not missed
            self._is_named = True
            return _Refusal(str(err))
        except FilesUnknownError as err:
            return _Refusal(str(err))  # of the dataset, whatever becomes of the node
        except (PrefeedError, OSError) as err:
            return _Refusal(str(err), may_pass=True)
        except Exception as err:
            if self.explicit:
                raise
            # Nobody asked for this loader to be served: whatever its dataset does to us, it must not be noticed.
            _log.debug("prefeed: attaching failed", exc_info=True)
            return _Refusal(f"{type(err).__name__}: {err}")

    def _open(self, loader: Any, config: Config) -> str:
        if not config.enabled:
            return "PREFEED_ENABLED is 0"
        if reason := shown_as(loader).why_unknown():
            return reason
        if not samples_as_torchs(loader):
            return f"its class, {type(loader).__name__}, chooses the sampler in a way of its own"
        open_access = access_of(loader.dataset, config, explicit=self.explicit)
        node = NodeClient.connect(config)
        try:
            access = open_access(node)
        except BaseException:
            node.close()
            raise
        self._let_go()
        self._consumer = Consumer(node, access.dataset)
        self._set_up(loader, access, self._consumer, config)
        return ""

    def _set_up(self, loader: TorchDataLoader[Any], access: AccessMap, consumer: Consumer, config: Config) -> None:
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
            guess=guess_of(loader.dataset, access, config),
        )
        self.served = Served(loader.dataset, access, consumer.number)
        if self.served.writes is not None:
            self.served.writes.begin()
        self._rings = self._rings or Rings(config.batch_buffers)

    def read_counts(self) -> ReadCounts | None:
        """Return how the loader's reads went so far; None when nobody tells."""
        return None if self._consumer is None else self._consumer.read_counts()

    def publish(self, epoch: EpochWait) -> None:
        """Tell the node how long an epoch's loop waited, or keep it here when nobody listens."""
        if self._consumer is not None and self._consumer.is_connected:
            self._consumer.epoch_ended(epoch)
        else:
            keep_untold(epoch)

    def __del__(self) -> None:
        # Not clean-up that anything depends on: the server notices a closed socket, and process exit closes it too.
        self._let_go()

    def _let_go(self) -> None:
        if self.served is not None:
            self.served.reader.close()
            if self.served.writes is not None:
                self.served.writes.end()
        if self._consumer is not None:
            self._consumer.close()


class LoaderView:
    """What torch's iterators read of a loader: attributes that were set here, and for all others those of the loader.

    It is of no class of the user's, and no copy: whoever has a ``__del__`` would see one that he never made.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self.__loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__loader, name)


class Attachments:
    """The attachment of each loader, as long as there is the loader.

    By identity, and not in the loader: what equality and hashes mean is the user's, and pickles, copies and ``vars`` of a
    loader are as torch's.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[ref[TorchDataLoader[Any]], Attachment]] = {}
        self._epochs: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}  # of loaders that are gone

    def get(self, loader: TorchDataLoader[Any]) -> Attachment | None:
        entry = self._entries.get(id(loader))
        return entry[1] if entry is not None and entry[0]() is loader else None

    def put(self, loader: TorchDataLoader[Any], attachment: Attachment) -> None:
        entries, epochs, key = self._entries, self._epochs, id(loader)
        try:
            kind: tuple[Any, ...] = _kind_of(loader)
            dataset = ref(loader.dataset, lambda _: epochs.pop(kind, None))
        except Exception:  # noqa: BLE001 - it is the user's; or nobody can refer to it weakly
            dataset = None

        def end(_: Any) -> None:
            entries.pop(key, None)
            if dataset is not None and dataset() is not None and attachment.num_epochs:
                epochs[kind] = dataset, attachment.num_epochs

        with contextlib.suppress(TypeError):  # such a loader is attached anew for each of its iterators
            entries[key] = ref(loader, end), attachment

    def num_epochs_before(self, loader: TorchDataLoader[Any]) -> int:
        """Return how many epochs there were of a loader like this one, over the same dataset, that is gone.

        Many programs make a loader for each epoch.
        """
        try:
            dataset, num_epochs = self._epochs.pop(_kind_of(loader), (None, 0))
        except Exception:  # noqa: BLE001 - it is the user's
            return 0
        return num_epochs if dataset is not None and dataset() is loader.dataset else 0

    def remove(self, loader: TorchDataLoader[Any]) -> None:
        self._entries.pop(id(loader), None)

    def items(self) -> list[tuple[TorchDataLoader[Any], Attachment]]:
        found = ((loader(), attachment) for loader, attachment in list(self._entries.values()))
        return [(loader, attachment) for loader, attachment in found if loader is not None]


def _kind_of(loader: TorchDataLoader[Any]) -> tuple[Any, ...]:
    """Return what loaders have in common that are made one after the other, of the same line."""
    return id(loader.dataset), type(loader), loader.num_workers, loader.batch_size, type(loader.sampler)


def _read_counts(attachment: ref[Attachment]) -> ReadCounts | None:
    # Weakly: in a cycle it would be up to the garbage collector when the connection is closed, and by whom.
    attached = attachment()
    return None if attached is None else attached.read_counts()


def _publish(attachment: ref[Attachment], epoch: EpochWait) -> None:
    attached = attachment()  # weakly, as above
    if attached is not None:
        attached.publish(epoch)


def _pass_length(loader: TorchDataLoader[Any]) -> int | None:
    """Return after how many batches a new epoch begins, if the iterator goes on."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    num_samples = length_of(loader.dataset)
    if num_samples is None:
        return None
    return pass_length(loader._index_sampler, num_samples=num_samples, batch_size=getattr(loader, "batch_size", None))


def works_in_threads(loader: TorchDataLoader[Any]) -> bool:
    """Return True when the loader's workers are threads of this process, as those of MONAI's ``ThreadDataLoader`` may be."""
    worker = getattr(loader.multiprocessing_context, "Process", None) if loader.num_workers else None
    return isinstance(worker, type) and issubclass(worker, threading.Thread)


def samples_as_torchs(loader: Any) -> bool:
    """Return True when the loader draws its batches from its own ``batch_sampler`` or ``sampler``.

    One of another class than torch's has what torch's iterators read of it, and no more: its sampler is all that there is.
    """
    if not isinstance(loader, TorchDataLoader):
        return True
    own = loader.batch_sampler if loader._auto_collation else loader.sampler
    return loader._index_sampler is own
