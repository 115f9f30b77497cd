"""Making manifests: from a source's listing, from a list of files, or from arrays."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from prefeed.errors import EmptyListingError, StoreFormatError
from prefeed.sources.manifest import (
    CURRENT,
    ENCODING,
    HEADER,
    UNKNOWN_SIZE,
    Header,
    Manifest,
    current_generation,
    entry_key,
    version_hash,
)
from prefeed.sources.protocol import Source
from prefeed.types import ENTRY_KEY_BYTES, Buffer, ListingProgress, ObjectInfo

_TEMPORARY: Final = ".building-"
_ABANDONED_SECONDS: Final = 24 * 3600
_REPLACED_SECONDS: Final = 600


def build_manifest(
    source: Source, directory: str | os.PathLike[str], *, progress: ListingProgress | None = None
) -> Manifest:
    """List the source and return its manifest, sorted by path, now the one in force in ``directory``.

    Until it is complete, whatever was in force there stays; two builders at once both succeed. Of a path
    that is listed twice the last line counts.

    Raises:
        EmptyListingError: The source lists nothing.
        SourceError: The listing failed; see ``Source.list_objects``.
    """
    columns = Columns(source.url, mark=source.mark)
    listed_bytes = 0
    for batch in source.list_objects():
        columns.extend(batch)
        if progress is not None:
            listed_bytes += sum(max(0, info.size_bytes) for info in batch)
            progress(len(columns), listed_bytes)
    if not len(columns):
        raise EmptyListingError(f"{source.url} has no objects below it; check the path or prefix", url=source.url)
    return columns.sorted().write(directory)


class Columns:
    """A listing in memory, one flat array a column: about 60 bytes an object besides its path."""

    def __init__(self, url: str, *, mark: str = "") -> None:
        """Start an empty listing of ``url``; ``mark`` is the source's."""
        self.url = url
        self._mark = mark
        self._blob = bytearray()
        self._offsets = array("Q", [0])
        self._sizes = array("Q")
        self._versions = array("Q")
        self._keys = bytearray()

    def __len__(self) -> int:
        """Return the number of objects so far."""
        return len(self._sizes)

    def extend(self, infos: Iterable[ObjectInfo]) -> None:
        """Append objects."""
        for info in infos:
            self._blob += info.path.encode(*ENCODING)
            self._offsets.append(len(self._blob))
            self._sizes.append(info.size_bytes if info.size_bytes >= 0 else UNKNOWN_SIZE)
            self._versions.append(version_hash(info.version))
            self._keys += entry_key(self.url, info.path, info.version, info.size_bytes, mark=self._mark)

    def sorted(self) -> Columns:
        """Return the listing in order of its paths, each once; itself if it is so already."""
        paths = split_paths(self._blob, np.frombuffer(self._offsets, np.uint64))
        if all(map(bytes.__lt__, paths, paths[1:])):
            return self
        order = sorted(range(len(paths)), key=paths.__getitem__)
        kept = [i for i, following in pairwise(order) if paths[i] != paths[following]]
        return self._taken(np.array([*kept, order[-1]], np.int64), paths)

    def _taken(self, order: NDArray[np.int64], paths: list[bytes]) -> Columns:
        taken = Columns(self.url)
        chosen = [paths[i] for i in order]
        taken._blob = bytearray(b"".join(chosen))
        taken._offsets = array(
            "Q", np.concatenate(([0], np.cumsum([len(path) for path in chosen]))).astype("u8").tobytes()
        )
        taken._sizes = array("Q", np.frombuffer(self._sizes, np.uint64)[order].tobytes())
        taken._versions = array("Q", np.frombuffer(self._versions, np.uint64)[order].tobytes())
        keys = np.frombuffer(self._keys, np.uint8).reshape(-1, ENTRY_KEY_BYTES)  # keys: (num_objects, 16)
        taken._keys = bytearray(keys[order].tobytes())
        return taken

    def write(self, directory: str | os.PathLike[str]) -> Manifest:
        """Bring the listing into force in ``directory``."""
        return write_manifest(
            directory,
            self.url,
            path_blob=self._blob,
            offsets=np.frombuffer(self._offsets, np.uint64),
            sizes=np.frombuffer(self._sizes, np.uint64),
            version_hashes=np.frombuffer(self._versions, np.uint64),
            keys=self._keys,
        )


def split_paths(blob: Buffer, offsets: NDArray[np.uint64]) -> list[bytes]:
    """Return the paths of a blob, one ``bytes`` each."""
    view = memoryview(blob)
    ends = offsets.tolist()
    return [bytes(view[start:end]) for start, end in pairwise(ends)]


