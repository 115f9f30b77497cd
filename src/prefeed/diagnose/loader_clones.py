"""Loaders like the user's, over batches that are chosen, and the conditions under which they run: threads, caches, warnings."""

from __future__ import annotations

import copy
import dataclasses
import gc
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Subset
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.client.node import NodeClient
from prefeed.config import Config, DiskBudget, current
from prefeed.datasets.origin import Origin
from prefeed.diagnose.measurement import LoaderFacts
from prefeed.diagnose.tune.search import Settings
from prefeed.errors import PrefeedError
from prefeed.loaders.kinds import length_of
from prefeed.loaders.searching import attributes_of
from prefeed.store.capacity import default_budget_bytes, memory_limits
from prefeed.torch.items import is_stream
from prefeed.torch.loader import DataLoader
from prefeed.torch.nesting import tensors_in
from prefeed.torch.order import indices_of
from prefeed.wire.endpoint import remove_runtime_dirs

Batch = Any
"""What a sampler yields for one batch: a list of indices, or one index where the dataset makes batches itself."""


class Batches:
    """Batches of indices that a loader's sampler draws, one epoch after the other.

    Drawing them uses the generators that the sampler draws from.
    """

    def __init__(self, loader: TorchDataLoader[Any]) -> None:
        self._loader = loader
        self._drawn = self._endless()

    def take(self, number: int) -> list[Batch]:
        """Return that many batches; fewer only from a sampler that yields nothing."""
        return list(itertools.islice(self._drawn, number))

    def _endless(self) -> Iterator[Batch]:
        while True:
            is_empty = True
            for batch in self._loader._index_sampler:
                is_empty = False
                yield list(batch) if isinstance(batch, Iterator) else batch  # trials are made with it again and again
            if is_empty:
                return


def require_loader(loader: Any, function: str, *, step: Callable[[Any], Any] | None, needs_step: bool = False) -> None:
    """Refuse what is no loader, and a step that cannot be called, before anything is tried.

    Args:
        loader: What was given as a loader.
        function: Of ``prefeed``, which was called.
        step: What was given as a step.
        needs_step: There is nothing to try without one.

    Raises:
        TypeError: It is no ``torch.utils.data.DataLoader``, or the step is no function.
    """
    if not isinstance(loader, TorchDataLoader):
        raise TypeError(
            f"prefeed.{function} takes a torch.utils.data.DataLoader, not {type(loader).__name__}: make "
            "one of your dataset, DataLoader(dataset, batch_size=...)"
        )
    if not callable(step) and (needs_step or step is not None):
        raise TypeError(f"prefeed.{function} takes a step that is called with each batch, not {step!r}")


def twin_of(
    loader: TorchDataLoader[Any],
    batches: Sequence[Batch],
    *,
    dataset: Any = None,
    served_by: Config | None = None,
    **changes: Any,
) -> TorchDataLoader[Any]:
    """Return a loader over these batches that is otherwise like the user's.

    Args:
        loader: The user's; a map-style one.
        batches: As ``Batches.take`` gives them.
        dataset: Instead of the user's.
        served_by: Make it a ``prefeed.DataLoader`` with these settings; None: of the user's kind.
        **changes: Arguments of the loader to be others: ``num_workers``, ``prefetch_factor``, ``pin_memory``.
    """
    arguments = _arguments_of(loader, changes)
    if loader.batch_size is None and loader.batch_sampler is None:
        arguments.update(sampler=list(batches), batch_size=None)
    else:
        arguments["batch_sampler"] = _batch_sampler(batches)
    dataset = loader.dataset if dataset is None else dataset
    if served_by is not None:
        return DataLoader(dataset, config=served_by, **arguments)
    return _of_its_kind(loader, dataset, arguments)


