"""What the tests of packing share: files to pack, and packs read back."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from prefeed.config import current
from prefeed.packing.driver import PackRequest, PackResult, pack
from prefeed.sources.urls import open_source, pack_url
from source_contract import list_all

SIZES = (0, 1, 511, 512, 513, 1500, 4096, 9000, 70_000)
LAYOUTS = ("webdataset", "tfrecord", "lmdb")


def make_files(root: Path, *, samples: int = 30) -> dict[str, bytes]:
    """Write samples of two files each, in directories of odd names; return bytes by path."""
    rng = random.Random(7)
    files: dict[str, bytes] = {}
    for i in range(samples):
        key = f"{('cat', 'dog v1.2', 'größe')[i % 3]}/{i:04}"
        files[f"{key}.jpg"] = rng.randbytes(SIZES[i % len(SIZES)])
        files[f"{key}.seg.PNG"] = rng.randbytes(100 + i)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return files


def packed(source: Path | str, out: Path | str, layout: str, **options: Any) -> PackResult:
    return pack(PackRequest(source=str(source), out=str(out), layout=layout, **options), current())


def read_back(out: Path | str) -> dict[str, bytes]:
    """Return every object of a pack by path, each fetched by itself."""
    source = open_source(pack_url(out), current())
    try:
        return {path: bytes(source.fetch(path).data) for path in list_all(source)}
    finally:
        source.close()


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def shards(layout: str) -> dict[str, int]:
    """Return the options that make several data files of the few bytes of a test."""
    return {} if layout == "lmdb" else {"shard_bytes": 60_000}
