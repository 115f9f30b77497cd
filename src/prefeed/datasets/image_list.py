"""Images that a list names, each with its label: the layout of PaddleClas and of many data sets in object stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO

import numpy as np

from prefeed.config import Config, settings_of
from prefeed.datasets.labelled import Indices, LabelledImages
from prefeed.datasets.origin import Origin
from prefeed.errors import BadListError, EmptyListingError, ObjectNotFoundError
from prefeed.sources.library import described_age
from prefeed.sources.manifest import Manifest


class ImageList(LabelledImages):
    """Images that a list names, from any origin: a line of it is a path below the root and an integer.

    Samples are in the order of the list. A file may be in it more than once, also with other labels.

    Args:
        url_or_path: Root that the paths are relative to; the list lies below it as well. Also ``sampleset://NAME/PATH``.
        list_name: Path of the list, relative to the root: UTF-8, ``train/0001.jpg 17`` a line; empty lines are skipped.
        transform: Applied to the image.
        target_transform: Applied to the label.
        loader: Given a binary file, returns the image; default: Pillow, converted to RGB, as torchvision does.
        delimiter: What is between path and label; default: white space, the last of the line.
        config: Settings; defaults to those in force in the process.
        listing_age: Seconds; a listing of the root that is no older will do. ``float("inf")``: the first one for ever.
            Default: as the settings say, which is to list now.

    Raises:
        SampleSetNotFoundError: There is no such sample set.
        SourceError: The origin cannot be listed, the list is not there or empty, or names a file that is not there.
        BadListError: A line is not a path and an integer; it is in the message.

    **Threads and processes**: may be used in many threads, before and after a fork, and pickled to a spawned worker.
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
        paths, targets = _parse(_read(origin, list_name), where, delimiter)
        ids = _ids_of(paths, origin.manifest)
        _check_all_found(ids, paths, where, origin.listing_age_seconds)
        super().__init__(
            origin, ids, targets, transform=transform, target_transform=target_transform, loader=loader
        )  # fmt: skip
        self.list_name = list_name


def _read(origin: Origin, list_name: str) -> bytes:
    object_id = origin.manifest.index_of(list_name)
    if object_id is None:
        raise ObjectNotFoundError(
            f"there is no {list_name} below {origin.url}, which lists {origin.manifest.num_objects} objects; "
            "name the list relative to the root, a path and an integer a line, "
            "or use ImageFolder for images in one folder a class",
            url=origin.url,
        )
    return origin.read(object_id)


def _parse(text: bytes, where: str, delimiter: str | None) -> tuple[list[bytes], Indices]:
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
                f"{where}, line {number}: {line.decode(errors='replace')[:200]!r} is no path and integer "
                f"with {'white space' if delimiter is None else repr(delimiter)} between; wanted: train/0001.jpg 17",
                line=number,
            ) from None
        paths.append(path.strip().removeprefix(b"./"))
    if not paths:
        raise EmptyListingError(f"{where} names no image; wanted a path and an integer a line: train/0001.jpg 17")
    return paths, np.array(targets, dtype=np.int64)


def _ids_of(paths: Sequence[bytes], manifest: Manifest) -> Indices:
    """Return the object of each path, -1 where there is none: one walk through both in the order of the manifest."""
    ids = np.full(len(paths), -1, dtype=np.int64)
    at = 0
    for number in sorted(range(len(paths)), key=paths.__getitem__):
        while at < manifest.num_objects and manifest.path_bytes(at) < paths[number]:
            at += 1
        if at < manifest.num_objects and manifest.path_bytes(at) == paths[number]:
            ids[number] = at
    return ids


def _check_all_found(ids: Indices, paths: Sequence[bytes], where: str, age_seconds: float) -> None:
    missing = np.flatnonzero(ids < 0)
    if len(missing):
        first = os.fsdecode(paths[missing[0]])
        raise ObjectNotFoundError(
            f"{where} names {len(missing)} of {len(paths)} images that are not there, the first of them {first!r}; "
            f"paths are relative to the root, which was listed {described_age(age_seconds)} ago",
            missing=first,
        )
