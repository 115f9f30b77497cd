"""``prefeed.DataLoader``: torch's own, with a plan.

The order of the epoch is known when the epoch begins; the node server is told, and has each object in memory before a
worker asks for it. Batches, their order and every random generator are as torch leaves them.
"""

from __future__ import annotations

import atexit
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from prefeed.client.connection import connected_servers
from prefeed.config import Config, settings_of
from prefeed.errors import ResumeError
from prefeed.shown import shown
from prefeed.sources.mounts import Roots
from prefeed.system.machine import open_files
from prefeed.torch import patch
from prefeed.torch.attachment import Attachment
from prefeed.torch.attachments import Attachments
from prefeed.torch.collating import collate_of, copies_samples
from prefeed.torch.in_place import InPlace
from prefeed.torch.items import LoaderView, samples_as_torchs, shown_as_torchs, works_in_threads
from prefeed.torch.resuming import Position, Rest
from prefeed.torch.ring import Lease
from prefeed.torch.samples import Staged, WorkerStart
from prefeed.torch.serving import Served, ServedInThreads

__all__ = ["DataLoader", "LoaderView", "begin_iterator", "leave", "let_go"]

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext


class Samples(Protocol[T_co]):
    """What has samples by index, and need not be a dataset of torch's."""

    def __getitem__(self, index: int, /) -> T_co: ...

    def __len__(self) -> int: ...


class _LoaderType(ABCMeta):
    """While every loader is served, every loader of torch's is an instance of ``prefeed.DataLoader``."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (
            cls is DataLoader and patch.is_enabled() and isinstance(instance, TorchDataLoader)
        )


class DataLoader(TorchDataLoader[T_co], metaclass=_LoaderType):
    """``torch.utils.data.DataLoader`` whose samples are in memory before they are asked for.

    Takes torch's arguments, and one more. A dataset whose objects are not known, an ``IterableDataset``, or a node
    whose server cannot be started, makes it behave exactly as torch's; one line of the log says why.

    Args:
        config: Settings; defaults to those in force in the process. All others are torch's, with torch's defaults.

    **Threads and processes**: as torch's; workers may be forked, spawned or served. The main process never touches
    an object store, whose threads would not survive a fork. A copy, or an unpickled one, starts afresh.
    """

    if TYPE_CHECKING:  # torch's signature, for editors; a test compares the two

        def __init__(  # noqa: PLR0913 - torch has so many
            self,
            dataset: Dataset[T_co] | Samples[T_co],
            batch_size: int | None = 1,
            shuffle: bool | None = None,
            sampler: Iterable[Any] | None = None,
            batch_sampler: Iterable[Sequence[Any]] | None = None,
            num_workers: int = 0,
            collate_fn: Callable[[list[Any]], Any] | None = None,
            pin_memory: bool = False,
            drop_last: bool = False,
            timeout: float = 0,
            worker_init_fn: Callable[[int], None] | None = None,
            multiprocessing_context: BaseContext | str | None = None,
            generator: torch.Generator | None = None,
            *,
            prefetch_factor: int | None = None,
            persistent_workers: bool = False,
            pin_memory_device: str = "",
            in_order: bool = True,
            config: Config | None = None,
        ) -> None: ...

    else:

        def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
            settings = settings_of(config)
            super().__init__(*args, **kwargs)
            if config is not None:
                vars(self)["_prefeed_config"] = config  # goes with copies and pickles; unseen by a ``__setattr__``
            _attachments.put(self, Attachment(settings, explicit=True))

    def __repr__(self) -> str:
        size = "batches of a sampler of its own" if self.batch_size is None else f"batches of {self.batch_size}"
        workers = "this process" if not self.num_workers else f"{self.num_workers} workers"
        return f"<{type(self).__name__} of {shown(self.dataset)}, {size}, made by {workers}>"

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return _SingleProcessIter(self)
        self.check_worker_number_rationality()
        return _MultiProcessIter(self)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: small, of plain values and tensors, for ``torch.save``.

        It counts batches that the loop has got, not those that workers have made ahead. The state of each rank's loader
        is its own. Keys mean what they mean in torchdata's ``StatefulDataLoader``.
        """
        return self._position().state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from there: the next iterator's first batch is the one that would have come next.

        No sample is made that was seen before, unless the dataset is an ``IterableDataset``, which has to be iterated up
        to the place. A state taken after the last batch gives a whole new epoch. The default random generator is
        left alone: who saves it beside, as frameworks do, has the same orders in later epochs too.

        Raises:
            ResumeError: The state is of another kind, or of a loader whose batches are others.
        """
        self._iterator = None  # workers that were kept have batches of another place under way
        self._position().load(self, state_dict)

    def _position(self) -> Position:
        name = type(self).__name__
        if not samples_as_torchs(self):
            raise ResumeError(
                f"prefeed cannot tell the position of a {name}: its class chooses the sampler in a way of its own"
            )
        return _attachment_of(self, explicit=True).position


def _signature() -> inspect.Signature:
    """Return torch's signature and ``config``: tools and frameworks look at it to make loaders again."""
    torchs = inspect.signature(TorchDataLoader.__init__)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config | None)
    return torchs.replace(parameters=[*torchs.parameters.values(), config])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


