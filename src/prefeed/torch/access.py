"""Which objects the samples of a dataset are made of: prefeed's own datasets say so, torchvision's keep a list."""

from __future__ import annotations

import os
import sys
from typing import Any

from prefeed.client.access import Accessible, AccessMap
from prefeed.client.dataset import open_listed_dataset
from prefeed.client.node import NodeClient
from prefeed.config import Config


def access_of(dataset: Any, node: NodeClient, config: Config) -> AccessMap | None:
    """Return the dataset's access map on this node; None when nothing is known about it.

    Raises:
        PrefeedError: The node cannot list it.
    """
    if isinstance(dataset, Accessible):
        return dataset.prefeed_access(node, config)
    paths = listed_paths(dataset)
    if paths is None:
        return None
    return AccessMap(dataset=open_listed_dataset(node, paths, config), ids=None)


def listed_paths(dataset: Any) -> list[str] | None:
    """Return the file of each sample of torchvision's ``DatasetFolder`` and ``ImageFolder``; None for others."""
    folder = sys.modules.get("torchvision.datasets.folder")  # who has such a dataset has imported it
    if folder is None or not isinstance(dataset, folder.DatasetFolder) or not dataset.samples:
        return None
    return [os.path.abspath(path) for path, _ in dataset.samples]
