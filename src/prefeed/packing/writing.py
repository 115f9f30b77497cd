"""Writes a pack: reads objects ahead, writes data files, and the index at the end.

``take_up`` compares the journal with the listing, so that the work of a killed process is kept as far as it is still valid.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from prefeed.errors import PackError, PackSourceChangedError
from prefeed.packing.environment import DATA_FILE, LOCK_FILE, EnvironmentWriter, value_offsets
from prefeed.packing.formats import tar_end, tar_frame, tfrecord_frame
from prefeed.packing.journal import Journal, PackOptions, Part
from prefeed.packing.order import PackingOrder, signature
from prefeed.packing.place import PARTIAL, PackLocation
from prefeed.sources.answers import patiently
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import Manifest, version_hash
from prefeed.sources.pack_index import PackHeader, encode_index
from prefeed.sources.protocol import Source
from prefeed.types import Buffer

PackProgress = Callable[[int, int, int], None]
"""Called with (objects done, objects in all, bytes of those done since the last call)."""

Stream = Iterator[tuple[int, Buffer]]
"""Objects that are still to be packed, in packing order: id and bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A pack to write.

    Attributes:
        job: Its options.
        place: Its place.
        manifest: Listing of the source.
        order: Objects of the listing in packing order.
        progress: Callback for the progress.
    """

    job: PackOptions
    place: PackLocation
    manifest: Manifest
    order: PackingOrder
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
    """Raise ``PackSourceChangedError`` if an object differs from its listing."""
    listed_size, listed = manifest.size(object_id), manifest.version_hash(object_id)
    is_other = bool(listed) and bool(version) and version_hash(version) != listed
    if is_other or listed_size not in (None, size_bytes):
        where = source.locate(manifest.path(object_id))
        raise PackSourceChangedError(
            f"{where} changed after it was listed: run the same command again; packed files that are unchanged are kept",
            path=where,
        )


_BATCH_BYTES: Final = 64 * 1024**2
_BATCH_OBJECTS: Final = 4096
_MAP_SLACK_BYTES: Final = 64 * 1024**2
_SAMPLED: Final = 1000
"""Number of values of an LMDB environment that are read back by their offset."""


def take_up(work: Work, journal: Journal) -> int:
    """Remove the parts that do not match the listing any more, and all files that the journal does not name.

    An LMDB environment with a changed object is created anew.

    Returns:
        Number of objects that are packed already.
    """
    if journal.job is None:
        journal.begin(work.job)
    kept = _unchanged_parts(work, journal)
    if work.job.layout == "lmdb":
        if kept < len(journal.parts) or not (work.place.work / DATA_FILE).exists():
            journal.begin(work.job)
        work.place.clean(keep={DATA_FILE, LOCK_FILE} if journal.parts else set())
    else:
        if kept < len(journal.parts):
            # One more than in the journal: a process may have been killed after it published a file.
            work.place.withdraw(_shard_name(work, i) for i in range(kept, len(journal.parts) + 1))
            journal.keep(kept)
        work.place.clean(keep={part.file for part in journal.parts})
    return sum(part.count for part in journal.parts)


def _unchanged_parts(work: Work, journal: Journal) -> int:
    at, starts = 0, set(work.order.starts.tolist())
    for number, part in enumerate(journal.parts):
        ids = work.order.ids[at : at + part.count]
        at += part.count
        is_there = work.place.is_store or (work.place.work / part.file).exists()
        if at not in starts or not is_there or signature(work.manifest, ids) != part.signature:
            return number
    return len(journal.parts)


def _shard_name(work: Work, number: int) -> str:
    return f"shard-{number:06d}{'.tar' if work.job.layout == 'webdataset' else '.tfrecord'}"


def require_room(work: Work, kept: int) -> None:
    """Check that the remaining objects fit into the place.

    Raises:
        PackFullError: They do not.
    """
    sizes = work.manifest.sizes[work.order.ids[kept:]]
    needed = _room_bytes(work.job.layout, sizes)
    if work.place.is_store and work.job.shard_bytes:
        needed = min(needed, work.job.shard_bytes + int(sizes.max(initial=0)))  # one data file at a time
    work.place.require_room(needed)


def _room_bytes(layout: str, sizes: NDArray[np.uint64]) -> int:
    """Estimate the bytes that objects take in a pack, with names of usual length; unknown sizes count as nothing."""
    sizes = sizes[sizes != np.uint64(UNKNOWN_SIZE)]
    if layout == "webdataset":  # blocks of 512 bytes, and up to three of them for the header
        return int(((sizes + 511) // 512 * 512).sum()) + len(sizes) * 3 * 512
    if layout == "lmdb":  # whole pages for large values; keys and nodes are in pages that are two thirds full
        return int(np.where(sizes > 1024, (sizes + 24 + 4095) // 4096 * 4096, sizes).sum()) + len(sizes) * 256
    return int(sizes.sum()) + len(sizes) * 512


def write_shards(work: Work, journal: Journal, stream: Stream, kept: int) -> None:
    """Write data files of about ``shard_bytes`` each; no unit of the order is split."""
    order = work.order
    first = int(np.searchsorted(order.starts, kept))
    shard: _Shard | None = None
    try:
        for start, end in zip(order.starts[first:-1].tolist(), order.starts[first + 1 :].tolist(), strict=True):
            members = [next(stream) for _ in range(start, end)]
            size = sum(len(data) for _, data in members)
            if shard is not None and shard.num_bytes + size > work.job.shard_bytes:
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
            shard.file.close()


class _Shard:
    """Data file that is being written, and its columns of the index."""

    def __init__(self, work: Work, journal: Journal, start: int) -> None:
        self._work = work
        self._journal = journal
        self._start = start
        self._name = _shard_name(work, len(journal.parts))
        self._frame = tar_frame if work.job.layout == "webdataset" else tfrecord_frame
        self._sizes: list[int] = []
        self._checksums: list[int] = []
        self._offsets: list[int] = []
        self.num_bytes = 0
        self.file = open(work.place.work / (self._name + PARTIAL), "wb")  # noqa: SIM115 - write_shards closes it

    def add(self, path: str, data: Buffer) -> None:
        head, tail = self._frame(path, data)
        self.file.writelines((head, data, tail))
        self._offsets.append(self.num_bytes + len(head))
        self._sizes.append(len(data))
        self._checksums.append(xxh3_64_intdigest(data))
        self.num_bytes += len(head) + len(data) + len(tail)

    def finish(self) -> None:
        """Publish the file, then record it: each file that the journal names exists."""
        if self._work.job.layout == "webdataset":
            self.file.write(tar_end(self.num_bytes))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._work.place.publish(self._name)
        self._journal.add(_part(self._work, self._name, self._start, self._sizes, self._checksums, self._offsets))


def write_environment(work: Work, journal: Journal, stream: Stream, kept: int) -> None:
    """Write all values into one LMDB environment, in batches that are committed and then recorded."""
    map_bytes = 2 * _room_bytes("lmdb", work.manifest.sizes) + _MAP_SLACK_BYTES
    with EnvironmentWriter(work.place.work, map_bytes) as writer:
        batch: list[tuple[bytes, Buffer]] = []
        batch_bytes, start, end = 0, kept, len(work.order.ids)
        for at, (object_id, data) in enumerate(stream, kept + 1):
            batch.append((work.manifest.path_bytes(object_id), data))
            batch_bytes += len(data)
            work.progress(at, end, len(data))
            if batch_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_OBJECTS or at == end:
                writer.put(batch)
                values = [value for _, value in batch]
                journal.add(_part(work, DATA_FILE, start, list(map(len, values)), list(map(xxh3_64_intdigest, values))))
                batch, batch_bytes, start = [], 0, at
        writer.keep_only(map(work.manifest.path_bytes, work.order.ids.tolist()), end)


def _part(
    work: Work, file: str, start: int, sizes: list[int], checksums: list[int], offsets: list[int] | None = None
) -> Part:  # fmt: skip
    of_part = signature(work.manifest, work.order.ids[start : start + len(sizes)])
    return Part(file=file, signature=of_part, sizes=sizes, checksums=checksums, offsets=offsets or [])


def write_index(work: Work, journal: Journal) -> PackHeader:
    """Write the index of all parts in the journal, which finishes the pack."""
    parts, order = journal.parts, work.order
    sizes, checksums, offsets = (
        np.fromiter(chain.from_iterable(getattr(part, column) for part in parts), np.uint64)
        for column in ("sizes", "checksums", "offsets")
    )
    if work.job.layout == "lmdb":
        offsets = _environment_offsets(work, sizes, checksums)
    files = list(dict.fromkeys(part.file for part in parts))
    numbers = np.repeat([files.index(part.file) for part in parts], [part.count for part in parts])
    by_path = np.argsort(order.ids)  # ids of a manifest are in order of their paths
    paths = [work.manifest.path_bytes(i) for i in range(len(work.manifest))]
    lengths = [len(path) for path in paths]
    header = PackHeader(
        layout=work.job.layout, data_files=files, made_from=work.job.describe(), listing=work.manifest.uid,
        num_objects=len(paths), total_bytes=int(sizes.sum()), path_bytes=sum(lengths),
    )  # fmt: skip
    index = encode_index(
        header,
        sizes=sizes[by_path], offsets=offsets[by_path], checksums=checksums[by_path],
        files=numbers[by_path].astype(np.uint32),
        starts=np.concatenate(([0], np.cumsum(lengths))).astype(np.uint64), paths=b"".join(paths),
    )  # fmt: skip
    if work.job.layout == "lmdb" and work.place.is_store:
        work.place.upload(work.place.work / DATA_FILE, DATA_FILE)
    work.place.finish(index)
    return header


def _environment_offsets(work: Work, sizes: NDArray[np.uint64], checksums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the offset of each value in the data file, in packing order."""
    data_file = work.place.work / DATA_FILE
    keys = (work.manifest.path_bytes(i) for i in work.order.ids.tolist())
    offsets = np.fromiter(value_offsets(data_file, keys), np.uint64, len(sizes))
    content = np.memmap(data_file, np.uint8, "r")
    for i in range(0, len(sizes), max(1, len(sizes) // _SAMPLED)):
        if xxh3_64_intdigest(content[int(offsets[i]) :][: int(sizes[i])].data) != int(checksums[i]):
            raise PackError(f"{data_file} does not hold what was written; remove its directory and pack again")
    return offsets
