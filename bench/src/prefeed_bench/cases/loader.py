"""The third seed's experiments: what engineers do by hand for a loader, each and together, as shares of the time without.

Two epochs over the pictures each. One: helpers around the loader, on a slow disk. Two: where the files are. Three: leaner
preprocessing. And prefeed, alone and with the latter.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefeed_bench.charts import write_bars
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import run_program

_EPOCHS: Final = 2
_USUAL: Final = ("--workers", "4")
_QUICK: Final = ("--workers", "1", "--batch-size", "4", "--step-ms", "3")
_MEMORY: Final = Path("/dev/shm")

NOTES: Final = (
    "seconds of two epochs, start of the workers included, over those of the job as it is: lower is better",
    "slow disk: 20 ms per open; 4 workers, batches of 64, a device that is busy for 50 ms per batch",
    "background: prefeed.BackgroundGenerator; device: prefeed.DevicePrefetcher, which without a GPU hands batches through",
    "prefeed: prefeed run, from an empty cache, started before; all together: with lean preprocessing and a background thread",
    "lean: prefeed.vision, and bytes instead of floats in the batches, for the device to normalise",
    "the third experiment is on the local disk, where preprocessing is what takes the time",
)

_LABELS: Final = {
    "original": "original",
    "background": "(1) background",
    "device": "(2) device prefetch",
    "both": "(1) + (2)",
    "prefeed": "prefeed",
    "all_together": "prefeed + lean + (1)",
    "disk": "local disk",
    "tmpfs": "tmpfs",
    "lean": "lean preprocessing",
}


def run(options: Options) -> BenchResult:
    """Run all variants in turn, and draw the three charts."""
    photos = options.photos()
    with _memory_copy(photos) as in_memory:
        variants = _variants(photos, in_memory, _QUICK if options.quick else _USUAL)
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        samples.add(**_figures({name: _seconds(epochs[number]) for name, epochs in runs.items()}))
    result = samples.result("loader", runs, *NOTES)
    for path in write_charts(result, options.charts_dir):
        options.say(f"chart: {path}")
    return result


def _variants(
    photos: PhotoFolder, in_memory: Path, size: Sequence[str]
) -> Mapping[str, Callable[[], list[dict[str, Any]]]]:
    local = str(photos.root)
    return {
        "original": lambda: _slow(photos, *size),
        "background": lambda: _slow(photos, "--background", *size),
        "device": lambda: _slow(photos, "--device", *size),
        "both": lambda: _slow(photos, "--background", "--device", *size),
        "prefeed": lambda: _slow(photos, *size, is_served=True),
        "all_together": lambda: _slow(photos, "--background", "--lean", *size, is_served=True),
        "disk": lambda: _job(local, *size),
        "tmpfs": lambda: _job(str(in_memory), *size),
        "lean": lambda: _job(local, "--lean", *size),
    }


def _job(data: str, *arguments: str, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    line = [data, "--train", "--epochs", str(_EPOCHS), *arguments]
    return run_program("job.py", line, prefeed_env=env)


def _slow(photos: PhotoFolder, *arguments: str, is_served: bool = False) -> list[dict[str, Any]]:
    """Run the job on a slow mount of its own: nothing of it is in the kernel's cache."""
    with slow_mount(photos.root) as slow:
        if not is_served:
            return _job(str(slow.path), *arguments)
        with temporary_home() as home:
            return _job(str(slow.path), *arguments, env={**home.env, "PREFEED_ROOTS": str(slow.path)})


@contextlib.contextmanager
def _memory_copy(photos: PhotoFolder) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-", dir=_MEMORY) as directory:
        copy = Path(directory) / "images"
        shutil.copytree(photos.root, copy)
        yield copy


def _seconds(epochs: Sequence[Mapping[str, Any]]) -> float:
    return sum(float(epoch["seconds"]) for epoch in epochs)


def _figures(seconds: Mapping[str, float]) -> dict[str, float]:
    slow, disk = seconds["original"], seconds["disk"]
    relative = {name: value / slow for name, value in seconds.items() if name not in ("original", "lean")}
    return {"original_seconds": slow, **relative, "disk_seconds": disk, "lean": seconds["lean"] / disk}


def write_charts(result: BenchResult, directory: Path) -> list[Path]:
    """Draw one bar chart an experiment; return their paths."""
    experiments = {
        "helpers": ("Helpers around the loader, slow disk (20 ms per open)", ["background", "device", "both", "prefeed",
                                                                              "all_together"], "original"),
        "storage": ("Where the files are", ["disk", "tmpfs", "prefeed"], "slow disk"),
        "preprocessing": ("Preprocessing, local disk", ["lean"], "original"),
    }  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, (title, fields, base) in experiments.items():
        rows = [(base, 1.0, (1.0, 1.0))]
        for field in fields:
            value = result.fields[field]
            assert isinstance(value, float)
            rows.append((_LABELS[field], value, result.spread[field]))
        path = directory / f"loader-{name}.png"
        paths.append(write_bars(title, "time of two epochs, relative", rows, path, digits=2, plain=base))
    return paths
