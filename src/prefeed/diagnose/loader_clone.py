"""Clones the user's loader with other settings, over chosen batches.

Each trial iterates a ``LoaderClone``. The user's loader is not changed, and the workers of a clone have ended when the
clone is closed, so that trials do not share the machine.
"""

from __future__ import annotations

import gc
import itertools
import math
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data._utils import signal_handling

from prefeed.client.node import NodeClient
from prefeed.config import Config, DiskBudget, current
from prefeed.diagnose.report import LoaderFacts
from prefeed.diagnose.search import DEFAULT_PREFETCH, Settings
from prefeed.errors import CannotExamineError, PrefeedError
from prefeed.loaders.kinds import length_of
from prefeed.loaders.searching import attributes_of
from prefeed.store.capacity import default_budget_bytes
from prefeed.system.memory import read_memory
from prefeed.torch.items import is_stream
from prefeed.torch.loader import DataLoader
from prefeed.torch.nesting import tensors_in
from prefeed.wire.endpoint import remove_runtime_dirs

IndexBatch = Any
"""Batch as a sampler yields it: a list of indices, or one index if the dataset returns whole batches itself."""


class LoaderFailed(Exception):
    """Error of the loader, as opposed to one of the training step. The text is one line."""


_NO_BATCHES: Final = "the loader has no batches: there is nothing to examine"


class BatchSource:
    """Batches of indices that a loader's sampler draws, epoch after epoch, without short ones if ``whole_only``."""

    def __init__(self, loader: TorchDataLoader[Any], *, whole_only: bool = False) -> None:
        self._sampler = loader._index_sampler
        self._left = self._draw(whole_only)

    def take(self, number: int) -> list[IndexBatch]:
        """Return the next ``number`` batches. Raise ``CannotExamineError`` if the sampler yields nothing."""
        return list(itertools.islice(self._left, number))

    def give_back(self, batches: Iterable[IndexBatch]) -> None:
        """Put back batches that were not read. They are taken next."""
        self._left = itertools.chain(batches, self._left)

    def repeat(self, batches: Sequence[IndexBatch]) -> None:
        """Repeat these batches and yield no others."""
        self._left = itertools.cycle(batches)

    def mean_size(self) -> float:
        """Return the samples per batch of the next few batches."""
        drawn = self.take(4)
        self.give_back(drawn)
        return sum(len(batch) if isinstance(batch, list | tuple) else 1 for batch in drawn) / len(drawn)

    def _draw(self, whole_only: bool) -> Iterator[IndexBatch]:
        size = 0
        while True:
            is_empty = True
            for batch in self._sampler:
                is_empty = False
                drawn = list(batch) if isinstance(batch, Iterator) else batch
                length = len(drawn) if isinstance(drawn, list) else 0
                size = size or length
                if not whole_only or length >= size:
                    yield drawn
            if is_empty:
                raise CannotExamineError(_NO_BATCHES)


@dataclass(kw_only=True)
class LoaderClone:
    """Iterator over a loader, whose workers end when it is closed.

    ``next`` raises ``StopIteration`` once after each epoch, or starts again if the loader ``is_endless``.

    Attributes:
        make: Creates the loader, which ``iterate`` iterates.
        is_own: Whether it is the user's own loader, whose errors are not wrapped.
        deadline: Time of ``perf_counter`` after which iteration ends. A batch that this process is computing is
            finished first.
        number: Number of batches so far.
    """

    make: Callable[[], TorchDataLoader[Any]]
    is_own: bool
    is_endless: bool
    iterate: Callable[[TorchDataLoader[Any]], Iterator[Any]]
    deadline: float
    number: int = 0
    _loader: Any = None
    _iterator: Any = None

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in getattr(self._iterator, "_workers", ())]

    def __iter__(self) -> LoaderClone:
        return self

    def __next__(self) -> Any:
        left = self.deadline - time.perf_counter()
        if left <= 0:
            raise StopIteration
        is_new = self._iterator is None
        try:
            if is_new:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
                    self._loader = self.make() if self._loader is None else self._loader
                    self._iterator = self.iterate(self._loader)
            if math.isfinite(left) and hasattr(self._iterator, "_workers"):
                self._iterator._timeout = left  # limits torch's wait for a batch
            batch = next(self._iterator)
        except StopIteration:
            self._iterator = None
            if not self.is_endless:
                raise
            if is_new:
                raise CannotExamineError(_NO_BATCHES) from None
            return next(self)
        except Exception as err:
            if self.is_own or isinstance(err, PrefeedError):
                raise
            if time.perf_counter() >= self.deadline:
                raise StopIteration from None
            raise LoaderFailed(reason_of(err)) from err
        self.number += 1
        return batch

    def close(self) -> None:
        """End the workers of the loader, and its plan."""
        iterator, self._iterator = self._iterator, None
        if hasattr(iterator, "_shutdown_workers"):
            if time.perf_counter() >= self.deadline:
                # torch would wait for the batch of each worker, and raise for a worker that is ended by a signal.
                signal_handling._remove_worker_pids(id(iterator))  # type: ignore[attr-defined]
                iterator._worker_pids_set = False
                for worker in iterator._workers:
                    worker.terminate()
            iterator._shutdown_workers()
        del iterator
        self._loader = None
        gc.collect()  # ends the plan, which ends with its loader


