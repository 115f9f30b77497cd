"""Large files that an unmodified program opens by path and reads whole, twice: with prefeed and without.

On a directory whose opens take 20 ms and whose reads take 2 ms, where the kernel forgets the files between the passes, prefeed has blocks
of them for the second pass. Files in the page cache are the program's own: there prefeed may not cost anything.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from prefeed_bench.cases.quick import empty_home
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.processes import run_program

_SCRIPT: Final = "large_files.py"
_FILES: Final = 6
_QUICK_FILES: Final = 2
_FILE_BYTES: Final = 96 << 20
_READ_SECONDS: Final = 0.002
_PIECE_BYTES: Final = 1 << 20

NOTES: Final = (
    "files of 96 MiB, which are cached in blocks, read in pieces of 1 MiB by open(path); PREFEED_READS=all, no server before",
    "slow: a directory whose opens take 20 ms, each request for bytes 2 ms; the kernel forgets the files between the passes; first, second: MB/s of the passes",
    "cached: the same files in the page cache; cached_over_plain: seconds with prefeed over those without, the worse pass",
)

Passes = Sequence[Mapping[str, Any]]


def run(options: Options) -> BenchResult:
    """Measure two passes over large files, on slow storage and in the page cache."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-", dir="/dev/shm") as directory:
        root = _made(Path(directory, "data"), _QUICK_FILES if options.quick else _FILES)
        variants: dict[str, Callable[[], Passes]] = {
            "slow_plain": partial(_on_slow, root, with_prefeed=False),
            "slow": partial(_on_slow, root, with_prefeed=True),
            "cached_plain": partial(run_program, _SCRIPT, [os.fspath(root)]),
            "cached": partial(_with_prefeed, root, [os.fspath(root)]),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for slow_plain, slow, cached_plain, cached in zip(*(runs[name] for name in variants), strict=True):
        samples.add(**figures(slow_plain, slow, cached_plain, cached))
    return samples.result("large_files", runs, *NOTES)


def figures(slow_plain: Passes, slow: Passes, cached_plain: Passes, cached: Passes) -> dict[str, float]:
    """Return rates, and their ratios.

    Args:
        slow_plain: Two passes on slow storage without prefeed.
        slow: The same with it.
        cached_plain: Two passes over files in the page cache without prefeed.
        cached: The same with it.

    Raises:
        BenchFailedError: They saw other bytes.
    """
    if (
        len(
            {
                (each["bytes"], each["checksum"])
                for passes in (slow_plain, slow, cached_plain, cached)
                for each in passes
            }
        )
        > 1
    ):
        raise BenchFailedError("the variants saw different bytes")
    rate = {
        f"{name}_{number}_mb_s": each["bytes"] / each["seconds"] / 1e6
        for name, passes in (("plain", slow_plain), ("prefeed", slow))
        for number, each in zip(("first", "second"), passes, strict=True)
    }
    pairs = [*zip(cached, cached_plain, strict=True)]
    return {
        **rate,
        "cold_of_plain": rate["prefeed_first_mb_s"] / rate["plain_first_mb_s"],
        "second_of_plain": rate["prefeed_second_mb_s"] / rate["plain_second_mb_s"],
        "cached_over_plain": max(ours["seconds"] / plain["seconds"] for ours, plain in pairs),
        "cached_cpu_over_plain": max(ours["cpu_seconds"] / plain["cpu_seconds"] for ours, plain in pairs),
    }


def _made(root: Path, num_files: int) -> Path:
    root.mkdir()
    for number in range(num_files):
        with (root / f"{number}.bin").open("wb") as file:
            for _ in range(_FILE_BYTES // _PIECE_BYTES):
                file.write(os.urandom(_PIECE_BYTES))
        os.utime(root / f"{number}.bin", (1_600_000_000, 1_600_000_000))
    return root


def _on_slow(root: Path, *, with_prefeed: bool) -> Passes:
    with slow_mount(root, read_seconds=_READ_SECONDS) as slow:
        command = [os.fspath(slow.path), "--forget"]
        return _with_prefeed(slow.path, command) if with_prefeed else run_program(_SCRIPT, command)


def _with_prefeed(root: Path, command: Sequence[str]) -> Passes:
    with empty_home(root) as env:
        return run_program(_SCRIPT, command, prefeed_env={**env, "PREFEED_READS": "all"})
