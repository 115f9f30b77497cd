"""Making manifests: from a source's listing, from a list of files, or from arrays."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import tempfile
import time
from array import array
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from prefeed.errors import EmptyListingError, StoreFormatError
from prefeed.sources.file_versions import FileTable
from prefeed.sources.known_directories import copy_directories, note_directories, stamps_of
from prefeed.sources.listing import ENCODING, UNKNOWN_SIZE, LeftOut, split_paths
from prefeed.sources.manifest import (
    COLUMNS,
    CURRENT,
    Header,
    Manifest,
    current_generation,
    encoded,
    entry_key,
    entry_keys,
    version_hash,
    version_hashes,
)
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.system.files import atomic_write, make_private, open_in_private, sync
from prefeed.system.machine import is_on_own_disk
from prefeed.system.removing import remove_tree
from prefeed.types import ENTRY_KEY_BYTES, Buffer, ListingProgress, ObjectInfo

_TEMPORARY: Final = ".building-"
_GENERATION: Final = re.compile(rf"[0-9a-f]{{32}}|{re.escape(_TEMPORARY)}.+")
"""What nothing but this module can have made."""

_GONE: Final = "gone"
"""Version of a file that was there when names were listed, and not when it was asked."""

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
        progress: Called during the listing.
        began_at: When it begins, in seconds since 1970; None: the next one is not to be spared anything.

    Raises:
        EmptyListingError: The source lists nothing.
        SourceError: The listing failed; see ``Source.list_objects``.
    """
    if isinstance(source, PosixSource):
        return _build_of_files(source, Path(directory), progress=progress, began_at=began_at)
    columns = Columns(source.url, mark=source.mark)
    columns.left_out = getattr(source, "left_out", columns.left_out)
    listed_bytes = 0
    for batch in source.list_objects():
        columns.extend(batch)
        if progress is not None:
            listed_bytes += sum(max(0, info.size_bytes) for info in batch)
            progress(len(columns), listed_bytes)
    _require_some(len(columns), source)
    return columns.sorted().write(directory, began_at=began_at)


def _build_of_files(
    source: PosixSource, directory: Path, *, progress: ListingProgress | None, began_at: float | None
) -> Manifest:
    names = source.list_names(progress=progress)
    paths = split_paths(names.blob, names.offsets)
    table = source.ask(paths, progress=progress, left_out=names.left_out)
    blob, offsets, are_files = names.blob, names.offsets, table.sizes >= 0
    if not are_files.all():
        paths, table = list(itertools.compress(paths, are_files.tolist())), table.take(are_files)
        lengths = np.diff(names.offsets.astype(np.int64))[are_files]
        blob, offsets = b"".join(paths), np.concatenate(([0], np.cumsum(lengths))).astype(np.uint64)
    _require_some(len(paths), source)
    versions = table.versions()
    generation = write_generation(
        directory,
        source.url,
        path_blob=blob,
        offsets=offsets,
        sizes=table.sizes.view(np.uint64),
        version_hashes=version_hashes(versions),
        keys=entry_keys(source.url, paths, versions),
        stamps=stamps_of(table),
        left_out=names.left_out,
    )
    if names.is_whole and are_files.all() and source.is_own_view and began_at is not None:
        note_directories(generation, names.directories, began_at=began_at)
    return bring_into_force(generation, began_at=began_at)


def write_names(source: PosixSource, directory: Path, *, progress: ListingProgress | None, began_at: float) -> Manifest:
    """List the names of a source's files and return a manifest of them that is not settled; it is not brought into force.

    Raises:
        EmptyListingError: There are none.
        SourceError: The listing failed.
    """
    names = source.list_names(progress=progress)
    count = len(names)
    _require_some(count, source)
    manifest = write_generation(
        directory,
        source.url,
        path_blob=names.blob,
        offsets=names.offsets,
        sizes=np.full(count, UNKNOWN_SIZE, np.uint64),
        version_hashes=np.zeros(count, np.uint64),
        keys=np.zeros(count * ENTRY_KEY_BYTES, np.uint8),
        is_settled=False,
        left_out=names.left_out,
    )
    if names.is_whole and source.is_own_view:
        note_directories(manifest, names.directories, began_at=began_at)
    return manifest


def _require_some(count: int, source: Source) -> None:
    if not count:
        raise EmptyListingError(f"{source.url} has no objects below it; check the path or prefix", url=source.url)


