"""Images in one folder a class."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from prefeed.config import Config, current
from prefeed.datasets.labelled import LabelledImages
from prefeed.datasets.origin import Origin
from prefeed.errors import EmptyListingError
from prefeed.sources.manifest import Manifest

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""File names that ``ImageFolder`` takes for images: torchvision's list."""


class ImageFolder(LabelledImages):
    """Images in one folder a class, as torchvision's ``ImageFolder``, from any origin.

    Samples and their order, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are torchvision's.

    Args:
        url_or_path: Root, ``<root>/<class>/.../<image>``; also ``sampleset://NAME/PATH``.
        transform: Applied to the image.
        target_transform: Applied to the class index.
        loader: Given a binary file, returns the image; default: Pillow, converted to RGB, as torchvision does.
        config: Settings; defaults to those in force in the process.
        listing_age: Seconds; a listing of the root that is no older will do. ``float("inf")``: the first one for ever.
            Default: as the settings say, which is to list now.

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
        listing_age: float | None = None,
    ) -> None:
        origin = Origin(url_or_path, config or current(), listing_age=listing_age)
        images = _images_by_class(origin.manifest)
        if not images:
            raise EmptyListingError(
                f"no class folder with an image below {origin.url}; wanted <class>/<name> with one of the endings "
                f"{', '.join(IMAGE_EXTENSIONS)}, found {origin.manifest.num_objects} objects without"
            )
        self.classes = sorted(images)
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        ordered = [(object_id, self.class_to_idx[name]) for name in self.classes for object_id in images[name]]
        table = np.array(ordered, dtype=np.int64)  # table: (num_samples, 2)
        super().__init__(
            origin,
            table[:, 0],
            table[:, 1],
            transform=transform,
            target_transform=target_transform,
            loader=loader,
        )


def _images_by_class(manifest: Manifest) -> dict[str, list[int]]:
    """Return object ids by class folder, each list in torchvision's order: by directory, then by name."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for object_id in range(manifest.num_objects):
        path = manifest.path(object_id)
        directory, _, name = path.rpartition("/")
        if directory and name.lower().endswith(IMAGE_EXTENSIONS):
            found.setdefault(directory.partition("/")[0], []).append((directory, name, object_id))
    return {name: [object_id for *_, object_id in sorted(images)] for name, images in found.items()}
