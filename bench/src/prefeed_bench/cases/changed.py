"""Epochs over files that changed, over a mount that was made again at the same path, and of the next run of a learned dataset."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from prefeed_bench.cases.quick import empty_home, make_files, stop_server
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.processes import run_program

FILES: Final = 1_500
QUICK_FILES: Final = 100

NOTES: Final = (
    "files of 4 KB, 20 ms an open, batch 64, 2 workers; python (plain_s) and prefeed run, settings as they are; seconds of an epoch",
    "cold_s: empty home, no server; touched_*: all files touched before the epoch, in one run and between two; warm_s: nothing changed",
    "remounted_s: the mount ended and made again at the same path before the run",
    "learned_*: the dataset lists no files; first and next run, between which the server ended",
)

Seconds = dict[str, float]


def run(options: Options) -> BenchResult:
    """Measure the epochs, each kind in turn.

    Raises:
        MissingRequirementError: FUSE or the right to mount is missing.
    """
    if os.geteuid() != 0:
        raise MissingRequirementError("this benchmark mounts a directory twice at one path: run it as root")
    num_files = QUICK_FILES if options.quick else FILES
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        root, point = make_files(Path(directory) / "data", num_files), Path(directory) / "mount"
        point.mkdir()
        variants: dict[str, Callable[[], Seconds]] = {
            name: partial(measure, root, point, num_files)
            for name, measure in (("plain", _plain), ("declared", _declared), ("learned", _learned))
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for seconds in zip(*runs.values(), strict=True):
        found = {name: value for part in seconds for name, value in part.items()}
        changed = max(found["touched_in_run_s"], found["touched_between_runs_s"])
        samples.add(**found, touched_over_cold=changed / found["cold_s"])
    return samples.result("changed", runs, *NOTES, files=num_files)


def _plain(root: Path, point: Path, num_files: int) -> Seconds:
    with _mounted(root, point):
        return {"plain_s": _epochs(point, num_files)[0]}


def _declared(root: Path, point: Path, num_files: int) -> Seconds:
    with empty_home(point) as env:
        with _mounted(root, point):
            cold, touched = _epochs(point, num_files, "--epochs", "2", "--touch", str(root), "--declared", env=env)
            for file in root.iterdir():
                file.touch()
            [again] = _epochs(point, num_files, "--declared", env=env)
            [warm] = _epochs(point, num_files, "--declared", env=env)
        with _mounted(root, point):
            [remounted] = _epochs(point, num_files, "--declared", env=env)
    return {
        "cold_s": cold, "touched_in_run_s": touched, "touched_between_runs_s": again, "warm_s": warm, "remounted_s": remounted,
    }  # fmt: skip


def _learned(root: Path, point: Path, num_files: int) -> Seconds:
    with empty_home(point) as env, _mounted(root, point):
        [first] = _epochs(point, num_files, env=env)
        stop_server(env)
        [following] = _epochs(point, num_files, env=env)
    return {"learned_first_s": first, "learned_next_s": following}


def _epochs(point: Path, num_files: int, *more: str, env: dict[str, str] | None = None) -> Sequence[float]:
    """Return the seconds of each epoch of the script."""
    command = [str(point), "--files", str(num_files), *(() if "--epochs" in more else ("--epochs", "1")), *more]
    return [epoch["seconds"] for epoch in run_program("small_files.py", command, prefeed_env=env)]


@contextlib.contextmanager
def _mounted(root: Path, point: Path) -> Iterator[None]:
    """Show the directory at a path with slow opens, each time as another file system."""
    with slow_mount(root, remember_seconds=0) as slow:
        subprocess.run(["mount", "--bind", slow.path, point], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", point], check=True)
