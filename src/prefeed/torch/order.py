"""What is known of samplers: whose they are, how long a pass is, what is an index in what they draw.

torch's own samplers draw from torch's generators alone, which can be copied: what they will draw can be read ahead
(``windows``). So can that of Accelerate's. A sampler of another class may keep state of its own or draw from anywhere, so
it is left alone unless the user says that it may be read ahead.
"""

from __future__ import annotations

import copy
import itertools
import operator
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

Order = npt.NDArray[np.int64]

KNOWN_SAMPLERS = frozenset(
    {SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler}
)
"""Classes whose iteration draws from torch's generators only, and changes nothing else."""

_KNOWN_BY_NAME = frozenset({"accelerate.data_loader.SeedableRandomSampler"})
"""The same of other packages; iterating one may change its plain attributes, which a copy has for itself."""

_WRAPPERS = {
    "torch.utils.data.sampler.BatchSampler": "sampler",
    "accelerate.data_loader.BatchSamplerShard": "batch_sampler",
    "accelerate.data_loader.SkipBatchSampler": "batch_sampler",
}
"""Classes that hand on what another sampler draws: full name, and the attribute that holds the other."""

PLAIN = (list, tuple, range)
"""What can be a sampler, and draws from nothing."""


def is_readable_ahead(index_sampler: Any) -> bool:
    """Return True when the sampler, or batch sampler, can be run in the shadow. Subclasses are others' code: False."""
    innermost = samplers_of(index_sampler)[-1]
    if type(innermost) in KNOWN_SAMPLERS or isinstance(innermost, PLAIN):
        return True
    return _name_of(innermost) in _KNOWN_BY_NAME


def samplers_of(index_sampler: Any) -> list[Any]:
    """Return the sampler, the one inside it that it draws from, and so on."""
    chain = [index_sampler]
    while (inner := _WRAPPERS.get(_name_of(chain[-1]))) is not None:
        chain.append(getattr(chain[-1], inner))
    return chain


def yields_integers(sampler: Any) -> bool:
    """Return True when what the sampler yields is known to be one integer after the other."""
    return type(sampler) in KNOWN_SAMPLERS


def batch_size_of(index_sampler: Any) -> int | None:
    """Return how many samples the batches have that a batch sampler yields; None when it does not say."""
    size = getattr(index_sampler, "batch_size", None)
    if not isinstance(size, int):
        return None
    if getattr(index_sampler, "split_batches", False):  # Accelerate: each process has its part of each batch
        return size // int(index_sampler.num_processes)
    return size


def repeated_by(index_sampler: Any) -> Any:
    """Return the batch sampler that a sampler without an end goes through again and again; None when it is no such one.

    timm, ultralytics and YOLOv5 have one: their loaders make one iterator, which lasts for the whole run.
    """
    if _name_of(index_sampler) in _WRAPPERS or _length_of(index_sampler) is not None:
        return None
    inner = getattr(index_sampler, "sampler", None)
    return inner if batch_size_of(inner) is not None and _length_of(inner) else None


def pass_length(index_sampler: Any, *, num_samples: int, batch_size: int | None) -> int | None:
    """Return how many batches, or indices, one pass has: after that many, what comes is of another epoch.

    That is the length of the sampler that it repeats. Else as many samples as the dataset has, or as it says that it has
    itself, whichever is more: what it says may be wrong, and one that ends after all is one epoch.

    Args:
        index_sampler: Yields batches or indices, maybe without end.
        num_samples: Of the dataset.
        batch_size: Of the loader; None when it has none.
    """
    repeated = _length_of(repeated_by(index_sampler))
    return repeated or max(_length_of(index_sampler) or 0, -(-num_samples // (batch_size or 1))) or None


def drawn_order(batches: list[Any]) -> Order:
    """Return the sample indices of batches that were drawn for real, shape (n,)."""
    return np.array([index for batch in batches for index in indices_of(batch)], dtype=np.int64)


def as_order(drawn: list[Any]) -> Order:
    """Return the sample indices that a sampler drew, alone or in batches, shape (n,); what is no integer is left out."""
    if drawn and isinstance(drawn[0], list) and all(issubclass(kind, list) for kind in set(map(type, drawn))):
        drawn = list(itertools.chain.from_iterable(drawn))
    try:
        order = np.asarray(drawn).reshape(len(drawn))
    except (TypeError, ValueError):
        return drawn_order(drawn)
    if order.dtype.kind not in "biu":  # tensors, tuples, names: whatever the dataset takes
        return drawn_order(drawn)
    return order.astype(np.int64, copy=False)


def with_inner(chain: list[Any], innermost: Any) -> Any:
    """Return copies of samplers that draw from one another, the last of which draws from this one."""
    for wrapper in reversed(chain[:-1]):
        inner, innermost = innermost, copy.copy(wrapper)
        setattr(innermost, _WRAPPERS[_name_of(wrapper)], inner)
    return innermost


def can_be_read_again(batch: Any) -> bool:
    """Return True for a batch that may be iterated more than once; others (``map``, generators) are left to torch."""
    return isinstance(batch, Collection)


def indices_of(batch: Any) -> list[int]:
    """Return the sample indices in a batch, or the one that a sampler drew.

    What is no integer is left out, and so is what can be read only once: reading it here would leave nothing of it.
    """
    try:
        return [operator.index(batch)]
    except TypeError:
        pass
    if not can_be_read_again(batch) or isinstance(batch, str | bytes):
        return []
    return [index for part in batch if not isinstance(part, list | tuple) for index in indices_of(part)]


def distributed_sampler(index_sampler: Any) -> DistributedSampler[Any] | None:
    """Return the distributed sampler inside, whose order depends on nothing but its epoch; None if there is none."""
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    return inner if type(inner) is DistributedSampler else None


def with_epoch(index_sampler: Any, epoch: int) -> Any:
    """Return a copy of a (batch sampler of a) distributed sampler, as ``set_epoch`` will leave it."""
    inner = distributed_sampler(index_sampler)
    assert inner is not None
    following = copy.copy(inner)
    following.epoch = epoch
    if inner is index_sampler:
        return following
    return BatchSampler(following, index_sampler.batch_size, index_sampler.drop_last)


def _length_of(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # noqa: BLE001 - it is the user's
        return None


def _name_of(sampler: Any) -> str:
    return f"{type(sampler).__module__}.{type(sampler).__qualname__}"