def write_manifest(
    directory: str | os.PathLike[str],
    url: str,
    *,
    path_blob: Buffer,
    offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    version_hashes: NDArray[np.uint64],
    keys: Buffer | NDArray[np.uint8],
) -> Manifest:
    """Write arrays as a manifest, bring it into force in ``directory`` and return it.

    Written beside, renamed, then named by ``current``: at every instant the directory holds the old
    manifest or the new one, whole. The manifest before it is kept for those who are about to open it.

    Args:
        directory: Made if absent.
        url: Canonical URL of the root.
        path_blob: All paths, one after the other; they ascend strictly, byte by byte.
        offsets: Where each begins, and the end, shape (num_objects + 1,).
        sizes: Shape (num_objects,); ``UNKNOWN_SIZE`` where not known.
        version_hashes: Shape (num_objects,); 0 where not known.
        keys: 16 bytes an object.

    Raises:
        ValueError: The shapes do not fit each other, or there are no objects.
    """
    count = len(sizes)
    if not (count and len(offsets) == count + 1 and len(version_hashes) == count):
        raise ValueError(f"{count} sizes, {len(offsets)} offsets and {len(version_hashes)} versions are no manifest")
    keys = keys.data if isinstance(keys, np.ndarray) else memoryview(keys)
    if keys.nbytes != count * ENTRY_KEY_BYTES or memoryview(path_blob).nbytes != int(offsets[-1]):
        raise ValueError(f"{keys.nbytes} bytes of keys, {memoryview(path_blob).nbytes} of paths for {count}")
    files: dict[str, Buffer] = {
        "sizes": np.ascontiguousarray(sizes, np.uint64).data,
        "versions": np.ascontiguousarray(version_hashes, np.uint64).data,
        "keys": keys,
        "offsets": np.ascontiguousarray(offsets, np.uint64).data,
        "paths": path_blob,
    }
    known = sizes[sizes != np.uint64(UNKNOWN_SIZE)]
    header = Header(
        url=url,
        num_objects=count,
        total_bytes=int(known.sum()),
        num_unknown_sizes=count - len(known),
        path_bytes=int(offsets[-1]),
    )
    return _bring_into_force(Path(directory), msgspec.json.encode(header), files)


def _bring_into_force(directory: Path, header: bytes, files: dict[str, Buffer]) -> Manifest:
    directory.mkdir(parents=True, exist_ok=True)
    digest = xxh3_128(header)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
    try:
        for name, content in files.items():
            digest.update(memoryview(content).cast("B"))
            (temporary / name).write_bytes(content)
        (temporary / HEADER).write_bytes(header)
        generation = directory / digest.hexdigest()
        _adopt(temporary, generation)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    manifest = Manifest.open(generation)
    before = _replace_current(directory, generation.name)
    _remove_others(directory, keep={generation.name, before})
    return manifest


def _adopt(temporary: Path, generation: Path) -> None:
    """Give the finished directory its name; a whole one of that name has the same content and stays."""
    try:
        temporary.rename(generation)
        return
    except OSError:
        if not generation.is_dir():
            raise
    try:
        Manifest.open(generation)
        os.utime(generation)  # In use again: as young as a new one.
    except StoreFormatError:
        damaged = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=generation.parent))
        generation.rename(damaged)
        temporary.rename(generation)
        shutil.rmtree(damaged, ignore_errors=True)


def _replace_current(directory: Path, name: str) -> str:
    """Name the generation in force; return the name of the one before, or ``""``."""
    try:
        before = current_generation(directory)
    except StoreFormatError:
        before = None
    descriptor, temporary = tempfile.mkstemp(prefix=_TEMPORARY, dir=directory)
    with os.fdopen(descriptor, "w") as file:
        file.write(name)
    os.replace(temporary, directory / CURRENT)
    return before.name if before is not None else ""


def _remove_others(directory: Path, *, keep: set[str]) -> None:
    """Remove generations that nobody is about to open any more, and what builders that died left a day ago."""
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.name in keep or not entry.is_dir(follow_symlinks=False):
                continue
            limit = _ABANDONED_SECONDS if entry.name.startswith(_TEMPORARY) else _REPLACED_SECONDS
            if _age_seconds(entry) > limit:
                shutil.rmtree(entry.path, ignore_errors=True)


def _age_seconds(entry: os.DirEntry[str]) -> float:
    try:
        return time.time() - entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0
