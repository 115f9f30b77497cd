"""``prefeed.DataLoader``: torch's own, with a plan.

The order of the epoch is known when the epoch begins; the node server is told, and has each object in memory before a
worker asks for it. Batches, their order and every random generator are as torch leaves them.
"""

from __future__ import annotations

import copy
import inspect
import logging
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from prefeed.client.access import AccessMap
from prefeed.client.consumer import Consumer
from prefeed.client.node import NodeClient
from prefeed.config import Config, current
from prefeed.errors import PrefeedError
from prefeed.torch.access import access_of, listed_paths
from prefeed.torch.planning import PlannedSampler
from prefeed.torch.serving import Served, WorkerStart

__all__ = ["DataLoader"]

_log = logging.getLogger("prefeed")

T_co = TypeVar("T_co", covariant=True)


class DataLoader(TorchDataLoader[T_co]):
    """``torch.utils.data.DataLoader`` whose samples are in memory before they are asked for.

    Takes torch's arguments, and one more. A dataset whose objects are not known, an ``IterableDataset``, or a node
    whose server cannot be started, makes it behave exactly as torch's; one line of the log says why.

    Args:
        *args: As torch's.
        config: Settings; defaults to those in force in the process.
        **kwargs: As torch's.

    **Threads and processes**: as torch's; workers may be forked, spawned or served. The main process never touches
    an object store, whose threads would not survive a fork.
    """

    def __init__(self, *args: Any, config: Config | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefeed = _Attachment(config or current())

    def _get_iterator(self) -> _BaseDataLoaderIter:
        served = self._prefeed.attach(self)
        if served is None:
            return super()._get_iterator()
        view = copy.copy(self)
        view.__dict__.update(dataset=served, _prefeed=_Planned(self._prefeed))
        if self.num_workers == 0:
            return _SingleProcessIter(view)
        self._prefeed.foresee(self.generator or True)
        view.__dict__["worker_init_fn"] = WorkerStart(self.worker_init_fn)
        self.check_worker_number_rationality()
        return _MultiProcessIter(view)

    @property
    def _index_sampler(self) -> Any:
        sampler = self.batch_sampler if self._auto_collation else self.sampler
        state = self.__dict__.get("_prefeed")
        return state.planned if isinstance(state, _Planned) else sampler

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_prefeed"] = _Attachment(self._prefeed.config)
        return state


def _signature() -> inspect.Signature:
    """Return torch's signature and ``config``: tools and frameworks look at it to make loaders anew."""
    torchs = inspect.signature(TorchDataLoader.__init__)
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config | None)
    return torchs.replace(parameters=[*torchs.parameters.values(), config])


DataLoader.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


class _Planned:
    """Marks the loader's copy that iterators are made from: its sampler is the planned one."""

    def __init__(self, attachment: _Attachment) -> None:
        self.config = attachment.config
        self.attachment = attachment
        assert attachment.planned is not None
        self.planned = attachment.planned


class _Attachment:
    """What ties one loader to the node server; opened at its first epoch.

    **Ownership**: the loader. When it is collected, the consumer's connection closes and the server forgets its plan.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.planned: PlannedSampler | None = None
        self.served: Served | None = None
        self._consumer: Consumer | None = None
        self._given_up = False

    def attach(self, loader: DataLoader[Any]) -> Served | None:
        """Return the served dataset; None when this loader cannot be helped, which is said once."""
        if self.served is not None and (self._consumer is None or self._consumer.is_connected):
            return self.served
        if self._given_up and self.served is None:
            return None
        try:
            reason = self._open(loader)
        except (PrefeedError, OSError) as err:
            reason = str(err)
        if reason:
            self._given_up = True
            _log.warning("prefeed: this loader reads as torch's own: %s", reason)
            return None
        return self.served

    def foresee(self, seed_source: torch.Generator | bool) -> None:
        """Workers are about to be started: let the server fetch for the first batch meanwhile."""
        if self.planned is not None:
            self.planned.iterator_begins(seed_source)

    def _open(self, loader: DataLoader[Any]) -> str:
        """Attach to the node; return why not, or nothing."""
        if not self.config.enabled:
            return "PREFEED_ENABLED is 0"
        if isinstance(loader.dataset, IterableDataset):
            return "an IterableDataset has no order to know beforehand"
        node = NodeClient.connect(self.config)
        try:
            access = access_of(loader.dataset, node, self.config)
        except BaseException:
            node.close()
            raise
        if access is None:
            node.close()
            return f"nothing is known about the files of a {type(loader.dataset).__name__}"
        self._let_go()
        self._consumer = Consumer(node, access.dataset)
        self._set_up(loader, access, self._consumer)
        return ""

    def _set_up(self, loader: DataLoader[Any], access: AccessMap, consumer: Consumer) -> None:
        opens_files = listed_paths(loader.dataset) is not None
        self.served = Served(loader.dataset, access, consumer.number, opens_files=opens_files)
        draws_seed = not (loader.persistent_workers and loader.num_workers > 0)
        seed_source = (loader.generator or True) if draws_seed else None
        self.planned = PlannedSampler(
            loader.batch_sampler if loader._auto_collation else loader.sampler,
            access,
            consumer,
            trust=self.config.trust_samplers,
            num_workers=loader.num_workers,
            batches_ahead=max(1, (loader.prefetch_factor or 0) * loader.num_workers),
            seed_source=seed_source,
        )

    def __del__(self) -> None:
        # Not clean-up that anything depends on: the server notices a closed socket, and process exit closes it too.
        self._let_go()

    def _let_go(self) -> None:
        if self.served is not None:
            self.served.reader.close()
        if self._consumer is not None:
            self._consumer.close()


class _SingleProcessIter(_SingleProcessDataLoaderIter):
    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._attachment = loader._prefeed.attachment

    def _next_data(self) -> Any:
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]  # torch's
        except StopIteration:
            _epoch_ended(self._attachment)
            raise


class _MultiProcessIter(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: Any) -> None:
        self._attachment = loader._prefeed.attachment
        super().__init__(loader)

    def _next_data(self) -> Any:
        try:
            return super()._next_data()  # type: ignore[no-untyped-call]  # torch's
        except StopIteration:
            _epoch_ended(self._attachment)
            raise


def _epoch_ended(attachment: _Attachment) -> None:
    served, planned = attachment.served, attachment.planned
    if served is not None:
        served.reader.report()
    if planned is not None:
        planned.epoch_ended()
