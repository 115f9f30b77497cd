"""Slices of 4 KB out of files of 60 MB, all in the memory tier, beside the same files of a local disk."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.processes import run_program

_NUM_FILES: Final = 4
_FILE_BYTES: Final = 60_000_000
_NUM_SLICES: Final = 20_000
_QUICK: Final = 100
"""Divisor of the size of files and of the number of slices of the quick variant."""

NOTES: Final = (
    "an epoch is timed from iter(loader) on, the start of two workers included; batch 64, 4 files of 60 MB, 20,000 slices",
    "plain: the last of three epochs without prefeed, files in the page cache; prefeed: the last of three under prefeed run",
    "first: its first epoch, which has the files fetched; over_plain: seconds of prefeed over seconds of plain",
)


def run(options: Options) -> BenchResult:
    """Measure a script that knows nothing of prefeed, with and without."""
    scale = _QUICK if options.quick else 1
    num_slices = _NUM_SLICES // scale
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        _write_files(Path(directory), _FILE_BYTES // scale)
        arguments = [directory, "--slices", str(num_slices), "--epochs", "3"]
        runs = alternate(
            {"plain": lambda: run_program("slices.py", arguments), "prefeed": lambda: _prefeed(directory, arguments)},
            runs=options.runs,
            say=options.say,
        )
    return _result(runs)


def _write_files(root: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(_NUM_FILES):
        (root / f"{number}.bin").write_bytes(rng.bytes(size))


def _prefeed(root: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    with temporary_home(2 * _NUM_FILES * _FILE_BYTES, roots=root) as home:
        return run_program("slices.py", arguments, prefeed_env=home.env)


def _result(runs: Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]) -> BenchResult:
    samples = Samples()
    for plain, prefeed in zip(runs["plain"], runs["prefeed"], strict=True):
        if [epoch["checksum"] for epoch in plain] != [epoch["checksum"] for epoch in prefeed]:
            raise BenchFailedError("the variants saw different slices")
        count = plain[0]["slices"]
        samples.add(
            plain_us_per_slice=plain[-1]["seconds"] / count * 1e6,
            prefeed_us_per_slice=prefeed[-1]["seconds"] / count * 1e6,
            first_us_per_slice=prefeed[0]["seconds"] / count * 1e6,
            over_plain=prefeed[-1]["seconds"] / plain[-1]["seconds"],
        )
    return samples.result("slices", runs, *NOTES)
