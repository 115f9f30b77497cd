"""``prefeed.DataLoader``: torch's own, with a plan.

The order of the epoch is known when the epoch begins; the node server is told, and has each object in memory before a
worker asks for it. Batches, their order and every random generator are as torch leaves them.
"""

from __future__ import annotations

import inspect
import logging
import time
from abc import ABCMeta
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset, Subset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.node import NodeClient
from prefeed.config import Config, current
from prefeed.errors import DeclarationError, PrefeedError
from prefeed.torch.access import access_of
from prefeed.torch.collating import collate_of, collates_as_torch, copies_samples
from prefeed.torch.pinning import can_pin
from prefeed.torch.planning import PlannedSampler
from prefeed.torch.report import LoaderReport
from prefeed.torch.ring import Lease, Rings
from prefeed.torch.serving import Served, Staged, WorkerStart
from prefeed.torch.stages import has_cached_stage
from prefeed.types import ReadCounts

__all__ = ["DataLoader", "make_iterator", "set_all_loaders"]

_log = logging.getLogger("prefeed")
_all_loaders = False

T_co = TypeVar("T_co", covariant=True)


class _LoaderType(ABCMeta):
    """While every loader is served, every loader of torch's is an instance of ``prefeed.DataLoader``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (
            cls is DataLoader and _all_loaders and isinstance(instance, TorchDataLoader)
        )


class DataLoader(TorchDataLoader[T_co], metaclass=_LoaderType):
    """``torch.utils.data.DataLoader`` whose samples are in memory before they are asked for.

    Takes torch's arguments, and one more. A dataset whose objects are not known, an ``IterableDataset``, or a node
    whose server cannot be started, makes it behave exactly as torch's; one line of the log says why.

    Args:
        *args: As torch's.
        config: Settings; defaults to those in force in the process.
        **kwargs: As torch's.

    **Threads and processes**: as torch's; workers may be forked, spawned or served. The main process never touches
    an object store, whose threads would not survive a fork. A copy, or what was pickled, begins anew.
    """

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if config is not None:
            self._prefeed_config = config  # goes with copies and pickles
        if type(self).__hash__ is not None:
            _attachments[self] = _Attachment(config or current(), explicit=True)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return make_iterator(self, super()._get_iterator, explicit=True)


def _signature() -> inspect.Signature:
    """Return torch's signature and ``config``: tools and frameworks look at it to make loaders anew."""
    torchs = inspect.signature(TorchDataLoader.__init__)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config | None)
    return torchs.replace(parameters=[*torchs.parameters.values(), config])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


def make_iterator(
    loader: TorchDataLoader[Any], original: Callable[[], _BaseDataLoaderIter], *, explicit: bool
) -> _BaseDataLoaderIter:
    """Return an iterator over an epoch of any loader, served where that is possible.

    Args:
        loader: The user's; nothing of it is changed.
        original: Makes torch's own iterator, for a loader that cannot be helped.
        explicit: The user asked for this loader to be served; it is not one of all.
    """
    attachment = _attachment_of(loader, explicit=explicit)
    served = attachment.attach(loader) or attachment.staged(loader)
    if served is None:
        return original()
    attachment.epoch_begins()
    view = attachment.view(loader, served)
    served.lent.is_allowed = copies_samples(loader)
    if loader.num_workers == 0:
        view.__dict__["collate_fn"] = collate_of(loader, after=served.lent.give_back)
        return _SingleProcessIter(view, attachment)
    attachment.foresee(loader.generator or True)
    view.__dict__["worker_init_fn"] = WorkerStart(loader.worker_init_fn)
    loader.check_worker_number_rationality()
    lease = attachment.try_lease(loader)
    names = lease.names if lease is not None else ()
    view.__dict__["collate_fn"] = collate_of(loader, names=names, after=served.lent.give_back)
    return _MultiProcessIter(view, attachment, lease)


def set_all_loaders(served: bool) -> None:
    """Every loader of torch's counts as ``prefeed.DataLoader``, or only those that were made as such.

    In the latter case the others are let go: their next epochs are torch's own. Iterators that are in use go on to
    their end. Workers that were kept between epochs are started anew, which draws one more base seed.
    """
    global _all_loaders
    _all_loaders = served
    if served:
        return
    for loader, attachment in list(_attachments.items()):
        if not attachment.explicit:
            del _attachments[loader]
            if isinstance(loader._iterator, _MultiProcessIter):
                loader._iterator = None


