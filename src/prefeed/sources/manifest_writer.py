"""Making manifests: from a source's listing, from a list of files, or from arrays."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from prefeed.errors import EmptyListingError, StoreFormatError
from prefeed.machine import is_on_own_disk
from prefeed.sources.known_directories import Stamps, Times, note_directories
from prefeed.sources.manifest import (
    CURRENT,
    ENCODING,
    HEADER,
    KEYS,
    UNKNOWN_SIZE,
    Header,
    Manifest,
    current_generation,
    entry_key,
    version_hash,
)
from prefeed.sources.posix import PosixSource, stamp_of, stat_files
from prefeed.sources.protocol import Source
from prefeed.types import ENTRY_KEY_BYTES, Buffer, ListingProgress, ObjectInfo

_TEMPORARY: Final = ".building-"
_GENERATION: Final = re.compile(rf"[0-9a-f]{{32}}|{re.escape(_TEMPORARY)}.+")
"""What nothing but this module can have made."""

_ABANDONED_SECONDS: Final = 24 * 3600
_REPLACED_SECONDS: Final = 600
SHARED_SECONDS: Final = 24 * 3600
"""How long a listing stays that nodes may share."""


def build_manifest(
    source: Source,
    directory: str | os.PathLike[str],
    *,
    progress: ListingProgress | None = None,
    began_at: float | None = None,
) -> Manifest:
    """List the source and return its manifest, sorted by path, now the one in force in ``directory``.

    Until it is complete, whatever was in force there stays; two builders at once both succeed. Of a path
    that is listed twice the last line counts.

    Args:
        source: What is listed.
        directory: Of the URL's manifests.
        progress: Called while the listing goes on.
        began_at: When it begins, in seconds since 1970; None: the next one is not to be spared anything.

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
    ordered = columns.sorted()
    manifest = ordered.write(directory)
    if isinstance(source, PosixSource) and source.is_listed_wholly and began_at is not None:
        note_directories(manifest, source.listed_directories, ordered.stamps(), began_at=began_at)
    return manifest


def with_files_of_now(manifest: Manifest, changed: Times, *, in_force: bool) -> tuple[Manifest, Stamps]:
    """Return the manifest with the same paths in which some files are as they are now, and their stamps, shape (2, num_changed).

    All others, and what is no file now, keep their keys.

    Args:
        manifest: Of a directory.
        changed: Which files are asked, shape (num_changed,).
        in_force: Bring it into force in its directory.
    """
    sizes, versions = manifest.sizes.copy(), manifest.version_hashes.copy()
    keys = np.frombuffer(manifest.keys, np.uint8).reshape(-1, ENTRY_KEY_BYTES).copy()  # keys: (num_objects, 16)
    stamps = np.zeros((2, len(changed)), np.int64)
    root = manifest.url.rstrip("/")
    paths = [manifest.path(index) for index in changed.tolist()]
    found = zip(changed.tolist(), paths, *stat_files([f"{root}/{path}" for path in paths]), strict=True)
    for at, (index, path, size, version) in enumerate(found):
        if not version:
            continue
        stamps[:, at] = stamp_of(version)
        sizes[index], versions[index] = size, version_hash(version)
        keys[index] = np.frombuffer(entry_key(manifest.url, path, version, size), np.uint8)
    if np.array_equal(versions, manifest.version_hashes):
        return manifest, stamps
    contents = manifest.contents()
    renewed = write_manifest(
        manifest.directory.parent,
        manifest.url,
        path_blob=contents["paths"],
        offsets=np.frombuffer(contents["offsets"], np.uint64),
        sizes=sizes,
        version_hashes=versions,
        keys=keys,
        in_force=in_force,
    )
    return renewed, stamps


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
        self._times = array("q")
        self._inodes = array("q")
        self._has_stamps = url.startswith("/")

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
            if self._has_stamps:
                changed_ns, inode = stamp_of(info.version)
                self._times.append(changed_ns)
                self._inodes.append(inode)

    def stamps(self) -> Stamps:
        """Return when each file of a directory last changed, in nanoseconds, and its inode, shape (2, num_objects)."""
        return np.stack([np.frombuffer(column, np.int64) for column in (self._times, self._inodes)])

    def sorted(self) -> Columns:
        """Return the listing in order of its paths, each once; itself if it is so already."""
        paths = split_paths(self._blob, np.frombuffer(self._offsets, np.uint64))
        if all(map(bytes.__lt__, paths, paths[1:])):
            return self
        order = sorted(range(len(paths)), key=paths.__getitem__)
        kept = [i for i, following in pairwise(order) if paths[i] != paths[following]]
        return self._taken(np.array([*kept, order[-1]], np.int64), paths)

    def _taken(self, order: NDArray[np.int64], paths: list[bytes]) -> Columns:
        taken = Columns(self.url, mark=self._mark)
        chosen = [paths[i] for i in order]
        taken._blob = bytearray(b"".join(chosen))
        taken._offsets = array(
            "Q", np.concatenate(([0], np.cumsum([len(path) for path in chosen]))).astype("u8").tobytes()
        )
        taken._sizes = array("Q", np.frombuffer(self._sizes, np.uint64)[order].tobytes())
        taken._versions = array("Q", np.frombuffer(self._versions, np.uint64)[order].tobytes())
        keys = np.frombuffer(self._keys, np.uint8).reshape(-1, ENTRY_KEY_BYTES)  # keys: (num_objects, 16)
        taken._keys = bytearray(keys[order].tobytes())
        if self._has_stamps:
            taken._times, taken._inodes = (array("q", column[order].tobytes()) for column in self.stamps())
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
    in_force: bool = True,
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
        in_force: False: leave the one in force that is.

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
        KEYS: keys,
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
    generation = _write_generation(Path(directory), msgspec.json.encode(header), files)
    manifest = Manifest.open(generation)
    if in_force:
        before = _replace_current(Path(directory), generation.name)
        remove_replaced(Path(directory), keep={generation.name, before})
    return manifest


