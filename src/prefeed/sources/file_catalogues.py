"""The catalogues of one node: files that datasets open by path, as they list them or as their samples open them."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from prefeed.errors import PrefeedError
from prefeed.sources.catalogue import CatalogueWriter, paths_digest
from prefeed.sources.posix import stat_paths
from prefeed.system.removing import remove_tree

_DIRECTORY: Final = "catalogues"
_NAME: Final = re.compile(r"(files|learned)-[0-9a-f]{8,64}")
_OURS: Final = re.compile(rf"(\.(building|replaced)-)?{_NAME.pattern}(-[0-9a-f]{{8,24}})?")
_UNUSED_SECONDS: Final = 30 * 24 * 3600
_SAMPLED: Final = 256
"""Files that are asked for their size when a catalogue is new: their mean stands for all until they are read."""


def name_of_list(paths: Sequence[str]) -> str:
    """Return the name of the catalogue that begins with these files, in this order."""
    return f"files-{paths_digest(paths)}"


def name_of_learned(fingerprint: str) -> str:
    """Return the name of the catalogue of a dataset whose files are learned."""
    return f"learned-{fingerprint}"


def directory_of(own: Path, name: str, mark: str = "") -> Path:
    """Return where a catalogue lies, in the directory that is its server's own; ``mark`` is that of the view of its paths.

    Raises:
        PrefeedError: That is no name of a catalogue.
    """
    if _NAME.fullmatch(name) is None:
        raise PrefeedError(f"{name[:60]!r} is not the name of a catalogue")
    return own / _DIRECTORY / (f"{name}-{mark}" if mark else name)


def is_catalogue(own: Path, directory: Path) -> bool:
    """Return True when the directory is that of one of the server's catalogues, not of a manifest."""
    return directory.parent == own / _DIRECTORY


def open_catalogue(directory: Path, paths: Sequence[str] | None) -> tuple[CatalogueWriter, int | None]:
    """Return a catalogue for writing, and about how many bytes one of its files has; None when nothing tells.

    Args:
        directory: Of the catalogue.
        paths: Files that it begins with; none for one that is learned, None for one that is there already.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    catalogue = CatalogueWriter.open_or_create(directory, paths)
    os.utime(directory)  # in use: see ``remove_unused``
    catalogue.index_of("")  # the first look-up takes 0.2 s a million paths: here, not in the server's loop
    if not paths or any(catalogue.known_key(0)):
        return catalogue, None
    sizes, _ = stat_paths(paths[:: max(1, len(paths) // _SAMPLED)], batch=8)
    sizes = sizes[sizes >= 0]
    return catalogue, int(np.mean(sizes)) if len(sizes) else None


def _files_of(directory: str) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.path for entry in entries]


def remove_unused(own: Path) -> None:
    """Remove the catalogues that nobody has opened or written to for 30 days: a million files take some 120 MB."""
    with contextlib.suppress(OSError), os.scandir(own / _DIRECTORY) as entries:
        for entry in list(entries):
            if _OURS.fullmatch(entry.name) is None or not entry.is_dir(follow_symlinks=False):
                continue  # a home may be a directory in which its user has things of his own
            used = max(os.stat(path).st_mtime for path in (entry.path, *_files_of(entry.path)))
            if time.time() - used > _UNUSED_SECONDS:
                remove_tree(entry.path, ignore_errors=True)
                with contextlib.suppress(OSError):
                    (own / _DIRECTORY).rmdir()  # if that was all