def with_files_of_now(manifest: Manifest, table: FileTable) -> Manifest:
    """Return the manifest with the same paths in which each file is what it is now; it is not brought into force.

    What is no file now stays as it was listed. Where nothing was known of it either it has a version that no file has, so that
    nothing is ever kept of it.

    Args:
        manifest: Of a directory.
        table: What its files are now, in its order.
    """
    stamps, known = stamps_of(table), manifest.stamps
    is_other = np.full(manifest.num_objects, not manifest.is_settled or known is None)
    if known is not None:
        is_other |= (table.sizes.view(np.uint64) != manifest.sizes) | (stamps != known).any(axis=0) | ~table.is_beside
    is_gone = table.sizes < 0
    changed = np.flatnonzero(is_other & ~is_gone)
    sizes, versions = manifest.sizes.copy(), manifest.version_hashes.copy()
    keys = np.frombuffer(manifest.keys, np.uint8).reshape(-1, ENTRY_KEY_BYTES).copy()  # keys: (num_objects, 16)
    told = table.take(changed).versions()
    sizes[changed], versions[changed] = table.sizes[changed].view(np.uint64), version_hashes(told)
    paths = manifest.all_paths() if len(changed) == manifest.num_objects else []
    keys[changed] = entry_keys(manifest.url, paths or [manifest.path_bytes(i) for i in changed.tolist()], told)
    if manifest.is_settled:
        stamps = stamps if known is None else np.where(is_gone, known, stamps)
        if np.array_equal(versions, manifest.version_hashes) and known is not None:
            return manifest
    else:
        gone = np.flatnonzero(is_gone)
        versions[gone] = version_hash(_GONE)
        keys[gone] = entry_keys(
            manifest.url, [manifest.path_bytes(i) for i in gone.tolist()], [_GONE.encode()] * len(gone)
        )
    renewed = write_generation(
        manifest.directory.parent,
        manifest.url,
        path_blob=manifest.path_blob,
        offsets=manifest.offsets,
        sizes=sizes,
        version_hashes=versions,
        keys=keys,
        stamps=stamps,
        left_out=manifest.left_out,
    )
    if not is_gone.any():
        copy_directories(manifest, renewed)
    return renewed


class Columns:
    """A listing in memory, one flat array a column: about 60 bytes an object besides its path."""

    def __init__(self, url: str, *, mark: str = "") -> None:
        """Start an empty listing of ``url``; ``mark`` is the source's."""
        self.url = url
        self.left_out = LeftOut()
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
        """Append objects; one without a path, whose key is that of the root and a slash, is left out."""
        for info in infos:
            if not info.path:
                self.left_out.add("/", "has the name of the root")
                continue
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
        taken = Columns(self.url, mark=self._mark)
        taken.left_out = self.left_out
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

    def write_part(self, directory: Path) -> Manifest:
        """Write the listing as one of some objects of its root; the one in force in ``directory`` stays."""
        return self._write(directory, is_part=True)

    def write(self, directory: str | os.PathLike[str], *, began_at: float | None = None) -> Manifest:
        """Bring the listing, which began then, into force in ``directory``."""
        return bring_into_force(self._write(Path(directory), is_part=False), began_at=began_at)

    def _write(self, directory: Path, *, is_part: bool) -> Manifest:
        return write_generation(
            directory,
            self.url,
            path_blob=self._blob,
            offsets=np.frombuffer(self._offsets, np.uint64),
            sizes=np.frombuffer(self._sizes, np.uint64),
            version_hashes=np.frombuffer(self._versions, np.uint64),
            keys=self._keys,
            is_part=is_part,
            left_out=self.left_out,
        )


def write_manifest(
    directory: str | os.PathLike[str],
    url: str,
    *,
    path_blob: Buffer,
    offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    version_hashes: NDArray[np.uint64],
    keys: Buffer | NDArray[np.uint8],
    began_at: float | None = None,
) -> Manifest:
    """Write arrays as a manifest, bring it into force in ``directory`` and return it.

    See ``write_generation`` and ``bring_into_force``.
    """
    generation = write_generation(
        Path(directory),
        url,
        path_blob=path_blob,
        offsets=offsets,
        sizes=sizes,
        version_hashes=version_hashes,
        keys=keys,
    )
    return bring_into_force(generation, began_at=began_at)


