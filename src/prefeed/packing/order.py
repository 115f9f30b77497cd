"""Which names each format takes, in which order files are packed, and which stay together. Pure but for the manifest."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from prefeed.errors import CannotPackError
from prefeed.sources.manifest import Manifest
from prefeed.sources.plain_s3 import has_dots

LAYOUTS: Final = ("lmdb", "webdataset", "tfrecord")
LMDB_KEY_BYTES: Final = 511
_LMDB_BYTES: Final = 2**32 - 1
_TFRECORD_BYTES: Final = 2**31 - 2**20
"""Protocol buffers end at 2 GiB, path and frame included."""

# webdataset's own expressions: its rule is what counts here (webdataset 1.0.2, 2026-11).
_SAMPLE: Final = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)")
_META: Final = re.compile(r"__[^/]*__($|/)")
_NAMES_SHOWN: Final = 3


def sample_of(path: str) -> tuple[str, str] | None:
    """Return the key and the extension of a file in a WebDataset; None for a file that belongs to no sample.

    The key ends at the first dot of the file's name; the extension is in lower case.
    """
    match = _SAMPLE.fullmatch(path)
    return None if match is None or _META.match(path) else (match[1], match[2].lower())


def check_names(layout: str, files: Iterable[tuple[bytes, str, int]]) -> None:
    """Check that every file can be packed, before anything is written.

    Args:
        layout: One of ``LAYOUTS``.
        files: Path as bytes and as text, and size in bytes.

    Raises:
        CannotPackError: The message has the first few files, their number, and the way out.
    """
    refused = list(_refused(layout, files))
    if refused:
        more = f" and {len(refused) - _NAMES_SHOWN:,} more" if len(refused) > _NAMES_SHOWN else ""
        shown = ", ".join(map(repr, refused[:_NAMES_SHOWN]))
        raise CannotPackError(f"{layout} does not take {shown}{more}: {_ADVICE[layout]}", files=len(refused))


_ADVICE: Final = {
    "webdataset": "the key of a sample is its file name up to the first dot, and case is ignored in "
    "the rest; so each name needs a dot that is not at its beginning, no two names may differ only in case, and none may have '..' between slashes. Rename these files, "
    "or choose lmdb or tfrecord, which take any name",
    "lmdb": f"its keys have at most {LMDB_KEY_BYTES} bytes and its values less than 4 GiB; choose webdataset",
    "tfrecord": "its records end at 2 GiB; choose webdataset or lmdb",
}


def _refused(layout: str, files: Iterable[tuple[bytes, str, int]]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for name, path, size in files:
        if layout == "lmdb":
            is_refused = len(name) > LMDB_KEY_BYTES or size > _LMDB_BYTES
        elif layout == "tfrecord":
            is_refused = size > _TFRECORD_BYTES
        else:
            key, extension = sample = sample_of(path) or ("/", "")
            # tar cuts names at a zero byte. The other names lead out of the directory in which a tar file is unpacked.
            is_unsafe = "\0" in path or path.startswith("/") or has_dots(path) is not None
            is_refused = is_unsafe or sample in seen or key.endswith("/") or extension.startswith("__")
            seen.add(sample)
        if is_refused:
            yield path


@dataclass(frozen=True, slots=True)
class PackingOrder:
    """What is packed, one after the other.

    Attributes:
        ids: Object ids of the manifest, shape (num_objects,).
        starts: Unit i is ``ids[starts[i] : starts[i + 1]]`` and is never split, shape (num_units + 1,).
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]


def packing_order(manifest: Manifest, layout: str, seed: int | None) -> PackingOrder:
    """Return files in order of their samples' keys and their paths; with a seed, the samples shuffled.

    A unit is what makes one sample of a WebDataset; in other formats each file is one.
    """
    count = manifest.num_objects
    if layout == "webdataset":
        keys = [_key(manifest.path(i)) for i in range(count)]
        order = sorted(range(count), key=keys.__getitem__)  # stable: in order of paths below a key
        changes = (at for at, (one, other) in enumerate(pairwise(order), 1) if keys[one] != keys[other])
        ids, starts = np.array(order, np.int64), np.array([0, *changes, count], np.int64)
    else:
        ids, starts = np.arange(count, dtype=np.int64), np.arange(count + 1, dtype=np.int64)
    return PackingOrder(ids, starts) if seed is None else _shuffled(ids, starts, seed)


def signature(manifest: Manifest, ids: NDArray[np.int64]) -> str:
    """Hash the listing of these objects: path, size and version of each, in this order."""
    digest = xxh3_128()
    for i in ids.tolist():
        digest.update(manifest.path_bytes(i) + b"\0")
    digest.update(manifest.sizes[ids].tobytes())
    digest.update(manifest.version_hashes[ids].tobytes())
    return digest.hexdigest()


def _key(path: str) -> str:
    sample = sample_of(path)
    return path if sample is None else sample[0]


def _shuffled(ids: NDArray[np.int64], starts: NDArray[np.int64], seed: int) -> PackingOrder:
    units = list(range(len(starts) - 1))
    random.Random(seed).shuffle(units)  # Python promises the same order in every version; numpy does not.
    lengths = np.diff(starts)[units]
    members = (range(int(starts[unit]), int(starts[unit + 1])) for unit in units)
    taken = np.fromiter(chain.from_iterable(members), np.int64, len(ids))
    return PackingOrder(ids[taken], np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