def begin_iterator(
    iterator: _BaseDataLoaderIter, loader: Any, torchs: Callable[[Any], None], *, explicit: bool = False
) -> None:
    """Serve an iterator of torch's that is being made, where that is possible.

    Args:
        iterator: The iterator, with no attribute set yet.
        loader: What it is made from; nothing of it is changed. As a rule a loader of torch's.
        torchs: Sets the iterator up as torch does, from the loader or from what stands in for it.
        explicit: The user asked for this loader to be served; it is not one of all.
    """
    attachment = _attachment_of(loader, explicit=explicit)
    if not attachment.explicit:
        shown = shown_as_torchs(loader)
        served = attachment.serve(shown)
        if served is None:
            torchs(loader)
        else:
            _begin(iterator, shown, attachment, served, torchs)
        return
    with attachment.position.iterator_begins(loader) as rest:
        _begin(iterator, loader, attachment, attachment.serve(loader), torchs, rest)
        if (
            rest is not None and rest.batches is None and not rest.is_in_place
        ):  # a stream has no other way to come to the place
            for _ in range(rest.num_seen):
                next(iterator, None)


def leave(loader: Any, reason: str) -> None:
    """A loader is left alone for this reason, which is said once."""
    _attachment_of(loader, explicit=False).leave(loader, reason)


def _begin(
    iterator: Any,
    loader: Any,
    attachment: Attachment,
    served: Served | Staged | None,
    torchs: Callable[[Any], None],
    rest: Rest | None = None,
) -> None:
    if not attachment.num_epochs:
        attachment.num_epochs_before = _attachments.num_epochs_before(loader)
    attachment.epoch_begins(loader, num_seen=0 if rest is None else rest.num_seen)
    view = attachment.view(loader, served, rest)
    lease = None if served is None else _serve(view, loader, attachment, served)
    if not isinstance(iterator, _Watched):
        iterator.__class__ = _watched_type(type(iterator))
    iterator._attachment, iterator._turn, iterator._lease = attachment, attachment.turn, lease
    torchs(view)
    attachment.has_begun()


def _serve(view: Any, loader: Any, attachment: Attachment, served: Served | Staged) -> Lease | None:
    """Let an iterator make batches of what is served; return the memory for them, if there is recycled memory."""
    has_threads = works_in_threads(loader)
    served.lent.is_allowed = copies_samples(loader) and not has_threads
    after = None if isinstance(served, InPlace) else served.lent.give_back  # which lends nothing
    if loader.num_workers == 0:
        view.collate_fn = collate_of(loader, after=after)
        return None
    attachment.foresee(loader.generator or True)
    view.worker_init_fn = WorkerStart(loader.worker_init_fn)
    if has_threads:  # they get the batches' own objects, and nothing of a batch is sent
        view.dataset = ServedInThreads(view.dataset)
        return None
    lease = attachment.try_lease(loader)
    view.collate_fn = collate_of(loader, names=lease.names if lease is not None else (), after=after)
    return lease


def let_go() -> None:
    """Loaders that were not made as ``prefeed.DataLoader`` are let go: their next epochs are torch's own.

    Iterators that are in use run to their end. Workers that were kept between epochs are started again, which draws one more base seed.
    """
    for loader, attachment in _attachments.items():
        if not attachment.explicit:
            _attachments.remove(loader)
            if isinstance(getattr(loader, "_iterator", None), _Watched):
                loader._iterator = None


_MOST_FILES: Final = 4
"""Files that the error of a time-out names."""

_attachments = Attachments()
atexit.register(_attachments.count_left)


def _attachment_of(loader: Any, *, explicit: bool) -> Attachment:
    attachment = _attachments.get(loader)
    if attachment is None:
        attachment = Attachment(getattr(loader, "__dict__", {}).get("_prefeed_config"), explicit=explicit)
        _attachments.put(loader, attachment)
    return attachment


class _Watched:
    """What is added to torch's classes of iterators: the report hears of every batch."""

    _attachment: Attachment
    _turn: int
    _lease: Lease | None

    def _next_data(self) -> Any:
        torchs: Any = super()
        return self._attachment.next_batch(torchs._next_data, self._turn)


class _WatchedWorkers(_Watched):
    """The same where workers make the batches: their memory is recycled, and they may be kept for another epoch."""

    def _get_data(self: Any) -> Any:
        try:
            return super()._get_data()  # type: ignore[misc]
        except RuntimeError as err:
            if self._timeout and str(err).startswith("DataLoader timed out"):
                covers = Roots.of(self._attachment.config).covers
                pids = (*(worker.pid for worker in self._workers), *connected_servers())
                found = dict.fromkeys(name for pid in pids for name in open_files(pid, covers))
                if found:
                    err.args = (
                        f"{err}. Its workers, or the node server for them, are reading {', '.join([*found][:_MOST_FILES])}",
                    )
            raise

    def _shutdown_workers(self: Any) -> None:
        super()._shutdown_workers()  # type: ignore[misc]
        if self._lease is not None and self._shutdown and not any(worker.is_alive() for worker in self._workers):
            self._lease.end()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        torchs: Any = super()
        if not first_iter:
            self._attachment.position.epoch_begins(loader, draws_seed=False)
            self._attachment.epoch_begins(loader)
            self._turn = self._attachment.turn
        torchs._reset(loader, first_iter)
        if not first_iter:
            self._attachment.has_begun()


class _SingleProcessIter(_Watched, _SingleProcessDataLoaderIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        begin_iterator(self, loader, super().__init__, explicit=True)


class _MultiProcessIter(_WatchedWorkers, _MultiProcessingDataLoaderIter):
    def __init__(self, loader: DataLoader[Any]) -> None:
        begin_iterator(self, loader, super().__init__, explicit=True)


_watched_types: dict[type[Any], type[Any]] = {}


def _watched_type(cls: type[Any]) -> type[Any]:
    """Return a class that is watched, and in all else as an iterator's own class, which may be somebody's subclass."""
    watched = _WatchedWorkers if issubclass(cls, _MultiProcessingDataLoaderIter) else _Watched
    if cls not in _watched_types:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        _watched_types[cls] = type(cls.__name__, (watched, cls), names)
    return _watched_types[cls]
