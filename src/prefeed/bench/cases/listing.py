"""Making a dataset of 100,000 files in a local directory, beside torchvision's ``ImageFolder``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from torchvision import datasets as torchvision_datasets

from prefeed.bench.harness import BenchResult, Options, Samples, alternate
from prefeed.bench.home import Home, temporary_home
from prefeed.bench.requirements import BenchFailedError
from prefeed.datasets.images import ImageFolder
from prefeed.sources.library import ManifestLibrary

_LAYOUTS: Final = {"wide": (1000, 100), "deep": (10, 10_000)}
"""Class folders, and files in each."""

_QUICK: Final = 10
_HOUR: Final = 3600


def run(options: Options) -> BenchResult:
    """Measure torchvision, prefeed's first dataset and one made again, each also until it is ready to be read."""
    samples, runs = Samples(), {}
    for layout, (num_classes, each) in _LAYOUTS.items():
        with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory, temporary_home() as home:
            root = _make(Path(directory), num_classes // (_QUICK if options.quick else 1), each)
            done = alternate(_variants(root, home), runs=options.runs, say=options.say)
        for times in zip(*done.values(), strict=True):
            of = dict(zip(done, times, strict=True))
            samples.add(**{f"{layout}_{name}_ms": 1000 * seconds for name, seconds in of.items()})
            samples.add(
                **{
                    f"{layout}_{name}_of_torchvision": of[name] / of["torchvision"]
                    for name in of
                    if name != "torchvision"
                }
            )
        runs.update({f"{layout}_{name}": times for name, times in done.items()})
    return BenchResult(
        name="listing",
        fields=samples.medians(),
        spread=samples.spread(),
        runs=runs,
        notes=(
            "wide: 1,000 folders of 100 files; deep: 10 folders of 10,000; files and directories are in the page cache",
            "first: the root was never listed in this home; again: nothing changed, names are checked by directory",
            "ready, first_ready: the same, and sizes and times of all files are known, so that samples may be read",
        ),
    )


def _variants(root: Path, home: Home) -> dict[str, Callable[[], float]]:
    library = ManifestLibrary(home.config.home)
    expected = len(torchvision_datasets.ImageFolder(str(root)).samples)

    def timed(make: Callable[[], Any], *, ready: bool = False) -> float:
        started = time.perf_counter()
        made = make()
        if ready:
            made.prefeed_state()
        seconds = time.perf_counter() - started
        if len(made) != expected:
            raise BenchFailedError(f"{len(made)} of {expected} files were found")
        if isinstance(made, ImageFolder):
            made.prefeed_state()  # what is asked for aside is not to slow the next one down
        return seconds

    def own() -> ImageFolder:
        return ImageFolder(root, config=home.config)

    def first(*, ready: bool = False) -> float:
        library.forget(str(root))
        return timed(own, ready=ready)

    return {
        "torchvision": lambda: timed(lambda: torchvision_datasets.ImageFolder(str(root))),
        "first": first,
        "again": lambda: timed(own),
        "ready": lambda: timed(own, ready=True),
        "first_ready": lambda: first(ready=True),
    }


def _make(root: Path, num_classes: int, each: int) -> Path:
    """Write empty files; their directories were last changed an hour ago."""
    for number in range(num_classes):
        folder = root / f"class{number:04}"
        folder.mkdir()
        for index in range(each):
            (folder / f"image_{index:06}.jpg").touch()
        os.utime(folder, (0, time.time() - _HOUR))
    os.utime(root, (0, time.time() - _HOUR))
    return root