class _Attachment:
    """What ties one loader to the node server; opened at its first epoch.

    **Ownership**: ``_attachments``, while there is the loader, and iterators. When the last of them is collected, the
    consumer's connection closes and the server forgets its plan.
    """

    def __init__(self, config: Config | None, *, explicit: bool) -> None:
        self.explicit = explicit
        self.planned: PlannedSampler | None = None
        self.served: Served | None = None
        self._config = config
        self._consumer: Consumer | None = None
        self._report: LoaderReport | None = None
        self._rings: Rings | None = None
        self._given_up = False

    def attach(self, loader: TorchDataLoader[Any]) -> Served | None:
        """Return the served dataset; None when this loader cannot be helped, which is said once."""
        if self.served is not None and (self._consumer is None or self._consumer.is_connected):
            return self.served
        if self._given_up and self.served is None:
            return None
        reason = self._try_open(loader)
        if reason:
            self._give_up(reason, is_staged=has_cached_stage(loader.dataset))
            return None
        return self.served

    def staged(self, loader: TorchDataLoader[Any]) -> Staged | None:
        """Return the dataset of a loader without a plan whose samples come from the cache of a stage; else None."""
        if not has_cached_stage(loader.dataset) or not _samples_as_torchs(loader):
            return None
        config = self._config or current()
        if not config.enabled:
            return None
        self._rings = self._rings or Rings(config.batch_buffers)
        return Staged(loader.dataset)

    def _give_up(self, reason: str, *, is_staged: bool = False) -> None:
        self._given_up = True
        level = logging.WARNING if self.explicit and not is_staged else logging.INFO
        _log.log(level, "prefeed: %s: %s", "no plan" if is_staged else "not used for this loader", reason)

    def view(self, loader: TorchDataLoader[Any], served: Served | Staged) -> Any:
        """Return the loader's twin that iterators are made from: its dataset is served, its sampler planned."""
        # Made by hand: a subclass may have its own idea of what a copy is.
        view: Any = object.__new__(type(loader))
        view.__dict__.update(loader.__dict__, dataset=served)
        if served is self.served:
            view.__dict__["batch_sampler" if loader._auto_collation else "sampler"] = self.planned
        return view

    def epoch_begins(self) -> None:
        """An iterator is about to be made."""
        if self._report is not None:
            self._report.epoch_begins(_length(self.planned))

    def foresee(self, seed_source: torch.Generator | bool) -> None:
        """Workers are about to be started: let the server fetch for the first batch meanwhile."""
        if self.planned is not None:
            self.planned.iterator_begins(seed_source)

    def try_lease(self, loader: TorchDataLoader[Any]) -> Lease | None:
        """Return recycled memory for the batches of workers; None when batches go as torch sends them."""
        if self._rings is None or not collates_as_torch(loader):
            return None
        return self._rings.try_lease(
            loader.num_workers,
            prefetch_factor=loader.prefetch_factor or 2,
            pinned=loader.pin_memory and can_pin(),
        )

    def next_batch(self, torchs: Callable[[], Any]) -> Any:
        """Return the next batch as torch gives it; the report hears of it, and of the end of the epoch."""
        report = self._report
        if report is None:  # there is no plan
            return torchs()
        report.asked()
        try:
            batch = torchs()
        except StopIteration:
            report.answered()
            self._epoch_ended(report)
            raise
        report.answered()
        if report.has_last and self.served is not None:
            self.served.reader.report()
            report.epoch_ends()
        return batch

    def _epoch_ended(self, report: LoaderReport) -> None:
        served, planned = self.served, self.planned
        if served is None or planned is None:
            return  # let go meanwhile
        served.reader.report()
        report.epoch_ends()
        if served.opens_nothing():
            self._let_go()
            self.served = self.planned = self._rings = None
            self._give_up(
                f"the samples of its dataset, {type(served.inner).__name__}, open no files below {served.roots}"
            )
            return
        planned.epoch_ended()

    def _try_open(self, loader: TorchDataLoader[Any]) -> str:
        """Attach to the node; return why not, or nothing."""
        try:
            return self._open(loader, self._config or current())
        except DeclarationError:
            raise  # somebody wrote it for this, and would wait in vain for what it promises
        except (PrefeedError, OSError) as err:
            return str(err)
        except Exception as err:
            if self.explicit:
                raise
            # Nobody asked for this loader to be served: whatever its dataset does to us, it must not be noticed.
            _log.debug("prefeed: attaching failed", exc_info=True)
            return f"{type(err).__name__}: {err}"

    def _open(self, loader: TorchDataLoader[Any], config: Config) -> str:
        if not config.enabled:
            return "PREFEED_ENABLED is 0"
        if isinstance(loader.dataset, IterableDataset):
            return "an IterableDataset has no order to know beforehand"
        if not _samples_as_torchs(loader):
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
        )
        self.served = Served(loader.dataset, access, consumer.number)
        self._rings = self._rings or Rings(config.batch_buffers)
        if self._report is None:  # else the loader is attached anew, to another server
            name, interval = _name_of(loader.dataset), config.report_interval
            counts = partial(_read_counts, ref(self))
            self._report = LoaderReport(name, counts, interval_seconds=interval, clock=time.monotonic)

    def read_counts(self) -> ReadCounts | None:
        """Return how the loader's reads went so far; None when nobody tells."""
        return None if self._consumer is None else self._consumer.read_counts()

    def __del__(self) -> None:
        # Not clean-up that anything depends on: the server notices a closed socket, and process exit closes it too.
        self._let_go()

    def _let_go(self) -> None:
        if self.served is not None:
            self.served.reader.close()
        if self._consumer is not None:
            self._consumer.close()


