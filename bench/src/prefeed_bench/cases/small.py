"""A million small values in memory: prefeed's tier next to LMDB and files in a tmpfs."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import numpy as np

from prefeed.store.log import LogReader, LogWriter
from prefeed.store.memory import MemoryFiles
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate

_SIZES: Final = (100, 1000)
_NUM_VALUES: Final = 1_000_000
_QUICK_VALUES: Final = 2_000
_GROUP: Final = 64
"""Values of one put, as the server stores what has arrived."""

_FILES_A_DIRECTORY: Final = 1000
_TMPFS: Final = Path("/dev/shm")

Item = tuple[bytes, bytes]


class Store(NamedTuple):
    """What is measured of a store."""

    put: Callable[[Sequence[Item]], None]
    get: Callable[[bytes], bytes | None]
    taken_bytes: Callable[[], int]


def run(options: Options) -> BenchResult:
    """Measure puts in groups, hits in random order, and memory per value."""
    num_values = _QUICK_VALUES if options.quick else _NUM_VALUES
    keys = [blake2b(number.to_bytes(8, "little"), digest_size=16).digest() for number in range(num_values)]
    stores = {"prefeed": _log, "lmdb": _lmdb, "files": _files}
    variants = {
        f"{name}_{size}": partial(_measure, store, keys, size) for size in _SIZES for name, store in stores.items()
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for rounds in zip(*runs.values(), strict=True):
        found: dict[str, float] = {}
        for name, measured in zip(runs, rounds, strict=True):
            found |= {f"{name}_{field}": value for field, value in measured.items()}
        samples.add(**found)
    return samples.result(
        "small",
        runs,
        f"{num_values} values of 100 and of 1,000 bytes; put in groups of {_GROUP}, read as bytes in random order; "
        "processor time of one process",
        "bytes_per_value: allocated; of files without their inodes and names, of which the kernel has about 1 KB each",
    )


def _measure(
    store: Callable[[int], AbstractContextManager[Store]], keys: Sequence[bytes], size: int
) -> dict[str, float]:
    value = os.urandom(size)
    order = np.random.default_rng(1).permutation(len(keys)).tolist()
    with store(len(keys) * (size + 4096)) as opened:
        started = time.process_time()
        for first in range(0, len(keys), _GROUP):
            opened.put([(key, value) for key in keys[first : first + _GROUP]])
        put_seconds, started = time.process_time() - started, time.process_time()
        num_found = sum(opened.get(keys[number]) is not None for number in order)
        get_seconds = time.process_time() - started
        if num_found < len(keys):
            raise BenchFailedError(f"only {num_found} of {len(keys)} values were found")
        taken = opened.taken_bytes()
    return {
        "us_per_put": put_seconds * 1e6 / len(keys),
        "us_per_hit": get_seconds * 1e6 / len(keys),
        "bytes_per_value": taken / len(keys),
    }


@contextmanager
def _log(most_bytes: int) -> Iterator[Store]:
    files = MemoryFiles()
    try:
        writer = LogWriter(files.index, files.segments, budget_bytes=most_bytes)
        reader = LogReader(files.index, files.segments)
        yield Store(
            lambda items: writer.put_many([(key, value, False) for key, value in items]), reader.get, writer.file_bytes
        )
    finally:
        files.close()


@contextmanager
def _lmdb(most_bytes: int) -> Iterator[Store]:
    with (
        tempfile.TemporaryDirectory(dir=_TMPFS) as directory,
        lmdb.open(directory, map_size=most_bytes + 2**24, writemap=True, sync=False, metasync=False) as environment,
    ):

        def put(items: Sequence[Item]) -> None:
            with environment.begin(write=True) as transaction:
                for key, value in items:
                    transaction.put(key, value)

        def get(key: bytes) -> bytes | None:
            with environment.begin() as transaction:
                found: bytes | None = transaction.get(key)
                return found

        yield Store(put, get, lambda: (environment.info()["last_pgno"] + 1) * environment.stat()["psize"])


@contextmanager
def _files(_: int) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir=_TMPFS) as directory:
        paths: dict[bytes, str] = {}

        def put(items: Sequence[Item]) -> None:
            for key, value in items:
                number = len(paths)
                if number % _FILES_A_DIRECTORY == 0:
                    os.mkdir(f"{directory}/{number // _FILES_A_DIRECTORY}")
                paths[key] = f"{directory}/{number // _FILES_A_DIRECTORY}/{number}"
                with open(paths[key], "wb", buffering=0) as file:
                    file.write(value)

        def get(key: bytes) -> bytes:
            with open(paths[key], "rb", buffering=0) as file:
                return file.read()

        yield Store(put, get, lambda: sum(os.stat(path).st_blocks * 512 for path in paths.values()))
