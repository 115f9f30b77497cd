"""The access map: which objects each sample of a dataset is made of. What a loader asks of a dataset."""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from prefeed.client.dataset import NodeDataset
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.sources.learned import LearnedMap

Indices = npt.NDArray[np.int64]


class CachedSamples(Protocol):
    """Knows which samples need no object, because what is made of them is in a cache."""

    def are_cached(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Return for each sample whether it is in the cache; shape (num_accesses,)."""
        ...

    def has_room(self) -> bool:
        """Return True while what is made of other samples will be kept as well: their objects need not be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """Sample index → object ids: ``indices`` first, if there are any, then ``starts`` and ``ids``, or ``learned``.

    Attributes:
        dataset: Where the objects are.
        ids: Object id of each sample, shape (num_samples,), or of each place that ``starts`` counts; None when sample, or
            place, i is object i.
        starts: Sample i is made of the objects at the places ``starts[i]`` to ``starts[i + 1] - 1``, shape (num_samples + 1,).
        learned: Knows what samples opened before.
        indices: Sample i is sample ``indices[i]`` of the above, as in a ``Subset``; shape (num_indices,).
        cached: Knows which samples need nothing of the above at present.
    """

    dataset: NodeDataset
    ids: Indices | None = None
    starts: Indices | None = None
    learned: LearnedMap | None = None
    indices: Indices | None = None
    cached: CachedSamples | None = None

    def object_ids(self, samples: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], Indices | None]:
        """Return the objects that these samples need, in the same order, and how many each needs; None: one each.

        Negative indices count from the end. What an index that the map does not have needs is not known: nothing.

        Args:
            samples: Shape (num_accesses,).

        Returns:
            Object ids, shape (num_objects,), and counts, shape (num_accesses,).
        """
        samples, known = self._needed(samples)
        ids, counts = self._objects(samples if self.indices is None else self.indices[samples])
        if known is not None:
            some = np.ones(len(samples), dtype=np.int64) if counts is None else counts
            counts = np.zeros(len(known), dtype=np.int64)
            counts[known] = some
        return ids, counts

    def base_samples(self, samples: npt.NDArray[np.integer]) -> tuple[Indices, Indices]:
        """Return the samples that need objects, without ``indices``, and where in ``samples`` each of them is."""
        found, known = self._needed(samples)
        base = found if self.indices is None else self.indices[found]
        places = np.arange(len(samples)) if known is None else np.flatnonzero(known)
        return base.astype(np.int64, copy=False), places

    def objects_of(self, sample: Any) -> tuple[int, ...]:
        """Return the objects of one sample; nothing when the map does not know it."""
        base = self.base_sample(sample)
        if base is None:
            return ()
        if self.learned is not None:
            return self.learned.objects_of(base)
        if self.starts is not None:
            found = range(int(self.starts[base]), int(self.starts[base + 1]))
            return tuple(found) if self.ids is None else tuple(self.ids[list(found)].tolist())
        return (base if self.ids is None else int(self.ids[base]),)

    def base_sample(self, sample: Any) -> int | None:
        """Return the index of a sample without ``indices``; None when the map does not have it."""
        try:
            index = operator.index(sample)
        except TypeError:
            return None
        length = len(self)
        if not -length <= index < length:
            return None
        return index % length if self.indices is None else int(self.indices[index])

    def refresh(self) -> None:
        """Take in what was learned since."""
        if self.learned is not None:
            self.learned.refresh()

    def __len__(self) -> int:
        if self.indices is not None:
            return len(self.indices)
        if self.learned is not None:
            return self.dataset.num_samples
        if self.starts is not None:
            return len(self.starts) - 1
        if self.ids is not None:
            return len(self.ids)
        return self.dataset.manifest.num_declared

    def _needed(self, samples: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.bool_] | None]:
        """Return the samples that the map has and that are not cached, and which of all these are; None: all are."""
        length = len(self)
        known = None
        if len(samples) and (int(samples.min()) < 0 or int(samples.max()) >= length):
            samples = np.where(samples < 0, samples + length, samples)
            known = (samples >= 0) & (samples < length)
            samples = samples[known]
        if self.cached is not None:
            needed = ~self.cached.are_cached(samples)
            samples = samples[needed]
            known = _narrowed(known, needed)
        return samples, known

    def _objects(self, samples: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.integer], Indices | None]:
        if self.learned is not None:
            return self.learned.object_ids(samples.astype(np.int64, copy=False))
        if self.starts is not None:
            found, counts = _gathered(self.starts, samples)
            return (found if self.ids is None else self.ids[found]), counts
        return (samples if self.ids is None else self.ids[samples]), None


class Ends:
    """Where in the objects of a plan each sample ends; samples that the reader has passed are forgotten."""

    def __init__(self) -> None:
        self._num_samples = 0
        self._num_ids = 0
        self._windows: deque[tuple[int, int, int, Indices | None]] = deque()

    def append(self, num_samples: int, num_ids: int, counts: npt.NDArray[np.integer] | None) -> None:
        """More is planned.

        Args:
            num_samples: Samples that follow.
            num_ids: Their objects, all together.
            counts: Objects of each sample, shape (num_samples,); None: one each.
        """
        ends = None if counts is None else np.cumsum(counts)
        self._windows.append((self._num_samples, num_samples, self._num_ids, ends))
        self._num_samples += num_samples
        self._num_ids += num_ids

    @property
    def num_samples(self) -> int:
        """Samples that are planned."""
        return self._num_samples

    def id_at(self, samples: int) -> int:
        """Return how many objects the first ``samples`` samples have; ``samples`` may not fall from call to call."""
        while len(self._windows) > 1 and self._windows[1][0] <= samples:
            self._windows.popleft()
        if not self._windows:
            return samples
        start, count, first_id, ends = self._windows[0]
        within = samples - start
        if ends is None:
            return first_id + within
        within = min(within, count)
        return first_id + (int(ends[within - 1]) if within > 0 else 0)


def _narrowed(known: npt.NDArray[np.bool_] | None, needed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which of all samples are left, when of those that are known only some are needed."""
    if known is None:
        return needed
    left = known.copy()
    left[known] = needed
    return left


def _gathered(starts: Indices, samples: npt.NDArray[np.integer]) -> tuple[Indices, Indices]:
    """Return every id from ``starts[i]`` to ``starts[i + 1] - 1``, for each sample i in turn, and how many these are."""
    first = starts[samples]
    counts = starts[samples + 1] - first
    ends = np.cumsum(counts)
    ids = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(first - (ends - counts), counts)
    return ids, counts


@runtime_checkable
class Accessible(Protocol):
    """A dataset that says which objects its samples need."""

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the access map on this node.

        Raises:
            PrefeedError: The node cannot serve it; the loader continues without it.
        """
        ...