_attachments: WeakKeyDictionary[TorchDataLoader[Any], _Attachment] = WeakKeyDictionary()
"""By loader, and not in it: pickles, copies and ``vars`` of a loader are as torch's."""


def _attachment_of(loader: TorchDataLoader[Any], *, explicit: bool) -> _Attachment:
    config = vars(loader).get("_prefeed_config")
    if type(loader).__hash__ is None:
        return _Attachment(config, explicit=explicit)  # for this epoch; its iterator keeps it
    attachment = _attachments.get(loader)
    if attachment is None:
        attachment = _attachments[loader] = _Attachment(config, explicit=explicit)
    return attachment


def _read_counts(attachment: ref[_Attachment]) -> ReadCounts | None:
    # Weakly: in a cycle it would be up to the garbage collector when the connection is closed, and by whom.
    attached = attachment()
    return None if attached is None else attached.read_counts()


def _name_of(dataset: Any) -> str:
    """Return what the log calls a dataset: its class, what it is a part of, and whose rank's it is."""
    name = type(dataset).__name__
    if isinstance(dataset, Subset):
        name += f" of {_name_of(dataset.dataset)}"
    elif torch.distributed.is_available() and torch.distributed.is_initialized():
        name += f" (rank {torch.distributed.get_rank()})"
    return name


def _length(sampler: Any) -> int | None:
    """Return how many batches an epoch has; None when the sampler does not say."""
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - it is the user's, and torch may never ask it
        return None


def _samples_as_torchs(loader: TorchDataLoader[Any]) -> bool:
    """Return True when the loader draws its batches from its own ``batch_sampler`` or ``sampler``."""
    return loader._index_sampler is (loader.batch_sampler if loader._auto_collation else loader.sampler)


class _SingleProcessIter(_SingleProcessDataLoaderIter):
    def __init__(self, view: Any, attachment: _Attachment) -> None:
        super().__init__(view)
        self._attachment = attachment

    def _next_data(self) -> Any:
        return self._attachment.next_batch(super()._next_data)


class _MultiProcessIter(_MultiProcessingDataLoaderIter):
    def __init__(self, view: Any, attachment: _Attachment, lease: Lease | None) -> None:
        self._attachment = attachment
        self._lease = lease
        super().__init__(view)

    def _shutdown_workers(self) -> None:
        super()._shutdown_workers()
        if self._lease is not None and self._shutdown and not any(worker.is_alive() for worker in self._workers):
            self._lease.end()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # workers that are kept begin another epoch
            self._attachment.epoch_begins()
        super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        return self._attachment.next_batch(super()._next_data)
