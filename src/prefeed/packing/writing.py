"""Writing the data files of a pack, and going on where an earlier process was stopped."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from prefeed.packing import environment, tar_shards, tfrecord
from prefeed.packing.environment import DATA_FILE, LOCK_FILE, EnvironmentWriter
from prefeed.packing.journal import Journal, Part
from prefeed.packing.order import signature
from prefeed.packing.place import PARTIAL, StorePlace, check_room, clean
from prefeed.packing.records import ShardWriter
from prefeed.packing.work import Work
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.types import Buffer

_WRITERS: Final[dict[str, type[ShardWriter]]] = {
    "webdataset": tar_shards.TarWriter,
    "tfrecord": tfrecord.TfrecordWriter,
}
_ROOM: Final = {
    "webdataset": tar_shards.room_bytes,
    "tfrecord": tfrecord.room_bytes,
    "lmdb": environment.room_bytes,
}
_BATCH_BYTES: Final = 64 * 1024**2
_BATCH_OBJECTS: Final = 4096
_MAP_SLACK_BYTES: Final = 64 * 1024**2

Stream = Iterator[tuple[int, Buffer]]
"""Objects that are still to be packed, in packing order: id and bytes."""


def take_up(work: Work, journal: Journal) -> int:
    """Return how many objects are packed already and listed as they were then; all else is removed.

    An LMDB environment with an object that has changed is made anew.
    """
    if journal.job is None:
        journal.begin(work.job)
    kept = _unchanged_parts(work, journal)
    if work.job.layout == "lmdb":
        if kept < len(journal.parts) or not (work.place.work / DATA_FILE).exists():
            journal.begin(work.job)
        clean(work.place.work, keep={DATA_FILE, LOCK_FILE} if journal.parts else set())
    else:
        if kept < len(journal.parts):
            # One more than the journal names: a process may have been killed between publishing a file and noting it.
            work.place.withdraw([_shard_name(work, i) for i in range(kept, len(journal.parts) + 1)])
        journal.keep(kept)
        clean(work.place.work, keep={part.file for part in journal.parts})
    return sum(part.count for part in journal.parts)


def _shard_name(work: Work, number: int) -> str:
    return f"shard-{number:06d}{_WRITERS[work.job.layout].suffix}"


def _unchanged_parts(work: Work, journal: Journal) -> int:
    is_local = not isinstance(work.place, StorePlace)
    at = 0
    for number, part in enumerate(journal.parts):
        ids = work.order.ids[at : at + part.count]
        at += len(ids)
        is_whole = len(ids) == part.count and at in work.order.starts[np.searchsorted(work.order.starts, at) :][:1]
        is_there = not is_local or (work.place.work / part.file).exists()
        if not (is_whole and is_there and signature(work.manifest, ids) == part.signature):
            return number
    return len(journal.parts)


def require_room(work: Work, kept: int) -> None:
    """Check that what is still to be packed fits.

    Raises:
        PackFullError: It does not.
    """
    sizes = work.manifest.sizes[work.order.ids[kept:]]
    needed = _ROOM[work.job.layout](sizes[sizes != np.uint64(UNKNOWN_SIZE)])
    if isinstance(work.place, StorePlace) and work.job.shard_bytes:
        needed = min(needed, work.job.shard_bytes + int(sizes.max(initial=0)))  # one data file at a time
    check_room(work.place.work, needed)


def write_shards(work: Work, journal: Journal, stream: Stream, kept: int) -> None:
    """Write data files of about ``shard_bytes`` each; no unit of the order is split."""
    order = work.order
    first = int(np.searchsorted(order.starts, kept))
    shard: _Shard | None = None
    try:
        for start, end in zip(order.starts[first:-1].tolist(), order.starts[first + 1 :].tolist(), strict=True):
            members = [next(stream) for _ in range(start, end)]
            size = sum(len(data) for _, data in members)
            if shard is not None and shard.writer.num_bytes + size > work.job.shard_bytes:
                shard.finish()
                shard = None
            shard = shard or _Shard(work, journal, start)
            for object_id, data in members:
                shard.add(work.manifest.path(object_id), data)
            work.progress(end, len(order.ids), size)
        if shard is not None:
            shard.finish()
    finally:
        if shard is not None:
            shard.writer.close()


class _Shard:
    """One data file on its way, and what the journal will say of it."""

    def __init__(self, work: Work, journal: Journal, start: int) -> None:
        writer = _WRITERS[work.job.layout]
        self._work = work
        self._journal = journal
        self._start = start
        self._name = _shard_name(work, len(journal.parts))
        self._partial = work.place.work / (self._name + PARTIAL)
        self._sizes, self._checksums, self._offsets = array("Q"), array("Q"), array("Q")
        self.writer = writer(self._partial)

    def add(self, path: str, data: Buffer) -> None:
        self._offsets.append(self.writer.add(path, data))
        self._sizes.append(len(data))
        self._checksums.append(xxh3_64_intdigest(data))

    def finish(self) -> None:
        """Put the file in its place, then into the journal: what the journal names is there."""
        os.fsync(self.writer.flush())
        self.writer.close()
        self._work.place.publish(self._partial, self._name)
        self._journal.add(_part(self._work, self._name, self._start, self._sizes, self._checksums, self._offsets))


def write_environment(work: Work, journal: Journal, stream: Stream, kept: int) -> None:
    """Write all values into one LMDB environment, in batches that are committed and then noted."""
    sizes = work.manifest.sizes
    room = environment.room_bytes(sizes[sizes != np.uint64(UNKNOWN_SIZE)])
    with EnvironmentWriter(work.place.work, 2 * room + _MAP_SLACK_BYTES) as writer:
        batch: list[tuple[bytes, Buffer]] = []
        batch_bytes, start = 0, kept
        for at, (object_id, data) in enumerate(stream, kept + 1):
            batch.append((work.manifest.path_bytes(object_id), data))
            batch_bytes += len(data)
            work.progress(at, len(work.order.ids), len(data))
            if batch_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_OBJECTS or at == len(work.order.ids):
                writer.put(batch)
                _note_batch(work, journal, start, batch)
                batch, batch_bytes, start = [], 0, at
        writer.keep_only(map(work.manifest.path_bytes, work.order.ids.tolist()), len(work.order.ids))


def _note_batch(work: Work, journal: Journal, start: int, batch: list[tuple[bytes, Buffer]]) -> None:
    sizes = array("Q", (len(data) for _, data in batch))
    checksums = array("Q", (xxh3_64_intdigest(data) for _, data in batch))
    journal.add(_part(work, DATA_FILE, start, sizes, checksums, array("Q")))


def _part(work: Work, file: str, start: int, sizes: array[int], checksums: array[int], offsets: array[int]) -> Part:
    return Part(
        file=file,
        count=len(sizes),
        signature=signature(work.manifest, work.order.ids[start : start + len(sizes)]),
        sizes=sizes.tobytes(),
        checksums=checksums.tobytes(),
        offsets=offsets.tobytes(),
    )
