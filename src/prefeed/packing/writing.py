"""Writing a pack: objects read ahead, data files, and the index at the end. It resumes where an earlier process stopped."""

from __future__ import annotations

import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64, xxh3_64_intdigest

from prefeed.errors import PackError, PackSourceChangedError
from prefeed.packing import environment, tar_shards, tfrecord
from prefeed.packing.environment import DATA_FILE, LOCK_FILE, EnvironmentWriter, value_offsets
from prefeed.packing.journal import Job, Journal, Part
from prefeed.packing.order import Order, signature
from prefeed.packing.place import PARTIAL, Place, StorePlace, check_room, clean
from prefeed.packing.records import ShardWriter
from prefeed.sources.answers import patiently
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import Manifest, version_hash
from prefeed.sources.pack_index import PackHeader, encode_index
from prefeed.sources.protocol import Source
from prefeed.types import Buffer

PackProgress = Callable[[int, int, int], None]
"""Called with (objects done, objects in all, bytes of those done since the last call)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is packed, in which order, and where to.

    Attributes:
        job: The options.
        place: Where the pack comes to lie.
        manifest: The listing of what is packed.
        order: Its objects in packing order.
        progress: Told how far it is.
    """

    job: Job
    place: Place
    manifest: Manifest
    order: Order
    progress: PackProgress


_THREADS: Final = 32
_AHEAD_BYTES: Final = 256 * 1024**2
_AHEAD_OBJECTS: Final = 512
_UNKNOWN_BYTES: Final = 1024**2
"""The size that counts for an object without a size in the listing."""


def read_ahead(
    source: Source, manifest: Manifest, ids: Iterable[int], *, deadline_seconds: float
) -> Generator[tuple[int, Buffer], None, None]:
    """Yield the bytes of these objects, in this order.

    Raises:
        PackSourceChangedError: One is not what was listed.
        SourceError: One cannot be read.
    """

    def fetch(object_id: int) -> Buffer:
        fetched = patiently(
            lambda: source.fetch(manifest.path(object_id)), deadline_seconds=deadline_seconds, stopped=stopped
        )
        check_unchanged(source, manifest, object_id, version=fetched.version, size_bytes=len(fetched.data))
        return fetched.data

    stopped = threading.Event()
    waiting: deque[tuple[int, int, Future[Buffer]]] = deque()
    ahead_bytes = 0
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-pack")
    try:
        for object_id in ids:
            expected = manifest.size(object_id)
            size = _UNKNOWN_BYTES if expected is None else expected
            while waiting and (ahead_bytes + size > _AHEAD_BYTES or len(waiting) >= _AHEAD_OBJECTS):
                first, first_size, future = waiting.popleft()
                yield first, future.result()
                ahead_bytes -= first_size
            waiting.append((object_id, size, pool.submit(fetch, object_id)))
            ahead_bytes += size
        while waiting:
            first, _, future = waiting.popleft()
            yield first, future.result()
    finally:
        stopped.set()  # Ctrl-C, or a permanent error, does not wait for what the origin may still answer
        pool.shutdown(cancel_futures=True)


def check_unchanged(source: Source, manifest: Manifest, object_id: int, *, version: str, size_bytes: int) -> None:
    """Check that what was read is what the listing says.

    Raises:
        PackSourceChangedError: It is not.
    """
    listed_size, listed = manifest.size(object_id), manifest.version_hash(object_id)
    is_other = bool(listed) and bool(version) and version_hash(version) != listed
    if is_other or listed_size not in (None, size_bytes):
        where = source.locate(manifest.path(object_id))
        raise PackSourceChangedError(
            f"{where} changed after it was listed: run the same command again; packed files that are unchanged are kept",
            path=where,
        )


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

    An LMDB environment with an object that has changed is made again.
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


_SAMPLED: Final = 1000
"""Values of an LMDB environment that are read back by their offset, always."""

_PIECE_BYTES: Final = 64 * 1024**2


def write_index(work: Work, journal: Journal) -> PackHeader:
    """Write the index of what the journal names; the pack is finished then."""
    parts = journal.parts
    files = list(dict.fromkeys(part.file for part in parts))
    sizes, checksums = (_joined(parts, column) for column in ("sizes", "checksums"))
    if work.job.layout == "lmdb":
        offsets = _environment_offsets(work, sizes, checksums)
    else:
        offsets = _joined(parts, "offsets")
    numbers = np.repeat([files.index(part.file) for part in parts], [part.count for part in parts])
    by_path = np.argsort(work.order.ids)  # ids of a manifest are in order of their paths
    paths = [work.manifest.path_bytes(i) for i in range(len(work.manifest))]
    header = PackHeader(
        layout=work.job.layout,
        num_objects=len(paths),
        total_bytes=int(sizes.sum()),
        path_bytes=sum(map(len, paths)),
        data_files=files,
        made_from=work.job.describe(),
        listing=work.manifest.uid,
    )
    encoded = encode_index(
        header,
        sizes=sizes[by_path],
        offsets=offsets[by_path],
        checksums=checksums[by_path],
        files=numbers[by_path].astype(np.uint32),
        starts=starts_of(paths),
        paths=b"".join(paths),
    )
    if work.job.layout == "lmdb" and isinstance(work.place, StorePlace):
        work.place.copy(work.place.work / DATA_FILE, DATA_FILE)
    work.place.finish(encoded)
    return header


def starts_of(paths: list[bytes]) -> NDArray[np.uint64]:
    """Return where each path begins when they follow each other, and the end; shape (num_paths + 1,)."""
    return np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.uint64)


def _joined(parts: list[Part], column: str) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(getattr(part, column) for part in parts), np.uint64)


def _environment_offsets(work: Work, sizes: NDArray[np.uint64], checksums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return where each value lies in the data file, in packing order."""
    data_file = work.place.work / DATA_FILE
    keys = (work.manifest.path_bytes(i) for i in work.order.ids.tolist())
    offsets = np.fromiter(value_offsets(data_file, keys), np.uint64, len(sizes))
    descriptor = os.open(data_file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for i in range(0, len(sizes), max(1, len(sizes) // _SAMPLED)):
            if _sum_of(descriptor, int(offsets[i]), int(sizes[i])) != int(checksums[i]):
                raise PackError(f"{data_file} does not hold what was written; remove its directory and pack again")
    finally:
        os.close(descriptor)
    return offsets


def _sum_of(descriptor: int, offset: int, size_bytes: int) -> int:
    """Return the xxh3-64 of a part of a file, or of what there is of it; one read gives at most 2 GiB."""
    digest, end = xxh3_64(), offset + size_bytes
    while offset < end and (piece := os.pread(descriptor, min(_PIECE_BYTES, end - offset), offset)):
        digest.update(piece)
        offset += len(piece)
    return digest.intdigest()