def stream_twin_of(loader: TorchDataLoader[Any], **changes: Any) -> TorchDataLoader[Any]:
    """Return a loader over the same stream, from its beginning, that is otherwise like the user's.

    Args:
        loader: The user's, of an ``IterableDataset``.
        **changes: As in ``twin_of``.
    """
    arguments = _arguments_of(loader, changes)
    if loader.batch_size is not None:
        arguments["drop_last"] = loader.drop_last
    return _of_its_kind(loader, loader.dataset, {"batch_size": loader.batch_size, **arguments})


def _of_its_kind(loader: TorchDataLoader[Any], dataset: Any, arguments: dict[str, Any]) -> TorchDataLoader[Any]:
    if type(loader) is not DataLoader:
        return torch.utils.data.DataLoader(dataset, **arguments)
    return DataLoader(dataset, config=vars(loader).get("_prefeed_config"), **arguments)


def _arguments_of(loader: TorchDataLoader[Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a loader but for what it reads and in which batches, some of them changed."""
    arguments: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "in_order": getattr(loader, "in_order", True),
        **changes,
    }
    if not arguments["num_workers"]:
        arguments.update(prefetch_factor=None, multiprocessing_context=None, timeout=0)
    elif arguments["prefetch_factor"] is None:
        arguments["prefetch_factor"] = 2
    if not hasattr(loader, "in_order"):  # torch before 2.6
        del arguments["in_order"]
    return arguments


def _batch_sampler(batches: Sequence[Batch]) -> Any:
    """Return the batches as one of torch's own samplers where they are regular: prefeed knows how workers take turns."""
    if not batches or not all(isinstance(batch, list) for batch in batches):
        return list(batches)
    sizes = {len(batch) for batch in batches[:-1]} or {len(batches[0])}
    if len(sizes) != 1 or len(batches[-1]) > min(sizes):
        return list(batches)
    return BatchSampler(list(itertools.chain.from_iterable(batches)), min(sizes), drop_last=False)


def samples_in(batches: Sequence[Batch]) -> list[int]:
    """Return the indices in some batches, in order."""
    return [index for batch in batches for index in indices_of(batch)]


def num_samples_in(batches: Sequence[Batch]) -> int:
    """Return how many samples are in some batches; an index may be anything that the dataset takes."""
    return sum(1 if isinstance(batch, str) or not hasattr(batch, "__len__") else len(batch) for batch in batches)


def facts_of(loader: TorchDataLoader[Any], batch_size: float, *, is_served: bool) -> LoaderFacts:
    """Return what the loader and the machine are."""
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        samples=None if is_stream(loader) else length_of(loader.dataset),
        batch_size=batch_size,
        num_workers=loader.num_workers,
        prefetch_factor=(loader.prefetch_factor or 2) if loader.num_workers else 0,
        pin_memory=bool(loader.pin_memory),
        is_prefeed=is_served,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=default_budget_bytes(memory_limits(current().memory_dir)),
        list_bytes=list_bytes_of(loader.dataset),
    )


_LONG: Final = 1 << 16
_LOOKED_AT: Final = 64


def list_bytes_of(dataset: Any, *, depth: int = 4) -> int:
    """Estimate the size of the Python objects in the long lists and dicts of a dataset, and of the datasets that it holds.

    A forked worker copies the memory of each of them that it reads, because reading one writes its reference count. A few of a list are
    looked at.
    """
    total = 0
    for held in attributes_of(dataset).values():
        if type(held) in (list, tuple, dict) and len(held) >= _LONG:
            entries = held.items() if type(held) is dict else held[:: len(held) // _LOOKED_AT]
            some = [_bytes_of(entry) for entry in itertools.islice(entries, _LOOKED_AT)]
            total += sys.getsizeof(held) + sum(some) * len(held) // len(some)
        elif depth:
            inner = held if type(held) in (list, tuple) and len(held) <= _LOOKED_AT else [held]
            total += sum(list_bytes_of(one, depth=depth - 1) for one in inner if hasattr(one, "__getitem__"))
    return total


def _bytes_of(entry: Any) -> int:
    inner = entry.values() if type(entry) is dict else entry if type(entry) in (list, tuple) else ()
    return sys.getsizeof(entry) + sum(map(sys.getsizeof, inner))


NOT_SPLIT: Final = (
    "each worker gives the same samples: the dataset does not ask torch's get_worker_info() for its share"
)
"""Of a stream that workers repeat."""


def are_alike(batch: Any, other: Any) -> bool:
    """Return whether the tensors of two batches are equal; False without any."""
    pairs = list(zip(tensors_in(batch), tensors_in(other), strict=False))
    return bool(pairs) and all(torch.equal(one, same) for one, same in pairs)


class LoaderFailed(Exception):
    """The loader, and not the training step, raised; the text says what."""


_LONGEST_REASON: Final = 200


def reason_of(err: Exception) -> str:
    """Return an error in one line: of one that crossed from a worker, the last of its traceback."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    text = lines[-1] if lines and "Traceback" in str(err) else f"{type(err).__name__}: {' '.join(lines)}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


def synchronize(device: torch.device | None) -> None:
    """Wait until a device has done all that it was told to do."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Let torch compute with that many threads."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def without_advice() -> Iterator[None]:
    """Silence torch's advice against many workers: they are what is being tried."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


@contextmanager
def served_by(loader: TorchDataLoader[Any], settings: Settings) -> Iterator[Config | None]:
    """Give the settings by which prefeed serves a loader of its own; None: the loader is torch's.

    Args:
        loader: The user's.
        settings: With a lookahead, which a server keeps from its start, one is started with an empty cache, and stopped
            at the end; without, it is the user's own.

    Raises:
        LoaderFailed: prefeed had no plan for it, so that the lookahead was of no use.
    """
    if not issubclass(type(loader), DataLoader):  # not isinstance: under prefeed.auto every loader is one
        yield None
        return
    config = vars(loader).get("_prefeed_config") or current()
    if settings.lookahead is None:
        yield config
        gc.collect()  # a plan ends with its loader
        return
    with private_home(
        config,
        limits=dataclasses.replace(config.limits, lookahead_bytes=settings.lookahead),
        memory=settings.cache_bytes,
    ) as private:
        with suppress(OSError):  # listings are the user's: a large origin takes minutes to list
            (private.home / "manifests").symlink_to(config.home / "manifests")
        yield private
        _must_have_read(private)


@contextmanager
def private_home(config: Config, *, directory: Path | None = None, **changes: Any) -> Iterator[Config]:
    """Give the settings of an empty node cache, which is gone at the end of the block with its server.

    Args:
        config: The user's.
        directory: Where its home is made; None: where temporary directories are.
        **changes: Settings that are to be others.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-trial-", dir=directory) as parent:
        home = Path(parent) / "home"
        home.mkdir()
        private = dataclasses.replace(config, home=home, disk=DiskBudget(), **changes)
        try:
            yield private
        finally:
            gc.collect()  # a plan ends with its loader
            with suppress(PrefeedError, OSError), NodeClient.connect(private, autostart=False) as node:
                node.stop()
            remove_runtime_dirs(private)


def read_through(dataset: Any, config: Config | None) -> Any:
    """Return the dataset as one that reads through the cache of these settings; itself where that is no matter.

    prefeed's own datasets read through the node on which they were made; all others, through their loader's.
    """
    if type(dataset) is Subset:
        inner = read_through(dataset.dataset, config)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    origin = getattr(dataset, "_origin", None)
    if config is None or not isinstance(origin, Origin) or origin.config.home == config.home:
        return dataset
    moved = copy.copy(dataset)
    moved._origin = Origin(origin._given, config)
    return moved


def _must_have_read(config: Config) -> None:
    try:
        with NodeClient.connect(config, autostart=False) as node:
            if node.statistics().reads:
                return
    except PrefeedError:
        pass
    raise LoaderFailed("prefeed has no plan for this loader, so nothing is fetched ahead")
