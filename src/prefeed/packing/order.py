"""In which order files are packed, and which of them stay together. Pure but for the manifest that is read."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128

from prefeed.packing.names import sample_of
from prefeed.sources.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Order:
    """What is packed, one after the other.

    Attributes:
        ids: Object ids of the manifest, shape (num_objects,).
        starts: Unit i is ``ids[starts[i] : starts[i + 1]]`` and is never split, shape (num_units + 1,).
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.int64]


def packing_order(manifest: Manifest, layout: str, seed: int | None) -> Order:
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
    return Order(ids, starts) if seed is None else _shuffled(ids, starts, seed)


def signature(manifest: Manifest, ids: NDArray[np.int64]) -> bytes:
    """Return 16 bytes that stand for these objects as they are listed: path, size and version of each, in this order."""
    digest = xxh3_128()
    for i in ids.tolist():
        digest.update(manifest.path_bytes(i) + b"\0")
    digest.update(manifest.sizes[ids].tobytes())
    digest.update(manifest.version_hashes[ids].tobytes())
    return digest.digest()


def _key(path: str) -> str:
    sample = sample_of(path)
    return path if sample is None else sample[0]


def _shuffled(ids: NDArray[np.int64], starts: NDArray[np.int64], seed: int) -> Order:
    units = list(range(len(starts) - 1))
    random.Random(seed).shuffle(units)  # Python promises the same order in every version; numpy does not.
    lengths = np.diff(starts)[units]
    members = (range(int(starts[unit]), int(starts[unit + 1])) for unit in units)
    taken = np.fromiter(chain.from_iterable(members), np.int64, len(ids))
    return Order(ids[taken], np.concatenate(([0], np.cumsum(lengths))).astype(np.int64))
