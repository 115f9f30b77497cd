"""Stages of a pipeline between a loader and the dataset whose samples are made of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from prefeed.loaders.kinds import is_just_a
from prefeed.stage_cache import CachedDataset, MappedDataset

_GROUP = 4096
"""Samples looked up in one go: a long look into a cache keeps what is freed from being used again."""


@dataclass(frozen=True, slots=True)
class InStage:
    """Which samples of a loader are in the cache of a stage; a ``client.access.CachedSamples``.

    Attributes:
        stage: The topmost that is cached.
        indices: Sample i of the loader is sample ``indices[i]`` of the stage, shape (num_samples,); None: sample i.
    """

    stage: CachedDataset
    indices: npt.NDArray[np.int64] | None

    def are_cached(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return for each sample whether the stage has an entry of it, shape (num_accesses,)."""
        chosen = (samples if self.indices is None else self.indices[samples]).tolist()
        absent: list[bool] = []
        for start in range(0, len(chosen), _GROUP):
            absent += self.stage.absent(chosen[start : start + _GROUP])
        return ~np.array(absent, dtype=np.bool_)

    def has_room(self) -> bool:
        """Return True while the stage takes more entries."""
        return self.stage.has_room()


def peeled(dataset: Any) -> tuple[Any, InStage | None]:
    """Return the dataset without the stages that are mapped or cached, and where its samples may be found instead."""
    if isinstance(dataset, CachedDataset):
        return peeled(dataset.dataset)[0], InStage(dataset, None)
    if isinstance(dataset, MappedDataset):
        return peeled(dataset.dataset)
    if is_just_a(dataset, "Subset"):
        inner, cached = peeled(dataset.dataset)
        if inner is dataset.dataset and cached is None:
            return dataset, None
        indices = np.asarray(dataset.indices, dtype=np.int64)
        if cached is not None:
            below = cached.indices
            cached = InStage(cached.stage, indices if below is None else below[indices])
        return type(dataset)(inner, dataset.indices), cached
    return dataset, None


def begin_pass(dataset: Any) -> None:
    """An epoch over this dataset begins: its cached stages look at what they depend on before workers are started."""
    if isinstance(dataset, CachedDataset):
        dataset.begin_pass()
    if isinstance(dataset, CachedDataset | MappedDataset) or is_just_a(dataset, "Subset"):
        begin_pass(dataset.dataset)
    elif is_just_a(dataset, "ConcatDataset"):
        for part in dataset.datasets:
            begin_pass(part)


def has_cached_stage(dataset: Any) -> bool:
    """Return True when samples of this dataset may be found in the cache of a stage."""
    return peeled(dataset)[1] is not None
