"""Images in one folder a class."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, current
from prefeed.datasets.origin import Origin
from prefeed.errors import EmptyListingError
from prefeed.sources.manifest import Manifest

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""File names that ``ImageFolder`` takes for images: torchvision's list."""


class ImageFolder:
    """Images in one folder a class, as torchvision's ``ImageFolder``, from any origin.

    Samples and their order, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are torchvision's.

    Args:
        url_or_path: Root, ``<root>/<class>/.../<image>``; also ``sampleset://NAME/PATH``.
        transform: Applied to the image.
        target_transform: Applied to the class index.
        loader: Given a binary file, returns the image; default: Pillow, converted to RGB, as torchvision does.
        config: Settings; defaults to those in force in the process.

    Raises:
        SourceError: The origin cannot be listed, or holds no class folder with an image.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[BinaryIO], Any] | None = None,
        *,
        config: Config | None = None,
    ) -> None:
        self.transform = transform
        self.target_transform = target_transform
        self.loader = loader or _load_rgb_image
        self._origin = Origin(url_or_path, config or current())
        self.root = self._origin.url
        images = _images_by_class(self._origin.manifest)
        if not images:
            raise EmptyListingError(
                f"no class folder with an image below {self.root}; wanted <class>/<name> with one of the endings "
                f"{', '.join(IMAGE_EXTENSIONS)}, found {self._origin.manifest.num_objects} objects without"
            )
        self.classes = sorted(images)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        ordered = [(object_id, self.class_to_idx[name]) for name in self.classes for object_id in images[name]]
        table = np.array(ordered, dtype=np.int64)  # table: (num_samples, 2)
        self._ids, self._targets = np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])

    @property
    def targets(self) -> list[int]:
        """Class index of each sample."""
        return [int(target) for target in self._targets]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(full path or URL, class index) of each sample."""
        manifest, root = self._origin.manifest, self.root.rstrip("/")
        pairs = zip(self._ids.tolist(), self._targets.tolist(), strict=True)
        return [(f"{root}/{manifest.path(object_id)}", target) for object_id, target in pairs]

    imgs = samples

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
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
        return self.prefeed_stage(), self._origin.manifest.directory.name

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's image, and its entry key and class."""
        object_id = int(self._ids[index])
        return self._origin.manifest.path(object_id), self._origin.manifest.key(object_id) + b"%d" % self._targets[
            index
        ]


def _load_rgb_image(file: BinaryIO) -> Any:
    """Return the image as Pillow's RGB, as torchvision's default loader does."""
    # Imported here: Pillow is torchvision's dependency, not prefeed's.
    from PIL import Image  # noqa: PLC0415

    with Image.open(file) as image:
        return image.convert("RGB")


def _images_by_class(manifest: Manifest) -> dict[str, list[int]]:
    """Return object ids by class folder, each list in torchvision's order: by directory, then by name."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for object_id in range(manifest.num_objects):
        path = manifest.path(object_id)
        directory, _, name = path.rpartition("/")
        if directory and name.lower().endswith(IMAGE_EXTENSIONS):
            found.setdefault(directory.partition("/")[0], []).append((directory, name, object_id))
    return {name: [object_id for *_, object_id in sorted(images)] for name, images in found.items()}