def write_generation(  # noqa: PLR0913 - one parameter a column
    directory: Path,
    url: str,
    *,
    path_blob: Buffer,
    offsets: NDArray[np.uint64],
    sizes: NDArray[np.uint64],
    version_hashes: NDArray[np.uint64],
    keys: Buffer | NDArray[np.uint8],
    stamps: NDArray[np.int64] | None = None,
    is_settled: bool = True,
    is_part: bool = False,
    left_out: LeftOut | None = None,
) -> Manifest:
    """Write arrays as a generation and return it; the one in force stays.

    Written beside and renamed: under its name it is whole.

    Args:
        directory: Made if absent, for this user alone.
        url: Canonical URL of the root.
        path_blob: All paths, one after the other; they ascend strictly, byte by byte.
        offsets: Where each begins, and the end, shape (num_objects + 1,).
        sizes: Shape (num_objects,); ``UNKNOWN_SIZE`` where not known.
        version_hashes: Shape (num_objects,); 0 where not known.
        keys: 16 bytes an object.
        stamps: See ``Manifest.stamps``.
        is_settled: See ``Manifest.is_settled``.
        is_part: See ``Header``.
        left_out: Entries of the root that are no objects.

    Raises:
        ValueError: The shapes do not fit each other, or there are no objects.
    """
    count = len(sizes)
    if not (count and len(offsets) == count + 1 and len(version_hashes) == count):
        raise ValueError(f"{count} sizes, {len(offsets)} offsets and {len(version_hashes)} versions are no manifest")
    keys = np.ascontiguousarray(keys).data if isinstance(keys, np.ndarray) else memoryview(keys)
    if keys.nbytes != count * ENTRY_KEY_BYTES or memoryview(path_blob).nbytes != int(offsets[-1]):
        raise ValueError(f"{keys.nbytes} bytes of keys, {memoryview(path_blob).nbytes} of paths for {count}")
    columns: dict[str, Buffer] = {
        "sizes": np.ascontiguousarray(sizes, np.uint64).data,
        "versions": np.ascontiguousarray(version_hashes, np.uint64).data,
        "keys": keys,
        "offsets": np.ascontiguousarray(offsets, np.uint64).data,
        "paths": path_blob,
    }
    if stamps is not None:
        columns["stamps"] = np.ascontiguousarray(stamps, np.int64).data
    known = sizes[sizes != np.uint64(UNKNOWN_SIZE)]
    header = Header(
        url=url,
        num_objects=count,
        total_bytes=int(known.sum()),
        num_unknown_sizes=count - len(known),
        path_bytes=int(offsets[-1]),
        is_settled=is_settled,
        sums={},
        is_part=is_part,
        num_left_out=left_out.count if left_out is not None else 0,
        left_out=left_out.named if left_out is not None else [],
        denied=left_out.denied if left_out is not None else [],
    )
    return Manifest.open(_write(directory, *encoded(header, columns)))


def _write(directory: Path, name: str, parts: Iterable[Buffer]) -> Path:
    """Write the file of a generation and give the generation its name; a whole one of that name stays."""
    make_private(directory)
    temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=directory))
    try:
        with open_in_private(temporary / COLUMNS) as file:
            file.writelines(parts)
        _adopt(temporary, directory / name)
    finally:
        remove_tree(temporary, ignore_errors=True)
    return directory / name


def bring_into_force(manifest: Manifest, *, began_at: float | None = None) -> Manifest:
    """The generation is the one in force in its directory; a power failure leaves the one before it, or this one, whole.

    The manifest before it is kept for those who are about to open it.

    Args:
        manifest: Any generation that is settled.
        began_at: When the listing that it is of began; None: now.
    """
    directory, generation = manifest.directory.parent, manifest.directory
    sync(generation / COLUMNS)
    sync(generation)
    before = _replace_current(directory, generation.name, began_at)
    remove_replaced(directory, keep={generation.name, before})
    return manifest


def is_in_use(generation: Path) -> bool:
    """Return whether some process has this generation open and locked, here or, as far as locks reach, on another node.

    Where that cannot be told it is in use.
    """
    with _unused(generation) as unused:
        return not unused


def _remove_unused(generation: Path) -> None:
    with _unused(generation) as unused:
        if unused:
            remove_tree(generation, ignore_errors=True)


@contextmanager
def _unused(generation: Path) -> Iterator[bool]:
    """Yield whether no process has a generation open; then none opens it for the time of the block."""
    try:
        descriptor = os.open(generation / COLUMNS, os.O_RDWR | os.O_CLOEXEC)  # NFS wants it open for writing
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
    return _write(directory, manifest.uid, [manifest.contents()])


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
        remove_tree(damaged, ignore_errors=True)


def _replace_current(directory: Path, name: str, began_at: float | None) -> str:
    """Name the generation in force; return the name of the one before, or ``""``."""
    try:
        before = current_generation(directory)
    except StoreFormatError:
        before = None
    sync(directory)  # the generation has its name before it is named
    with atomic_write(directory / CURRENT, private=True) as file:
        file.write(name.encode())
        file.flush()
        if began_at is not None:
            note_time(Path(file.name), began_at)
    return before.name if before is not None else ""


def note_time(current: Path, began_at: float) -> None:
    """The manifest that this file names is of a listing that began then."""
    os.utime(current, ns=(int(began_at * 1e9), int(began_at * 1e9)))


def remove_replaced(
    directory: Path, *, keep: Collection[str] = (), at_least_seconds: float = _REPLACED_SECONDS
) -> None:
    """Remove generations that no process has open or is about to open, and what builders that died left a day ago.

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
