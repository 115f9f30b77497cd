"""Packs a source, from its listing to the index. After a kill the same call resumes after the last complete part."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from prefeed.config import GIB, Config
from prefeed.errors import CannotPackError, PackError, PackFullError, PackOccupiedError, PrefeedError
from prefeed.packing.environment import WRITE_ERRORS, require_lmdb
from prefeed.packing.formats import require_crc32c
from prefeed.packing.journal import JOURNAL_NAME, Journal, PackOptions
from prefeed.packing.order import LAYOUTS, check_names, packing_order
from prefeed.packing.place import PackLocation
from prefeed.packing.writing import (
    PackProgress,
    Work,
    read_ahead,
    require_room,
    take_up,
    write_environment,
    write_index,
    write_shards,
)
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.mounts import is_within
from prefeed.sources.pack_index import PackHeader
from prefeed.sources.urls import canonical_url, listing_mark, open_source, pack_url
from prefeed.types import ListingProgress

DEFAULT_SHARD_BYTES: Final = GIB
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequest:
    """What to pack, and how.

    Attributes:
        source: URL or directory of the files.
        out: Directory or URL of the pack.
        layout: ``lmdb``, ``webdataset`` or ``tfrecord``.
        shard_bytes: Most bytes of a data file, about; 0: the default, 1 GiB. LMDB has one file.
        seed: Shuffles the samples; None: in order of their names.
    """

    source: str
    out: str
    layout: str
    shard_bytes: int = 0
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackResult:
    """Outcome of packing.

    Attributes:
        url: By which the pack is opened.
        layout: See ``PackRequest``.
        objects: Objects in the pack.
        bytes: Their size in bytes.
        data_files: Number of data files.
        packed: Objects packed by this call.
        kept: Objects that an earlier call had packed.
        seconds: How long it took.
    """

    url: str
    layout: str
    objects: int
    bytes: int
    data_files: int
    packed: int
    kept: int
    seconds: float


def pack(
    request: PackRequest,
    config: Config,
    *,
    progress: PackProgress | None = None,
    listing: ListingProgress | None = None,
) -> PackResult:
    """Pack every object below the source; the pack is there when its index is.

    The source is listed again. What an unfinished call before has packed stays, as far as the listing has it unchanged.
    A finished pack of the same listing stays as it is.

    Raises:
        CannotPackError: Names or options that the format does not take; nothing was written.
        PackOccupiedError: The place holds something else, also another pack.
        PackFullError: There is no room for it.
        PackError: The place cannot be written.
        PackSourceChangedError: A file changed after it was listed.
        SourceError: The source cannot be listed or read.
    """
    started = time.monotonic()
    place = PackLocation(request.out, config)
    job = _job(request, place)
    with _errors_of_the_place(place):
        manifest = ManifestLibrary(config.home).open(
            request.source, config, progress=listing, mark=listing_mark(open_source(request.source, config))
        )
        names = ((manifest.path_bytes(i), manifest.path(i), manifest.size(i) or 0) for i in range(len(manifest)))
        check_names(job.layout, names)
        header = _finished(place, job, manifest)
        kept = len(manifest)
        if header is None:
            place.prepare()
        if header is None or (place.work / JOURNAL_NAME).exists():  # killed between the index and its last step
            with Journal.open(place.work) as journal:
                header = header or _finished(place, job, manifest)  # by another process, until a moment ago
                if header is None:
                    order = packing_order(manifest, job.layout, job.seed)
                    work = Work(job=job, place=place, manifest=manifest, order=order, progress=progress or _ignored)
                    kept = _write_rest(work, journal, request.source, config)
                    header = write_index(work, journal)
                place.tidy()
                journal.finish()
    return PackResult(
        url=canonical_url(pack_url(place.url)),
        layout=header.layout,
        objects=header.num_objects,
        bytes=header.total_bytes,
        data_files=len(header.data_files),
        packed=header.num_objects - kept,
        kept=kept,
        seconds=time.monotonic() - started,
    )


def _ignored(_done: int, _total: int, _bytes: int) -> None:
    pass


def _job(request: PackRequest, place: PackLocation) -> PackOptions:
    if request.layout not in LAYOUTS:
        raise CannotPackError(f"{request.layout!r} is not a format; choose one of {', '.join(LAYOUTS)}")
    if request.layout == "tfrecord":
        require_crc32c()
    if request.layout == "lmdb":
        require_lmdb()
    if request.layout == "lmdb" and request.shard_bytes:
        raise CannotPackError("an LMDB environment is one file: leave the shard size out, or choose another format")
    source = canonical_url(request.source)
    if is_within(place.url, source):
        raise CannotPackError(f"{place.url} lies in {source}, the directory to pack; pack into another directory")
    shard_bytes = 0 if request.layout == "lmdb" else request.shard_bytes or DEFAULT_SHARD_BYTES
    return PackOptions(source=source, layout=request.layout, shard_bytes=shard_bytes, seed=request.seed)


def _finished(place: PackLocation, job: PackOptions, manifest: Manifest) -> PackHeader | None:
    """Return the header of a finished pack of the same objects; None if there is no finished pack.

    Raises:
        PackOccupiedError: The finished pack is another one.
    """
    index = place.index()
    if index is None:
        return None
    header = index.header
    if (header.made_from, header.listing) != (job.describe(), manifest.uid):
        changed = ", whose files have changed since" if header.made_from == job.describe() else ""
        raise PackOccupiedError(
            f"{place.url} holds a finished pack of {header.made_from}{changed}: pack into a new directory, or remove that one"
        )
    return header


@contextlib.contextmanager
def _errors_of_the_place(place: PackLocation) -> Iterator[None]:
    """A full disk, and a place that cannot be written, are said in our words."""
    try:
        yield
    except WRITE_ERRORS as err:
        if isinstance(err, PrefeedError):  # some of the origin's errors are OSErrors too
            raise
        if any(os.strerror(code) in str(err) for code in _NO_ROOM):
            raise PackFullError(
                f"{place.work} is full; the files packed so far are kept: free some space and run the same command again"
            ) from err
        where = getattr(err, "filename", None) or place.work
        raise PackError(f"{where}: {getattr(err, 'strerror', None) or err}; the files packed so far are kept") from err


def _write_rest(work: Work, journal: Journal, source_url: str, config: Config) -> int:
    """Write the missing objects; return the number of those that were packed before."""
    if journal.job != work.job and not journal.parts:
        journal.begin(work.job)  # of another job nothing was packed
    if journal.job not in (None, work.job):
        raise PackOccupiedError(
            f"{work.place.url} holds an unfinished pack of {journal.job.describe()}: run the same command again, or remove the pack"
        )
    kept = take_up(work, journal)
    require_room(work, kept)
    write = write_environment if work.job.layout == "lmdb" else write_shards
    source = open_source(source_url, config)
    ids = work.order.ids[kept:].tolist()
    stream = read_ahead(source, work.manifest, ids, deadline_seconds=config.limits.retry_seconds)
    with contextlib.closing(source), contextlib.closing(stream):
        write(work, journal, stream, kept)
    return kept
