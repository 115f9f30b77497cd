"""Packs that other programs have made: their data files are read once, and get an index."""

from __future__ import annotations

import contextlib
import io
import os
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from prefeed.config import Config
from prefeed.errors import CannotPackError, EmptyListingError, PackOccupiedError, PrefeedError
from prefeed.packing import environment
from prefeed.packing.driver import PackResult, result_of
from prefeed.packing.formats import PackedObject, scan_tar, scan_tfrecord
from prefeed.packing.writing import PackProgress, encode
from prefeed.sources.answers import patiently
from prefeed.sources.listing import ENCODING
from prefeed.sources.pack_index import INDEX_NAME, PackHeader
from prefeed.sources.packed import PackedSource
from prefeed.sources.protocol import RangeSource
from prefeed.sources.urls import canonical_url, open_plain_source, pack_url
from prefeed.system.files import write_durably
from prefeed.types import Buffer, ObjectInfo

_BUFFER_BYTES: Final = 8 * 1024**2

_ENDINGS: Final[dict[str, Callable[[str], bool]]] = {
    "webdataset": lambda name: name.endswith(".tar"),
    "tfrecord": lambda name: ".tfrecord" in name,  # also train.tfrecord-00000-of-00010
    "lmdb": lambda name: name.endswith((".mdb", ".lmdb")) and not name.endswith("lock.mdb"),
}


def index_files(
    url_or_path: str,
    out: str | None,
    config: Config,
    *,
    layout: str | None = None,
    progress: PackProgress | None = None,
) -> PackResult:
    """Write the index of a pack that another program made; only what its data files hold is read, once.

    The data files must not change afterwards: what does not have the checksum of the index is refused when it is read.

    Args:
        url_or_path: Where the data files lie.
        out: Directory for the index; None: beside them, which has to be a directory then.
        config: Settings.
        layout: Their format, for data files whose names do not say it; None: as their names say.
        progress: Called with data files done, data files in all, and bytes read.

    Raises:
        CannotPackError: They cannot be indexed; the message says why.
        PackOccupiedError: ``out`` holds the index of something else.
        SourceError: They cannot be listed or read.
    """
    started = time.monotonic()
    root = canonical_url(url_or_path)
    directory = canonical_url(root if out is None else out)
    if not directory.startswith("/"):
        raise CannotPackError(f"the index cannot be written to {directory}: name a directory for it after {root}")
    with contextlib.closing(open_plain_source(url_or_path, config)) as source:
        found, infos = _data_files(source, layout)
        wanted = PackHeader(
            layout=found,
            data_files=[info.path for info in infos],
            data_versions=[f"{info.size_bytes} {info.version}" for info in infos],
            data_root=root if out is not None else "",
        )
        header = _header_there(Path(directory), config)
        if header is not None and replace(header, num_objects=0, total_bytes=0, path_bytes=0) == wanted:
            return result_of(directory, header, kept=header.num_objects, started=started)
        header = _write_index(source, wanted, infos, Path(directory), config, progress)
    return result_of(directory, header, kept=0, started=started)


def _data_files(source: RangeSource, layout: str | None) -> tuple[str, list[ObjectInfo]]:
    """Return the format and the data files, in order of their names."""
    listed = sorted((info for infos in source.list_objects() for info in infos), key=lambda info: info.path)
    for candidate, is_data in _ENDINGS.items():
        found = [info for info in listed if is_data(info.path)]
        if found and layout in (None, candidate):
            return candidate, found
    if layout is not None and listed:
        return layout, [info for info in listed if info.path != INDEX_NAME]
    compressed = [info.path for info in listed if info.path.endswith((".tgz", ".gz", ".zst", ".bz2", ".xz"))]
    advice = (
        f"{compressed[0]} is compressed, so no file in it can be read alone: unpack it"
        if compressed
        else "wanted *.tar, *.tfrecord* or *.mdb; if the names do not tell the format, pass --format"
    )
    raise EmptyListingError(f"{source.url} has no data files of a pack among its {len(listed)} files: {advice}")


def _header_there(directory: Path, config: Config) -> PackHeader | None:
    """Return the header of an index that exists already, None if there is none or it is damaged.

    Raises:
        PackOccupiedError: The index is of a pack that prefeed made.
    """
    if not (directory / INDEX_NAME).exists():
        return None
    source = PackedSource(pack_url(str(directory)), open_plain_source(str(directory), config), home=config.home)
    with contextlib.closing(source):
        try:
            header = source.index().header
        except PrefeedError:
            return None
    if header.made_from:
        raise PackOccupiedError(f"{directory} holds a pack of {header.made_from}, which has its index already")
    return header


def _write_index(
    source: RangeSource,
    header: PackHeader,
    infos: list[ObjectInfo],
    directory: Path,
    config: Config,
    progress: PackProgress | None,
) -> PackHeader:
    paths: list[bytes] = []
    columns = {name: array("Q") for name in ("sizes", "offsets", "checksums", "files")}
    for number, info in enumerate(infos):
        for record in _records(source, header.layout, info, config):
            paths.append(record.path.encode(*ENCODING))
            row = len(record.data), record.offset, xxh3_64_intdigest(record.data), number
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
        if progress is not None:
            progress(number + 1, len(infos), max(0, info.size_bytes))
    if not paths:
        raise EmptyListingError(f"the data files of {source.url} are empty")
    paths = _told_apart(paths, columns["files"], header.data_files)
    last = {path: row for row, path in enumerate(paths)}  # of one path the last object counts, as in a tar file
    rows = [last[path] for path in sorted(last)]
    full, index = encode(header, [paths[row] for row in rows], **{
        name: np.array(column, np.uint64)[rows] for name, column in columns.items()
    })  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    write_durably(directory / INDEX_NAME, index)
    return full


def _told_apart(paths: list[bytes], files: array[int], data_files: list[str]) -> list[bytes]:
    """Put the data file's name before each path if one path is in several data files."""
    first: dict[bytes, int] = {}
    if all(first.setdefault(path, file) == file for path, file in zip(paths, files, strict=True)):
        return paths
    prefixes = [name.encode(*ENCODING) + b"/" for name in data_files]
    return [prefixes[file] + path for path, file in zip(paths, files, strict=True)]


def _records(source: RangeSource, layout: str, info: ObjectInfo, config: Config) -> Iterator[PackedObject]:
    if layout == "lmdb":
        if not source.url.startswith("/"):
            raise CannotPackError(
                f"{source.url}: an LMDB environment is indexed where it is a local file; copy it here"
            )
        return environment.scan(Path(source.locate(info.path)), info.path)
    if info.size_bytes < 0:
        raise CannotPackError(f"the listing does not say how large {source.locate(info.path)} is: add it to the index")
    file = io.BufferedReader(_RangeFile(source, info, config.limits.retry_seconds), _BUFFER_BYTES)
    return (scan_tar if layout == "webdataset" else scan_tfrecord)(file, info.path)


class _RangeFile(io.RawIOBase):
    """A data file as Python's file, read by ranges."""

    def __init__(self, source: RangeSource, info: ObjectInfo, deadline_seconds: float) -> None:
        self._source = source
        self._info = info
        self._deadline_seconds = deadline_seconds
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._info.size_bytes}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]  # of io.RawIOBase: any writable buffer
        view = memoryview(buffer)
        size = min(len(view), max(0, self._info.size_bytes - self._at))
        if size:
            view[:size] = patiently(
                lambda: self._source.fetch_range(self._info.path, self._at, size).data,
                deadline_seconds=self._deadline_seconds,
            )
            self._at += size
        return size
