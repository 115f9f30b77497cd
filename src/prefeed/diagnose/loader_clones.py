"""Loaders like the user's, over batches that are chosen: what trials are made with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.config import Config, current
from prefeed.diagnose.measurement import LoaderFacts
from prefeed.store.capacity import default_budget_bytes, memory_limits
from prefeed.torch.loader import DataLoader
from prefeed.torch.order import indices_of

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
            f"prefeed.{function} takes a torch.utils.data.DataLoader, and not {type(loader).__name__}: "
            "make one of your dataset, DataLoader(dataset, batch_size=...)"
        )
    if not callable(step) and (needs_step or step is not None):
        raise TypeError(f"prefeed.{function} takes a step that is called with each batch, and not {step!r}")


def is_stream(loader: TorchDataLoader[Any]) -> bool:
    """Return True when the dataset has no samples by index: no twin can be made of it."""
    return isinstance(loader.dataset, IterableDataset)


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
        samples=_num_samples(loader),
        batch_size=batch_size,
        num_workers=loader.num_workers,
        prefetch_factor=(loader.prefetch_factor or 2) if loader.num_workers else 0,
        pin_memory=bool(loader.pin_memory),
        is_prefeed=is_served,
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=default_budget_bytes(memory_limits(current().memory_dir)),
    )


def _num_samples(loader: TorchDataLoader[Any]) -> int | None:
    try:
        return None if is_stream(loader) else len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - it is the user's: it may have no length, where its sampler knows the indices
        return None
