"""``prefeed.DataLoader``: torch's own, with a plan.

The order of the epoch is known when the epoch begins; the node server is told, and has each object in memory before a
worker asks for it. Batches, their order and every random generator are as torch leaves them.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from prefeed.config import Config, settings_of
from prefeed.errors import ResumeError
from prefeed.torch.attachment import Attachment, Attachments, LoaderView, samples_as_torchs
from prefeed.torch.collating import collate_of, copies_samples
from prefeed.torch.resuming import Position, Rest
from prefeed.torch.ring import Lease
from prefeed.torch.serving import Served, Staged, WorkerStart

__all__ = ["DataLoader", "is_known", "make_iterator", "set_all_loaders"]

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
        settings = settings_of(config)
        super().__init__(*args, **kwargs)
        if config is not None:
            vars(self)["_prefeed_config"] = config  # goes with copies and pickles; unseen by a ``__setattr__``
        _attachments.put(self, Attachment(settings, explicit=True))

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return make_iterator(self, super()._get_iterator, explicit=True)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader is: small, of plain values and tensors, for ``torch.save``.

        It counts batches that the loop has got, not those that workers have made ahead. The state of each rank's loader
        is its own. Keys mean what they mean in torchdata's ``StatefulDataLoader``.
        """
        return self._position().state(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there: the next iterator's first batch is the one that would have come next.

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
            raise ResumeError(f"where a {name} is cannot be told: its class chooses the sampler in a way of its own")
        return _attachment_of(self, explicit=True).position


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
    if not explicit:
        served = attachment.serve(loader)
        return original() if served is None else _make_iterator(loader, attachment, served)
    with attachment.position.iterator_begins(loader) as rest:
        iterator = _make_iterator(loader, attachment, attachment.serve(loader), rest)
        if rest is not None and rest.batches is None:  # a stream has no other way to come to the place
            for _ in range(rest.num_seen):
                next(iterator, None)
    return iterator


def _make_iterator(
    loader: TorchDataLoader[Any], attachment: Attachment, served: Served | Staged | None, rest: Rest | None = None
) -> _BaseDataLoaderIter:
    attachment.epoch_begins(loader, num_seen=0 if rest is None else rest.num_seen)
    view = attachment.view(loader, served, rest)
    given_back = None
    if served is not None:
        served.lent.is_allowed = copies_samples(loader)
        given_back = served.lent.give_back
    if loader.num_workers == 0:
        if given_back is not None:
            view.collate_fn = collate_of(loader, after=given_back)
        iterator: _BaseDataLoaderIter = _SingleProcessIter(view, attachment)
    else:
        iterator = _start_workers(loader, attachment, view, given_back)
    attachment.has_begun()
    return iterator


def _start_workers(
    loader: TorchDataLoader[Any], attachment: Attachment, view: Any, given_back: Callable[[], None] | None
) -> _BaseDataLoaderIter:
    lease = None
    loader.check_worker_number_rationality()
    if given_back is not None:
        attachment.foresee(loader.generator or True)
        view.worker_init_fn = WorkerStart(loader.worker_init_fn)
        lease = attachment.try_lease(loader)
        names = lease.names if lease is not None else ()
        view.collate_fn = collate_of(loader, names=names, after=given_back)
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
    for loader, attachment in _attachments.items():
        if not attachment.explicit:
            _attachments.remove(loader)
            if isinstance(loader._iterator, _MultiProcessIter):
                loader._iterator = None


_attachments = Attachments()


def is_known(loader: Any) -> bool:
    """Return whether this loader, or what stands for one while its iterator is made, came here."""
    return isinstance(loader, LoaderView) or _attachments.get(loader) is not None


def _attachment_of(loader: TorchDataLoader[Any], *, explicit: bool) -> Attachment:
    attachment = _attachments.get(loader)
    if attachment is None:
        attachment = Attachment(vars(loader).get("_prefeed_config"), explicit=explicit)
        _attachments.put(loader, attachment)
    return attachment


class _SingleProcessIter(_SingleProcessDataLoaderIter):
    def __init__(self, view: Any, attachment: Attachment) -> None:
        super().__init__(view)
        self._attachment = attachment
        self._turn = attachment.turn

    def _next_data(self) -> Any:
        return self._attachment.next_batch(super()._next_data, self._turn)


class _MultiProcessIter(_MultiProcessingDataLoaderIter):
    def __init__(self, view: Any, attachment: Attachment, lease: Lease | None) -> None:
        self._attachment = attachment
        self._lease = lease
        self._turn = attachment.turn
        super().__init__(view)

    def _shutdown_workers(self) -> None:
        super()._shutdown_workers()
        if self._lease is not None and self._shutdown and not any(worker.is_alive() for worker in self._workers):
            self._lease.end()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:  # workers that are kept begin another epoch
            self._attachment.position.epoch_begins(loader, draws_seed=False)
            self._attachment.epoch_begins(loader)
            self._turn = self._attachment.turn
        super()._reset(loader, first_iter)
        if not first_iter:
            self._attachment.has_begun()

    def _next_data(self) -> Any:
        return self._attachment.next_batch(super()._next_data, self._turn)
