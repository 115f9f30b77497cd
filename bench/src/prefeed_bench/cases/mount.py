"""`prefeed mount` beside what programs that are not Python read today: rclone's mount, and files in memory."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from prefeed.client.node import NodeClient
from prefeed.mount import start_mount, stop_mount
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.fuse_mount import rclone_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home, temporary_home
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.s3_origin import Bucket, environment, photo_bucket, s3_bucket

_LATENCY_SECONDS: Final = 0.02
_READERS: Final = 8
_MOST_FILES: Final = 1000
_PIECE_BYTES: Final = 1 << 20
_LARGE_BYTES: Final = 1 << 30
_TOKEN_BYTES: Final = 2 << 30
_WINDOW_BYTES: Final = 4096
_WINDOWS: Final = 20_000
_FIRST_WINDOWS: Final = 50
_COLD_WINDOWS: Final = 1000
_QUICK: Final = 8

NOTES: Final = (
    "one S3 endpoint with 20 ms per request for both mounts; every pass reads the same files in the same random order",
    "cold: prefeed: from `prefeed warm` of the bucket to the end of the first pass; rclone: the first pass, --vfs-cache-mode=full",
    "warm: open, read and close of each file, one reader, and eight that read disjoint parts; files: the same on tmpfs",
    "sequential: a file of 1 GiB of this machine in pieces of 1 MiB, on the mount of its directory and itself; in the page cache",
    "store: the same file in a bucket, first pass and second; the kernel forgets it between them, so the second comes from the tier",
)


def run(options: Options) -> BenchResult:
    """Measure small files, warm and cold, and one large file."""
    photos = options.photos()
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-", dir="/dev/shm") as memory:
        size = _LARGE_BYTES // (_QUICK if options.quick else 1)
        large = _written(Path(memory, "large", "data.bin"), size)
        names = _order(photos)
        files = _copied(photos, names, Path(memory, "files"))
        with photo_bucket(photos, _LATENCY_SECONDS) as bucket:
            variants: dict[str, Callable[[], dict[str, float]]] = {
                "prefeed": lambda: _prefeed(bucket, photos, names),
                "rclone": lambda: _rclone(bucket, names),
                "files": lambda: {"files_us_per_file": _pass(files, names)},
                "large": lambda: _sequential(large),
            }
            with s3_bucket(Path(memory), "large", _LATENCY_SECONDS) as store:
                variants["large_of_store"] = lambda: _sequential_of_store(store, large.name)
                runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for done in zip(*runs.values(), strict=True):
        figures = {name: value for part in done for name, value in part.items()}
        figures["cold_over_rclone"] = figures["rclone_cold_us_per_file"] / figures["cold_us_per_file"]
        samples.add(**figures)
    return samples.result("mount", runs, *NOTES)


def run_tokens(options: Options) -> BenchResult:
    """Measure random windows of a mapped file of tokens: local and warm, and cold out of a bucket."""
    size = _TOKEN_BYTES // (_QUICK if options.quick else 1)
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-", dir="/dev/shm") as memory:
        tokens = _written(Path(memory, "tokens", "train.bin"), size)
        starts = [random.Random(number).randrange(size - _WINDOW_BYTES) for number in range(_WINDOWS)]
        with s3_bucket(Path(memory), "tokens", _LATENCY_SECONDS) as bucket, environment(bucket.env):
            variants: dict[str, Callable[[], dict[str, float]]] = {
                "local": lambda: _windows_of_local(tokens, starts),
                "prefeed": lambda: _cold_windows_of_prefeed(bucket, starts),
                "rclone": lambda: _cold_windows_of_rclone(bucket, starts),
            }
            runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for done in zip(*runs.values(), strict=True):
        figures = {name: value for part in done for name, value in part.items()}
        figures["warm_of_tmpfs"] = figures["tmpfs_us_per_window"] / figures["warm_us_per_window"]
        for kind in ("cold", "first"):
            figures[f"{kind}_over_rclone"] = figures[f"rclone_{kind}_us_per_window"] / figures[f"{kind}_us_per_window"]
        samples.add(**figures)
    return samples.result(
        "tokens",
        runs,
        "windows of 4 KiB at random places of a mapped file of 2 GiB; np.memmap, as nanoGPT and Megatron read",
        "warm: on the mount of a directory on tmpfs, which the kernel reads by itself; tmpfs: the file itself",
        "cold: the first 1,000 windows of the object in a bucket with 20 ms per request, first: the first 50 of them; "
        "rclone: --vfs-cache-mode=full, which reads ahead at each place",
    )


@contextlib.contextmanager
def _mounted(url: str, home: Home) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="prefeed-mount-") as point:
        mounting = start_mount(url, point, home.config)
        try:
            yield Path(point)
        finally:
            stop_mount(point, lazily=True)
            mounting.holder.wait()


def _prefeed(bucket: Bucket, photos: PhotoFolder, names: Sequence[str]) -> dict[str, float]:
    with temporary_home(2 * photos.total_bytes) as home, _mounted(bucket.url, home) as point:
        started = time.perf_counter()
        with NodeClient.connect(home.config) as node:
            node.warm(bucket.url)
        _pass(point, names)
        cold = time.perf_counter() - started
        return {
            "cold_us_per_file": cold / photos.num_photos * 1e6,
            "warm_us_per_file": _pass(point, names),
            "warm_8_us_per_file": _pass_of_many(point, names),
        }


def _rclone(bucket: Bucket, names: Sequence[str]) -> dict[str, float]:
    with rclone_mount(bucket, "full") as point:
        return {
            "rclone_cold_us_per_file": _pass(point, names[: len(names) // 4]),
            "rclone_warm_us_per_file": _pass(point, names[: len(names) // 4]),
        }


def _pass(root: Path, names: Sequence[str]) -> float:
    """Return the microseconds that opening, reading and closing a file takes, on average."""
    paths = [os.path.join(root, name) for name in names]
    started = time.perf_counter()
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            if not os.read(file, _PIECE_BYTES):
                raise BenchFailedError(f"{path} is empty")
        finally:
            os.close(file)
    return (time.perf_counter() - started) / len(paths) * 1e6


def _pass_of_many(root: Path, names: Sequence[str]) -> float:
    """Return the same for eight processes, by the time until the last one has read its part."""
    parts = [(root, names[number::_READERS]) for number in range(_READERS)]
    with multiprocessing.get_context("spawn").Pool(_READERS) as pool:
        pool.starmap(_pass, parts)  # they have started
        started = time.perf_counter()
        pool.starmap(_pass, parts, chunksize=1)
        return (time.perf_counter() - started) / len(names) * 1e6


def _sequential(large: Path) -> dict[str, float]:
    with temporary_home() as home, _mounted(str(large.parent), home) as point:
        return {
            "sequential_gb_s": _gb_per_second(point / large.name),
            "sequential_file_gb_s": _gb_per_second(large),
        }


def _sequential_of_store(bucket: Bucket, name: str) -> dict[str, float]:
    with environment(bucket.env), temporary_home() as home, _mounted(bucket.url, home) as point:
        return {
            "store_cold_gb_s": _gb_per_second(point / name),
            "store_warm_gb_s": _gb_per_second(point / name),
        }


def _gb_per_second(path: Path) -> float:
    """Return the rate of reading a file in pieces; the kernel forgets what it kept of it."""
    piece = bytearray(_PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        started, size = time.perf_counter(), 0
        while count := file.readinto(piece):
            size += count
        seconds = time.perf_counter() - started
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return size / seconds / 1e9


def _windows_of_local(tokens: Path, starts: Sequence[int]) -> dict[str, float]:
    with temporary_home() as home, _mounted(str(tokens.parent), home) as point:
        _windows(point / tokens.name, starts)
        return {
            "warm_us_per_window": _windows(point / tokens.name, starts),
            "tmpfs_us_per_window": _windows(tokens, starts),
        }


def _cold_windows_of_prefeed(bucket: Bucket, starts: Sequence[int]) -> dict[str, float]:
    with temporary_home() as home, _mounted(bucket.url, home) as point:
        return _cold_windows(point / "train.bin", starts, prefix="")


def _cold_windows_of_rclone(bucket: Bucket, starts: Sequence[int]) -> dict[str, float]:
    with rclone_mount(bucket, "full") as point:
        return _cold_windows(point / "train.bin", starts, prefix="rclone_")


def _cold_windows(path: Path, starts: Sequence[int], *, prefix: str) -> dict[str, float]:
    first = _windows(path, starts[:_FIRST_WINDOWS])
    others = _windows(path, starts[_FIRST_WINDOWS:_COLD_WINDOWS])
    mean = (first * _FIRST_WINDOWS + others * (_COLD_WINDOWS - _FIRST_WINDOWS)) / _COLD_WINDOWS
    return {f"{prefix}first_us_per_window": first, f"{prefix}cold_us_per_window": mean}


def _windows(path: Path, starts: Sequence[int]) -> float:
    mapped = np.memmap(path, np.uint8, mode="r")
    total, started = 0, time.perf_counter()
    for start in starts:
        total += int(mapped[start : start + _WINDOW_BYTES][-1]) + len(bytes(mapped[start : start + _WINDOW_BYTES]))
    seconds = time.perf_counter() - started
    if total < len(starts) * _WINDOW_BYTES:
        raise BenchFailedError(f"{path} is shorter than it was")
    return seconds / len(starts) * 1e6


def _order(photos: PhotoFolder) -> list[str]:
    names = sorted(photos.sizes)
    random.Random(0).shuffle(names)
    return names[:_MOST_FILES]


def _copied(photos: PhotoFolder, names: Sequence[str], target: Path) -> Path:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes((photos.root / name).read_bytes())
    return target


def _written(path: Path, size_bytes: int) -> Path:
    path.parent.mkdir()
    piece = os.urandom(_PIECE_BYTES)
    with path.open("wb") as file:
        for _ in range(size_bytes // _PIECE_BYTES):
            file.write(piece)
    return path