def _write_generation(directory: Path, header: bytes, files: dict[str, Buffer]) -> Path:
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
    return generation


def is_in_use(generation: Path) -> bool:
    """Return whether some process has this generation open and locked, here or, as far as locks reach, on another node.

    Where that cannot be told it is in use.
    """
    with _unused(generation) as unused:
        return not unused


def _remove_unused(generation: Path) -> None:
    with _unused(generation) as unused:
        if unused:
            shutil.rmtree(generation, ignore_errors=True)


@contextmanager
def _unused(generation: Path) -> Iterator[bool]:
    """Yield whether nobody has a generation open; then nobody opens it for the time of the block."""
    try:
        descriptor = os.open(generation / KEYS, os.O_RDWR | os.O_CLOEXEC)  # NFS wants it open for writing
    except OSError as err:
        yield isinstance(err, FileNotFoundError)
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def adopt_generation(manifest: Manifest, directory: Path) -> Path:
    """Write an open generation into a directory of its URL, without bringing it into force there; return where it is."""
    directory.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
    try:
        for name, content in manifest.contents().items():
            (temporary / name).write_bytes(content)
        _adopt(temporary, directory / manifest.uid)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return directory / manifest.uid


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


def remove_replaced(
    directory: Path, *, keep: Collection[str] = (), at_least_seconds: float = _REPLACED_SECONDS
) -> None:
    """Remove generations that nobody has open or is about to open, and what builders that died left a day ago.

    Who has a generation open has locked it. Where nodes may share the file system, locks may not reach the others: there
    it stays until no server has said for a day that it uses it: they say so every five minutes.

    Args:
        directory: Of a URL's manifests.
        keep: Generations that stay besides the one in force.
        at_least_seconds: How long each stays after it was used, wherever it is.
    """
    with contextlib.suppress(StoreFormatError):
        current = current_generation(directory)
        keep = {*keep, current.name if current is not None else ""}
    replaced_seconds = at_least_seconds if is_on_own_disk(directory) else max(at_least_seconds, SHARED_SECONDS)
    with os.scandir(directory) as entries:
        for entry in list(entries):
            is_ours = _GENERATION.fullmatch(entry.name) is not None and entry.is_dir(follow_symlinks=False)
            if entry.name in keep or not is_ours:
                continue
            limit = _ABANDONED_SECONDS if entry.name.startswith(_TEMPORARY) else replaced_seconds
            if _age_seconds(entry) > limit:
                _remove_unused(Path(entry.path))


def _age_seconds(entry: os.DirEntry[str]) -> float:
    try:
        return time.time() - entry.stat().st_mtime
    except FileNotFoundError:
        return 0.0
