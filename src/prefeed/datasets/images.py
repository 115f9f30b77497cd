"""Labelled images: in one folder per class, or named by a list file (the layout of PaddleClas)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, settings_of
from prefeed.datasets.origin import ObjectFile, Origin, OriginDataset, name_object, sample_index
from prefeed.errors import BadListError, EmptyListingError, ObjectNotFoundError
from prefeed.sources.library import described_age
from prefeed.sources.listing import ENCODING
from prefeed.sources.manifest import Manifest

Indices = npt.NDArray[np.int64]


class LabelledImages(OriginDataset):
    """Map-style dataset of images with integer labels.

    Args:
        origin: Root of the images.
        ids: Object of each sample, shape (num_samples,).
        targets: Label of each sample, shape (num_samples,).
        transform: Applied to the image.
        target_transform: Applied to the label.
        loader: Function that decodes a binary file with a ``name``; None for Pillow with conversion to RGB, as in torchvision.
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
        self.root: str = origin.url
        self._origin = origin
        self._ids, self._targets = np.ascontiguousarray(ids), np.ascontiguousarray(targets)

    @property
    def targets(self) -> list[int]:
        """Label of each sample."""
        return [int(target) for target in self._targets]

    @property
    def samples(self) -> list[tuple[str, int]]:
        """(full path or URL, label) of each sample."""
        pairs = zip(self._ids.tolist(), self._targets.tolist(), strict=True)
        return [(self._origin.location(object_id), target) for object_id, target in pairs]

    imgs = samples

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        index = sample_index(index, len(self))
        object_id, target = int(self._ids[index]), int(self._targets[index])
        data, name = self._origin.read(object_id), self._origin.location(object_id)
        try:
            image = self.loader(ObjectFile(data, name))
            if self.transform is not None:
                image = self.transform(image)
            return image, target if self.target_transform is None else self.target_transform(target)
        except Exception as err:
            name_object(err, name)
            raise

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the object of each sample."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_stage(self) -> dict[str, Any]:
        """Return the inputs of a sample's computation, for stage caches."""
        return {
            "root": self.root,
            "loader": self.loader,
            "transform": self.transform,
            "target_transform": self.target_transform,
        }

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's image, and its entry key and label."""
        object_id = int(self._ids[index])
        manifest = self._origin.settle()
        return manifest.path(object_id), manifest.key(object_id) + b"%d" % self._targets[index]


def load_rgb_image(file: BinaryIO) -> Any:
    """Return the image as Pillow's RGB, as torchvision's default loader does."""
    # Pillow is a dependency of torchvision and not of prefeed.
    try:
        from PIL import Image  # noqa: PLC0415
    except ModuleNotFoundError as err:
        raise ModuleNotFoundError(
            "images are decoded with Pillow: pip install pillow, or set loader", name="PIL"
        ) from err

    with Image.open(file) as image:
        return image.convert("RGB")


IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Extensions of images in ``ImageFolder``, as in torchvision."""


class ImageFolder(LabelledImages):
    """Images of any origin in one folder per class, like torchvision's ``ImageFolder``.

    Samples and their order, ``classes``, ``class_to_idx``, ``samples`` and ``targets`` are those of torchvision.

    Args:
        url_or_path: Root of ``<root>/<class>/.../<image>``. Also ``sampleset://NAME/PATH``.
        transform: Applied to the image.
        target_transform: Applied to the class index.
        loader: Function that decodes a binary file with a ``name``. Default: Pillow with conversion to RGB, as in torchvision.
        config: Settings; defaults to those in force in the process.
        listing_age: Maximum age of an existing listing of the root, in seconds. ``float("inf")`` reuses the first listing forever.
            Defaults to the setting, whose default lists now.

    Raises:
        SourceError: The origin cannot be listed, or has no class folder with an image.
    """

    classes: list[str]

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
        self.classes, ids, targets = _group_by_class(origin.manifest)
        if not self.classes:
            paths = [origin.manifest.path(index) for index in range(len(origin.manifest))]
            num_images = sum("/" not in path and path.lower().endswith(IMAGE_EXTENSIONS) for path in paths)
            found = f"found {num_images} images in no folder, and {len(paths) - num_images} other objects"
            if num_images:
                found += f"; if its images are one class, give the directory above it, {origin.url.rpartition('/')[0]}"
            raise EmptyListingError(
                f"no class folder with an image below {origin.url}; wanted <class>/<name> with one of the endings "
                f"{', '.join(IMAGE_EXTENSIONS)}, {found}"
            )
        self.class_to_idx: dict[str, int] = {name: index for index, name in enumerate(self.classes)}
        super().__init__(
            origin,
            ids,
            targets,
            transform=transform,
            target_transform=target_transform,
            loader=loader,
        )


def _group_by_class(manifest: Manifest) -> tuple[list[str], Indices, Indices]:
    """Return the classes, and the object and the class of each image, in torchvision's order: by class, directory and name.

    The manifest is sorted by path, so that files of a directory can be interleaved with those of its subdirectories.
    """
    paths = manifest.all_paths()
    images = np.flatnonzero(_find_images(manifest))
    runs: list[tuple[bytes, int, int]] = []  # directory, first image, last image + 1
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
    return classes, _sort_as_text(ids, targets, paths), targets


def _class_and_directory(directory: bytes) -> tuple[str, str]:
    text = directory[:-1].decode(*ENCODING)
    return text.partition("/")[0], text


def _find_images(manifest: Manifest) -> npt.NDArray[np.bool_]:
    """Return a mask of the objects in class folders with an image extension, shape (num_objects,)."""
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
    numbers = ends_of_names.view(">u8").astype(np.uint64)[:, 0]  # Compare eight letters at once.
    found = np.zeros(len(starts), dtype=bool)
    for extension in IMAGE_EXTENSIONS:
        letters = np.uint64(2 ** (8 * len(extension)) - 1)
        found |= (numbers & letters) == np.uint64(int.from_bytes(extension.encode(), "big"))
    result: npt.NDArray[np.bool_] = (
        found & in_folder
    )  # a path with a folder is longer than an ending that it seems to have
    return result


def _sort_as_text(ids: Indices, targets: Indices, paths: list[bytes]) -> Indices:
    """Sort ids by name as text, which differs from the order of bytes only for names that are not UTF-8."""
    try:
        b"".join(paths).decode()
    except UnicodeDecodeError:
        keys = [path.decode(*ENCODING).rpartition("/") for path in paths]
        order = sorted(range(len(ids)), key=lambda at: (targets[at], keys[ids[at]][0], keys[ids[at]][2]))
        return ids[np.array(order, np.int64)]
    return ids


class ImageList(LabelledImages):
    """Images of any origin named by a list file, whose lines contain a path below the root and an integer.

    Samples are in the order of the list. A file can be listed several times, also with different labels.

    Args:
        url_or_path: Root of the paths and of the list. Also ``sampleset://NAME/PATH``.
        list_name: Path of the list relative to the root. Lines are UTF-8, such as ``train/0001.jpg 17``; empty ones are skipped.
        transform: Applied to the image.
        target_transform: Applied to the label.
        loader: Function that decodes a binary file with a ``name``. Default: Pillow with conversion to RGB, as in torchvision.
        delimiter: Separator of path and label. Default: the last white space of the line.
        config: Settings; defaults to those in force in the process.
        listing_age: Maximum age of an existing listing of the root, in seconds. ``float("inf")`` reuses the first listing forever.
            Defaults to the setting, whose default lists now.

    Raises:
        SampleSetNotFoundError: No such sample set exists.
        SourceError: The origin cannot be listed, the list does not exist or is empty, or names a file that does not exist.
        BadListError: A line is not a path and an integer. The message contains the line.

    **Threads and processes**: can be used in many threads, before and after a fork, and pickled to a spawned worker.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        list_name: str = "train_list.txt",
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        loader: Callable[[BinaryIO], Any] | None = None,
        *,
        delimiter: str | None = None,
        config: Config | None = None,
        listing_age: float | None = None,
    ) -> None:
        origin = Origin(url_or_path, settings_of(config), listing_age=listing_age)
        where = f"{origin.url.rstrip('/')}/{list_name}"
        paths, targets = _parse_list(_read_list(origin, list_name), where, delimiter)
        ids = _find_ids(paths, origin.manifest)
        _require_all_found(ids, paths, where, origin.listing_age_seconds)
        super().__init__(
            origin, ids, targets, transform=transform, target_transform=target_transform, loader=loader
        )  # fmt: skip
        self.list_name = list_name


def _read_list(origin: Origin, list_name: str) -> bytes:
    object_id = origin.manifest.index_of(list_name)
    if object_id is None:
        raise ObjectNotFoundError(
            f"there is no {list_name} below {origin.url}, which lists {origin.manifest.num_objects} objects; "
            "name the list relative to the root, a path and an integer per line, "
            "or use ImageFolder for images in one folder per class",
            url=origin.url,
        )
    return origin.read(object_id)


def _parse_list(text: bytes, where: str, delimiter: str | None) -> tuple[list[bytes], Indices]:
    """Return the paths and the labels of a list."""
    paths: list[bytes] = []
    targets: list[int] = []
    between = delimiter.encode() if delimiter is not None else None
    for number, line in enumerate(text.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        if not line.strip():
            continue
        try:
            path, label = line.rsplit(between, 1)
            targets.append(int(label))
        except ValueError:
            raise BadListError(
                f"{where}, line {number}: {line.decode(errors='replace')[:200]!r} is not a path and "
                f"an integer with {'white space' if delimiter is None else repr(delimiter)} between; wanted: train/0001.jpg 17",
                line=number,
            ) from None
        paths.append(path.strip().removeprefix(b"./"))
    if not paths:
        raise EmptyListingError(f"{where} names no image; wanted a path and an integer per line: train/0001.jpg 17")
    return paths, np.array(targets, dtype=np.int64)


def _find_ids(paths: Sequence[bytes], manifest: Manifest) -> Indices:
    """Return the object of each path, or -1, by a merge of the sorted paths with the manifest."""
    ids = np.full(len(paths), -1, dtype=np.int64)
    at = 0
    for number in sorted(range(len(paths)), key=paths.__getitem__):
        while at < manifest.num_objects and manifest.path_bytes(at) < paths[number]:
            at += 1
        if at < manifest.num_objects and manifest.path_bytes(at) == paths[number]:
            ids[number] = at
    return ids


def _require_all_found(ids: Indices, paths: Sequence[bytes], where: str, age_seconds: float) -> None:
    missing = np.flatnonzero(ids < 0)
    if len(missing):
        first = os.fsdecode(paths[missing[0]])
        raise ObjectNotFoundError(
            f"{where} names {len(missing)} of {len(paths)} images that do not exist, the first of them {first!r}; "
            f"paths are relative to the root, which was listed {described_age(age_seconds)} ago",
            missing=first,
        )
