"""Stages of a pipeline between a loader and the dataset whose samples are made of files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from prefeed.loaders.kinds import is_just_a

if TYPE_CHECKING:
    from prefeed.client.access import CachedSamples
    from prefeed.stage_cache.dataset import CachedDataset, MappedDataset

_STAGES: Final = "prefeed.stage_cache.dataset"
"""Not imported here: it takes 30 ms of processor time, and who has a stage has imported it."""

_GROUP = 4096
"""Samples looked up in one go: a long look into a cache keeps what is freed from being used again."""


@dataclass(frozen=True, slots=True)
class InStage:
    """The samples of a stage; a ``client.access.CachedSamples``."""

    stage: CachedDataset

    def are_cached(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return for each sample whether the stage has an entry of it, shape (num_accesses,)."""
        chosen = samples.tolist()
        absent: list[bool] = []
        for start in range(0, len(chosen), _GROUP):
            absent += self.stage.absent(chosen[start : start + _GROUP])
        return ~np.array(absent, dtype=np.bool_)

    def has_room(self) -> bool:
        """Return True while the stage takes more entries."""
        return self.stage.has_room()


@dataclass(frozen=True, slots=True)
class _SubsetSamples:
    """Some samples of others, as of a ``Subset``: sample i is sample ``indices[i]`` of ``inner``; shape (num_samples,)."""

    inner: CachedSamples
    indices: npt.NDArray[np.int64]

    def are_cached(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        return self.inner.are_cached(self.indices[samples])

    def has_room(self) -> bool:
        return self.inner.has_room()


@dataclass(frozen=True, slots=True)
class _ConcatSamples:
    """One after another, as in a ``ConcatDataset``: the samples of part k end before ``ends[k]``; shape (num_parts,)."""

    parts: Sequence[CachedSamples]
    ends: npt.NDArray[np.int64]

    def are_cached(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        cached = np.zeros(len(samples), dtype=np.bool_)
        part_of = np.searchsorted(self.ends, samples, side="right")
        for number in np.unique(part_of).tolist():
            these = part_of == number
            before = self.ends[number - 1] if number else 0
            cached[these] = self.parts[number].are_cached(samples[these] - before)
        return cached

    def has_room(self) -> bool:
        return all(part.has_room() for part in self.parts)


def is_cached(dataset: Any) -> TypeGuard[CachedDataset]:
    """Return True for a stage whose samples are cached."""
    return isinstance(dataset, getattr(sys.modules.get(_STAGES), "CachedDataset", ()))


def is_mapped(dataset: Any) -> TypeGuard[MappedDataset]:
    """Return True for a stage that computes its samples each time."""
    return isinstance(dataset, getattr(sys.modules.get(_STAGES), "MappedDataset", ()))


def peeled(dataset: Any) -> tuple[Any, CachedSamples | None]:
    """Return the dataset without the stages that are mapped or cached, and where its samples may be found instead.

    The topmost stage that is cached counts. Of a ``ConcatDataset`` each part must have one, else its samples are taken for not cached.
    """
    if is_cached(dataset):
        return peeled(dataset.dataset)[0], InStage(dataset)
    if is_mapped(dataset):
        return peeled(dataset.dataset)
    if is_just_a(dataset, "Subset"):
        inner, cached = peeled(dataset.dataset)
        if inner is dataset.dataset and cached is None:
            return dataset, None
        indices = np.asarray(dataset.indices, dtype=np.int64)
        return type(dataset)(inner, dataset.indices), None if cached is None else _SubsetSamples(cached, indices)
    if is_just_a(dataset, "ConcatDataset"):
        bare, parts = zip(*map(peeled, dataset.datasets), strict=True)
        if all(part is not None for part in parts):
            return type(dataset)(bare), _ConcatSamples(parts, np.asarray(dataset.cumulative_sizes, dtype=np.int64))
    return dataset, None


def begin_pass(dataset: Any) -> None:
    """An epoch over this dataset begins: its cached stages look at what they depend on before workers are started."""
    if is_cached(dataset):
        dataset.begin_pass()
    if is_cached(dataset) or is_mapped(dataset) or is_just_a(dataset, "Subset"):
        begin_pass(dataset.dataset)
    elif is_just_a(dataset, "ConcatDataset"):
        for part in dataset.datasets:
            begin_pass(part)


def has_cached_stage(dataset: Any) -> bool:
    """Return True when samples of this dataset may be found in the cache of a stage."""
    return peeled(dataset)[1] is not None
