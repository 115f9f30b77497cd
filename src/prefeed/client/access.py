"""The access map: which objects each sample of a dataset is made of. What a loader asks of a dataset."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from prefeed.client.dataset import NodeDataset
from prefeed.client.node import NodeClient
from prefeed.config import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessMap:
    """Sample index → object id.

    Attributes:
        dataset: Where the objects are.
        ids: Object id of each sample, shape (num_samples,); None when sample i is object i.
    """

    dataset: NodeDataset
    ids: npt.NDArray[np.int64] | None

    def object_ids(self, samples: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Return the object ids that these samples need, in the same order; shapes (n,) → (n,).

        Negative indices count from the end. An index that the map does not have is left out: which object it needs is
        not known, and reading it is the dataset's own affair.
        """
        length = self._length
        if len(samples) and (int(samples.min()) < 0 or int(samples.max()) >= length):
            samples = np.where(samples < 0, samples + length, samples)
            samples = samples[(samples >= 0) & (samples < length)]
        return samples if self.ids is None else self.ids[samples]

    def object_id(self, sample: Any) -> int | None:
        """Return the object that this sample needs; None when the map does not have it."""
        try:
            index = operator.index(sample)
        except TypeError:
            return None
        length = self._length
        if not -length <= index < length:
            return None
        return index % length if self.ids is None else int(self.ids[index])

    @property
    def _length(self) -> int:
        return self.dataset.manifest.num_objects if self.ids is None else len(self.ids)


@runtime_checkable
class Accessible(Protocol):
    """A dataset that says which objects its samples need."""

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the access map on this node.

        Raises:
            PrefeedError: The node cannot serve it; the loader goes on without.
        """
        ...
