"""From the journal to the index."""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from prefeed.errors import PackError
from prefeed.packing.environment import DATA_FILE, value_offsets
from prefeed.packing.journal import Journal, Part
from prefeed.packing.place import StorePlace
from prefeed.packing.work import Work
from prefeed.sources.pack_index import PackHeader, encode_index

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
                raise PackError(f"{data_file} does not hold what was written; remove its directory and pack anew")
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
