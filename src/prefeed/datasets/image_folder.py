"""Images in one folder a class."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from prefeed.config import Config, settings_of
from prefeed.datasets.labelled import Indices, LabelledImages
from prefeed.datasets.origin import Origin
from prefeed.errors import EmptyListingError
from prefeed.sources.listing import ENCODING
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
        origin = Origin(url_or_path, settings_of(config), listing_age=listing_age)
        self.classes, ids, targets = _by_class(origin.manifest)
        if not self.classes:
            raise EmptyListingError(
                f"no class folder with an image below {origin.url}; wanted <class>/<name> with one of the endings "
                f"{', '.join(IMAGE_EXTENSIONS)}, found {origin.manifest.num_objects} objects without"
            )
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        super().__init__(
            origin,
            ids,
            targets,
            transform=transform,
            target_transform=target_transform,
            loader=loader,
        )


def _by_class(manifest: Manifest) -> tuple[list[str], Indices, Indices]:
    """Return classes, and object and class of each image in torchvision's order: by class, directory and name.

    Objects of one directory stand in order of their names; those of directories below it may stand between them.
    """
    paths = manifest.all_paths()
    images = np.flatnonzero(_are_images(manifest))
    runs: list[tuple[bytes, int, int]] = []  # directory, and which of the images: from, to
    directory, start = b"", 0
    for at, object_id in enumerate(images.tolist()):
        path = paths[object_id]
        if not (path.startswith(directory) and path.find(b"/", len(directory)) < 0 and directory):
            if directory:
                runs.append((directory, start, at))
            directory, start = path[: path.rfind(b"/") + 1], at
    if directory:
        runs.append((directory, start, len(images)))
    ordered = [(_class_and_directory(directory), start, end) for directory, start, end in runs]
    ordered.sort()
    classes = sorted({name for (name, _), _, _ in ordered})
    numbers = {name: index for index, name in enumerate(classes)}
    empty = np.empty(0, np.int64)
    ids = np.concatenate([empty, *(images[start:end] for _, start, end in ordered)])
    lengths = [end - start for _, start, end in ordered]
    targets = np.repeat(np.array([numbers[name] for (name, _), _, _ in ordered], np.int64), lengths)
    return classes, _by_name_as_text(ids, targets, paths), targets


def _class_and_directory(directory: bytes) -> tuple[str, str]:
    text = directory[:-1].decode(*ENCODING)
    return text.partition("/")[0], text


def _are_images(manifest: Manifest) -> npt.NDArray[np.bool_]:
    """Return which objects lie in a class folder and are called as images are, shape (num_objects,)."""
    blob = np.frombuffer(manifest.path_blob, np.uint8)
    bounds = manifest.offsets.astype(np.int64)
    starts, ends = bounds[:-1], bounds[1:]
    slashes = np.flatnonzero(blob == ord("/"))
    first = np.searchsorted(slashes, starts)
    in_folder = first < np.searchsorted(slashes, ends)
    longest = max(map(len, IMAGE_EXTENSIONS))
    tails = blob[np.maximum(ends[:, None] - np.arange(longest, 0, -1), 0)]  # tails: (num_objects, longest)
    ends_of_names = np.zeros((len(starts), 8), np.uint8)
    ends_of_names[:, 8 - longest :] = tails | ((tails >= ord("A")) & (tails <= ord("Z"))).view(np.uint8) << 5
    numbers = ends_of_names.view(">u8").astype(np.uint64)[:, 0]  # one comparison instead of one a letter
    found = np.zeros(len(starts), dtype=bool)
    for extension in IMAGE_EXTENSIONS:
        letters = np.uint64(2 ** (8 * len(extension)) - 1)
        found |= (numbers & letters) == np.uint64(int.from_bytes(extension.encode(), "big"))
    result: npt.NDArray[np.bool_] = (
        found & in_folder
    )  # a path with a folder is longer than an ending that it seems to have
    return result


def _by_name_as_text(ids: Indices, targets: Indices, paths: list[bytes]) -> Indices:
    """Return the ids in the order of their names as text: that of bytes, but for names that are not UTF-8."""
    try:
        b"".join(paths).decode()
    except UnicodeDecodeError:
        keys = [path.decode(*ENCODING).rpartition("/") for path in paths]
        order = sorted(range(len(ids)), key=lambda at: (targets[at], keys[ids[at]][0], keys[ids[at]][2]))
        return ids[np.array(order, np.int64)]
    return ids
