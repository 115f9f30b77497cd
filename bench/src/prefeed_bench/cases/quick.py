"""Epochs over files that storage gives at once, and the first epoch on slow storage without a server: both against plain torch.

prefeed may not make either slower. A dataset that declares nothing and one that lists its files, without workers and with two.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import ServerUnavailableError
from prefeed.wire.endpoint import remove_runtime_dirs
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.processes import run_program
from prefeed_bench.slow_directory import slow_directory

FILES: Final = 20_000
QUICK_FILES: Final = 1_000
FILE_BYTES: Final = 4096
START_FILES: Final = 300
OPEN_SECONDS: Final = 0.005

KINDS: Final = {
    "undeclared_0": ["--workers", "0"],
    "undeclared_2": ["--workers", "2"],
    "declared_0": ["--workers", "0", "--declared"],
    "declared_2": ["--workers", "2", "--declared"],
}

NOTES: Final = (
    "files of 4 KB in the page cache, batch 64; prefeed run, settings as they are, no server before",
    "an epoch is timed from iter(loader) on, the start of the workers included",
    "*_over_plain: seconds of an epoch over those of python; first and second alone: the worst of the four kinds",
    "*_cpu_over_plain: the same of processor time, which other programs disturb less",
)

START_NOTES: Final = (
    "300 files of 4 KB, 5 ms an open, batch 32, empty home, no server; python and prefeed run",
    "first_over_plain: seconds of the first epoch over those of python, the worst of the four kinds",
    "first_request_s: from iter(loader) to the first sample that is asked for, declared_2; plain_first_request_s: of python",
)

Epochs = Sequence[Mapping[str, Any]]


def run(options: Options) -> BenchResult:
    """Measure two epochs over files in the page cache."""
    num_files = QUICK_FILES if options.quick else FILES
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        root = make_files(Path(directory) / "data", num_files)
        variants: dict[str, Callable[[], Epochs]] = {}
        for kind, arguments in KINDS.items():
            command = [str(root), "--files", str(num_files), *arguments]
            variants[f"{kind}_plain"] = partial(run_program, "small_files.py", command)
            variants[kind] = partial(run_prefeed, command, root)
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        samples.add(**ratios({kind: (runs[kind][number], runs[f"{kind}_plain"][number]) for kind in KINDS}))
    return samples.result("quick", runs, *NOTES, files=num_files)


def run_start(options: Options) -> BenchResult:
    """Measure the first epoch on slow storage, with no server there."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        root = make_files(Path(directory) / "data", START_FILES)
        variants: dict[str, Callable[[], Epochs]] = {}
        for kind, arguments in KINDS.items():
            more = ["--files", str(START_FILES), "--epochs", "1", "--batch-size", "32", *arguments]
            variants[f"{kind}_plain"] = partial(on_slow, root, more, with_prefeed=False)
            variants[kind] = partial(on_slow, root, more, with_prefeed=True)
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        over_plain = ratios({kind: (runs[kind][number], runs[f"{kind}_plain"][number]) for kind in KINDS})
        samples.add(
            **over_plain,
            first_request_s=runs["declared_2"][number][0]["first_request_seconds"],
            plain_first_request_s=runs["declared_2_plain"][number][0]["first_request_seconds"],
        )
    return samples.result("start", runs, *START_NOTES)


def ratios(kinds: Mapping[str, tuple[Epochs, Epochs]]) -> dict[str, float]:
    """Return seconds and processor seconds of each epoch over those of plain torch, the worst kind's and each kind's own.

    Args:
        kinds: Epochs with prefeed and without, by kind.

    Raises:
        BenchFailedError: They saw other bytes.
    """
    found: dict[str, float] = {}
    for kind, (ours, plain) in kinds.items():
        if [epoch["checksum"] for epoch in ours] != [epoch["checksum"] for epoch in plain]:
            raise BenchFailedError(f"{kind}: the variants saw different batches")
        for number, epoch, without in zip(("first", "second"), ours, plain, strict=False):
            for measure, name in (("seconds", "over_plain"), ("cpu_seconds", "cpu_over_plain")):
                ratio = epoch[measure] / without[measure]
                found[f"{kind}_{number}_{name}"] = ratio
                found[f"{number}_{name}"] = max(ratio, found.get(f"{number}_{name}", 0.0))
    return found


def make_files(root: Path, num_files: int) -> Path:
    """Write numbered files that differ, which leaves them in the page cache; return the root."""
    root.mkdir()
    for number in range(num_files):
        (root / f"{number:06d}.bin").write_bytes(number.to_bytes(8, "little") * (FILE_BYTES // 8))
    return root


def run_prefeed(command: Sequence[str], root: Path) -> Epochs:
    """Run the script under ``prefeed run`` in an empty home, without a server."""
    with empty_home(root) as env:
        return run_program("small_files.py", command, prefeed_env=env)


def on_slow(root: Path, more: Sequence[str], *, with_prefeed: bool) -> Epochs:
    """Run the script on a directory whose opens are slow.

    Raises:
        MissingRequirementError: FUSE is missing.
    """
    with slow_directory(root, open_seconds=OPEN_SECONDS) as slow:
        command = [str(slow.path), *more]
        return run_prefeed(command, slow.path) if with_prefeed else run_program("small_files.py", command)


@contextlib.contextmanager
def empty_home(root: Path) -> Iterator[dict[str, str]]:
    """Give the environment of an empty home whose server, if the block starts one, is stopped at its end."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as home:
        env = {"PREFEED_HOME": home, "PREFEED_ROOTS": os.fspath(root), "PREFEED_METRICS": "0"}
        try:
            yield env
        finally:
            remove_runtime_dirs(stop_server(env))


def stop_server(env: Mapping[str, str]) -> Config:
    """Stop the server of a home, if one runs, and return its settings."""
    config = resolve({name.removeprefix("PREFEED_").lower(): value for name, value in env.items()})
    with contextlib.suppress(ServerUnavailableError), NodeClient.connect(config, autostart=False) as client:
        client.stop()
    return config
