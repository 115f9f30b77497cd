"""Images with labels, whatever says which image has which: what the datasets of images share."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.datasets.origin import Origin, sample_index

Indices = npt.NDArray[np.int64]


class LabelledImages:
    """Images of an origin by number, each with an integer.

    Args:
        origin: Where they are.
        ids: Object of each sample, shape (num_samples,).
        targets: Label of each sample, shape (num_samples,).
        transform: Applied to the image.
        target_transform: Applied to the label.
        loader: Given a binary file, returns the image; None: Pillow, converted to RGB, as torchvision does.
    """

    def __init__(
        self,
        origin: Origin,
        ids: Indices,
        targets: Indices,
        *,
        transform: Callable[[Any], Any] | None,
        target_transform: Callable[[Any], Any] | None,
        loader: Callable[[BinaryIO], Any] | None,
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader or load_rgb_image
        self.root = origin.url
        self._origin = origin
        self._ids, self._targets = np.ascontiguousarray(ids), np.ascontiguousarray(targets)

    @property
    def targets(self) -> list[int]:
        """Label of each sample."""
        return [int(target) for target in self._targets]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(full path or URL, label) of each sample."""
        manifest, root = self._origin.manifest, self.root.rstrip("/")
        pairs = zip(self._ids.tolist(), self._targets.tolist(), strict=True)
        return [(f"{root}/{manifest.path(object_id)}", target) for object_id, target in pairs]

    imgs = samples

    @property
    def listed_at(self) -> float:
        """When the listing that this was made from began, in seconds since 1970."""
        return self._origin.listed_at

    @property
    def listing_age_seconds(self) -> float:
        """How old that listing was when this was made."""
        return self._origin.listing_age_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin.described(f'{len(self)} samples')}>"

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        index = sample_index(index, len(self))
        image = self.loader(io.BytesIO(self._origin.read(int(self._ids[index]))))
        target = int(self._targets[index])
        if self.transform is not None:
            image = self.transform(image)
        return image, target if self.target_transform is None else self.target_transform(target)

    def prefeed_settings(self) -> Config | None:
        """Return the settings of the node that every loader of this dataset uses; None: those in force."""
        return self._origin.node_config

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return which object each sample needs."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_stage(self) -> Any:
        """Return what samples are made with, for the caches of stages."""
        return self.root, self.loader, self.transform, self.target_transform

    def prefeed_state(self) -> Any:
        """Return what tells this dataset from others: what samples are made with, and which listing."""
        return self.prefeed_stage(), self._origin.settle().directory.name

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's image, and its entry key and label."""
        object_id = int(self._ids[index])
        manifest = self._origin.settle()
        return manifest.path(object_id), manifest.key(object_id) + b"%d" % self._targets[index]


def load_rgb_image(file: BinaryIO) -> Any:
    """Return the image as Pillow's RGB, as torchvision's default loader does."""
    # Imported here: Pillow is torchvision's dependency, not prefeed's.
    from PIL import Image  # noqa: PLC0415

    with Image.open(file) as image:
        return image.convert("RGB")
