"""What a sampler will draw, found out without disturbing any random generator.

torch's own samplers draw from torch's generators alone, which can be saved and restored: the sampler is run once in
the shadow, to the end, and then once more for real, when and as far as torch asks. A sampler of another class may
keep state of its own or draw from anywhere, so it is left alone unless the user says that it may be read ahead.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
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

_PLAIN = (list, tuple, range)


def is_readable_ahead(index_sampler: Any) -> bool:
    """Return True when the sampler, or batch sampler, can be run in the shadow. Subclasses are others' code: False."""
    if type(index_sampler) is BatchSampler:
        return is_readable_ahead(index_sampler.sampler)
    return type(index_sampler) in KNOWN_SAMPLERS or isinstance(index_sampler, _PLAIN)


def shadow_order(index_sampler: Any, *, draw_seed_from: torch.Generator | bool | None = None) -> Order:
    """Return every sample index that the sampler would yield now, in order, shape (n,); all generators as before.

    Args:
        index_sampler: A sampler or batch sampler for which ``is_readable_ahead`` holds.
        draw_seed_from: What torch draws an epoch's base seed from just before it asks the sampler: a generator,
            True for the default one, None when it does not.
    """
    with _generators_restored(index_sampler, draw_seed_from):
        if draw_seed_from is not None:
            generator = draw_seed_from if isinstance(draw_seed_from, torch.Generator) else None
            torch.empty((), dtype=torch.int64).random_(generator=generator)
        return _draw(index_sampler)


def drawn_order(batches: list[Any]) -> Order:
    """Return the sample indices of batches that were drawn for real, shape (n,)."""
    return np.array([index for batch in batches for index in indices_of(batch)], dtype=np.int64)


def indices_of(batch: Any) -> list[int]:
    """Return the sample indices in a batch, or the one that a sampler drew; what is no integer is left out."""
    try:
        return [operator.index(batch)]
    except TypeError:
        pass
    if not isinstance(batch, Iterable) or isinstance(batch, str | bytes):
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


def _draw(index_sampler: Any) -> Order:
    if type(index_sampler) is BatchSampler:
        order = _draw(index_sampler.sampler)
        used = len(order) - len(order) % index_sampler.batch_size if index_sampler.drop_last else len(order)
        return order[:used]
    drawn = list(index_sampler)
    try:
        return np.array(drawn, dtype=np.int64).reshape(len(drawn))
    except (TypeError, ValueError, OverflowError):  # tensors, tuples, names: whatever the dataset takes
        return drawn_order(drawn)


@contextmanager
def _generators_restored(index_sampler: Any, seed_source: torch.Generator | bool | None) -> Iterator[None]:
    generators = {id(g): g for g in (_generator_of(index_sampler), seed_source) if isinstance(g, torch.Generator)}
    default_state = torch.get_rng_state()
    states = [(generator, generator.get_state()) for generator in generators.values()]
    try:
        yield
    finally:
        torch.set_rng_state(default_state)
        for generator, state in states:
            generator.set_state(state)


def _generator_of(index_sampler: Any) -> torch.Generator | None:
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    generator = getattr(inner, "generator", None)
    return generator if isinstance(generator, torch.Generator) else None