def clone_loader(
    loader: TorchDataLoader[Any], settings: Settings, batches: Sequence[IndexBatch] | None,
    *, dataset: Any = None, config: Config | None = None,
) -> TorchDataLoader[Any]:  # fmt: skip
    """Return a loader like the user's, with other settings, batches (None for a stream) or another dataset.

    With ``config`` it is a ``prefeed.DataLoader`` with these settings, otherwise of the user's kind.
    """
    names = ["collate_fn", "worker_init_fn", "in_order"]
    names += ["multiprocessing_context", "timeout"] if settings.num_workers else []
    names += ["batch_size"] if batches is None else []
    names += ["drop_last"] if batches is None and loader.batch_size is not None else []
    arguments = {name: getattr(loader, name) for name in names if hasattr(loader, name)}  # in_order since torch 2.6
    arguments.update(num_workers=settings.num_workers, pin_memory=settings.pin_memory)
    if settings.num_workers:
        arguments["prefetch_factor"] = settings.prefetch_factor or DEFAULT_PREFETCH
    if batches is not None and loader.batch_size is None and loader.batch_sampler is None:
        arguments.update(sampler=list(batches), batch_size=None)
    elif batches is not None:
        arguments["batch_sampler"] = _batch_sampler(batches)
    dataset = loader.dataset if dataset is None else dataset
    if config is None and issubclass(type(loader), DataLoader):  # not isinstance: under prefeed.auto all loaders are
        config = vars(loader).get("_prefeed_config") or current()
    if config is None:
        return torch.utils.data.DataLoader(dataset, **arguments)
    return DataLoader(dataset, config=config, **arguments)


def _batch_sampler(batches: Sequence[IndexBatch]) -> Any:
    """Return batches of one size as torch's own sampler, because prefeed knows how workers take turns with that."""
    sizes = {len(batch) if isinstance(batch, list) else 0 for batch in batches[:-1] or batches}
    if len(sizes) != 1 or sizes == {0} or not isinstance(batches[-1], list) or len(batches[-1]) > min(sizes):
        return list(batches)
    return BatchSampler(list(itertools.chain.from_iterable(batches)), min(sizes), drop_last=False)


def reason_of(err: Exception) -> str:
    """Return an error in one line of at most 200 characters: the last of its traceback if it crossed from a worker."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    text = lines[-1] if lines and "Traceback" in str(err) else f"{type(err).__name__}: {' '.join(lines)}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def are_alike(batch: Any, other: Any) -> bool:
    """Return whether the tensors of two batches are equal. Without tensors, return False."""
    pairs = list(zip(tensors_in(batch), tensors_in(other), strict=False))
    return bool(pairs) and all(torch.equal(one, same) for one, same in pairs)


@contextmanager
def private_home(config: Config, *, directory: Path | None = None, **changes: Any) -> Iterator[Config]:
    """Yield the user's settings for an empty node cache, which is removed with its server at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="prefeed-trial-", dir=directory) as parent:
        home = Path(parent) / "home"
        home.mkdir()
        private = replace(config, home=home, disk=DiskBudget(), **changes)
        try:
            yield private
        finally:
            stop_server(private)
            remove_runtime_dirs(private)


def stop_server(config: Config) -> None:
    """Stop the server of a home, if there is one."""
    with suppress(PrefeedError, OSError), NodeClient.connect(config, autostart=False) as node:
        node.stop()


_LONG_LIST: Final = 1 << 16
_SAMPLED_ENTRIES: Final = 64


def facts_of(loader: TorchDataLoader[Any], batch_size: float) -> LoaderFacts:
    """Return facts about the loader and the machine."""
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        samples=None if is_stream(loader) else length_of(loader.dataset),
        batch_size=batch_size,
        settings=Settings.of(loader),
        memory_bytes=default_budget_bytes(read_memory()),
        list_bytes=list_bytes_of(loader.dataset),
    )


def list_bytes_of(dataset: Any, *, depth: int = 4) -> int:
    """Estimate the bytes of objects in long lists, which workers copy as reading changes their reference counts."""
    total = 0
    for held in attributes_of(dataset).values():
        if type(held) in (list, tuple, dict) and len(held) >= _LONG_LIST:
            entries = held.items() if type(held) is dict else held[:: len(held) // _SAMPLED_ENTRIES]
            sampled = [_bytes_of(entry) for entry in itertools.islice(entries, _SAMPLED_ENTRIES)]
            total += sys.getsizeof(held) + sum(sampled) * len(held) // len(sampled)
        elif depth:
            inner = held if type(held) in (list, tuple) and len(held) <= _SAMPLED_ENTRIES else [held]
            total += sum(list_bytes_of(one, depth=depth - 1) for one in inner if hasattr(one, "__getitem__"))
    return total


def _bytes_of(entry: Any) -> int:
    inner = entry.values() if type(entry) is dict else entry if type(entry) in (list, tuple) else ()
    return sys.getsizeof(entry) + sum(map(sys.getsizeof, inner))
