"""Manifests of files that a dataset lists itself, such as torchvision's ``ImageFolder``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from xxhash import xxh3_64

from prefeed.errors import EmptyListingError
from prefeed.sources.manifest import ENCODING, Manifest
from prefeed.sources.manifest_writer import build_manifest_from_paths
from prefeed.sources.posix import stat_paths
from prefeed.types import ListingProgress

ROOT: Final = "/"
_BATCH: Final = 16384


def open_path_list(home: Path, paths: Sequence[str], *, progress: ListingProgress | None = None) -> Manifest:
    """Return the manifest of these absolute paths, in this order, as the files are now.

    The files are asked for size and time anew each time, many at once: the list is the dataset's own, so nobody
    could know that it has to be refreshed. An unchanged list has the manifest it had.

    Raises:
        EmptyListingError: The list is empty.
    """
    if not paths:
        raise EmptyListingError("the dataset lists no files")
    digest = xxh3_64()
    sizes: list[int] = []
    versions: list[str] = []
    for start in range(0, len(paths), _BATCH):
        batch = paths[start : start + _BATCH]
        digest.update("\0".join([*batch, ""]).encode(*ENCODING))
        batch_sizes, batch_versions = stat_paths(batch)
        sizes += batch_sizes.tolist()
        versions += batch_versions
        if progress is not None:
            progress(len(sizes), sum(size for size in sizes[start:] if size > 0))
    directory = home / "manifests" / f"list-{digest.hexdigest()}"
    return build_manifest_from_paths(ROOT, paths, (sizes, versions), directory)
