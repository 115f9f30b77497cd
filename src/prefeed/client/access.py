"""The access map: which objects each sample of a dataset is made of. What a loader asks of a dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
        """Return the object ids that these samples need, in the same order; shapes (n,) → (n,)."""
        return samples if self.ids is None else self.ids[samples]


@runtime_checkable
class Accessible(Protocol):
    """A dataset that says which objects its samples need."""

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the access map on this node.

        Raises:
            PrefeedError: The node cannot serve it; the loader goes on without.
        """
        ...
