"""``prefeed run train.py`` on a directory whose opens are slow: the script is not touched, the cache is empty.

Two kinds of script. One lists its files (torchvision's ``ImageFolder``), so that the order of the first epoch is known
before it begins. The other computes each path inside the sample, so that the first epoch can only teach which files
belong to which sample.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import run_program

PLAIN_BATCHES: Final = 10
"""Batches of the slow variant: its rate is even, and the whole epoch would take most of the benchmark's time."""
_NUMBERED: Final = 640
"""Pictures of the script that computes its paths."""
_OPENED: Final = 10
"""Files of the slow directory that the script that times ``open`` reads beside."""

NOTES: Final = (
    "an epoch is timed from iter(loader) on, the start of the workers included; batch 64, 2 workers",
    "plain: the first 10 batches of the slow directory without prefeed; local: the same files in the page cache",
    "prefeed: started empty before the run; prefeed_with_start_img_s counts that start as well",
    "numbered: 640 pictures whose paths are computed inside the sample; the first epoch teaches, the second is served",
    "opens_per_file: opens of the slow directory in two epochs; 1 = the second epoch opened nothing",
    "open_us: open and close of a file outside the roots, inside a served sample; interception_overhead_us: what is added",
)


def run(options: Options) -> BenchResult:
    """Measure an unmodified script: slow directory, slow directory under ``prefeed run``, local directory."""
    photos = options.photos()
    root = photos.root
    numbered = ["--numbered", str(min(_NUMBERED, photos.num_photos))]
    with tempfile.NamedTemporaryFile(prefix="prefeed-bench-") as local:
        variants: dict[str, Callable[[], Run]] = {
            "plain": lambda: run_plain("train.py", root, ["--batches", str(PLAIN_BATCHES)]),
            "local": lambda: run_local("train.py", root),
            "prefeed": lambda: run_prefeed("train.py", root, ["--epochs", "2"]),
            "numbered_local": lambda: run_local("train.py", root, numbered),
            "numbered_prefeed": lambda: run_prefeed("train.py", root, [*numbered, "--epochs", "2"]),
            "open_plain": lambda: run_plain("open_cost.py", root, [local.name, str(_OPENED)]),
            "open_prefeed": lambda: run_prefeed("open_cost.py", root, [local.name, str(_OPENED)]),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(runs["local"] + runs["plain"] + runs["prefeed"])
    check_same_batches(runs["numbered_local"] + runs["numbered_prefeed"])
    _check_intercepted(runs["open_prefeed"])
    return _result(photos, runs)


def _check_intercepted(runs: Sequence[Run]) -> None:
    """Raise if the opens of the last epochs reached the slow directory: then nothing was there to be measured."""
    for run in runs:
        if run.opens > _OPENED:
            raise BenchFailedError(f"{_OPENED} files were opened {run.opens} times in spite of prefeed")


def _result(photos: PhotoFolder, runs: Mapping[str, Sequence[Run]]) -> BenchResult:
    samples = Samples()
    for number in range(len(runs["local"])):
        done = {name: of_variant[number] for name, of_variant in runs.items()}
        samples.add(**_listed(done["plain"], done["prefeed"], done["local"], photos.num_photos))
        samples.add(**_numbered(done["plain"], done["numbered_prefeed"], done["numbered_local"]))
        samples.add(**_open_cost(done["open_plain"], done["open_prefeed"]))
    detail = {name: [run.summary() for run in of_variant] for name, of_variant in runs.items()}
    return samples.result("zero_code", detail, *NOTES)


def _listed(plain: Run, prefeed: Run, local: Run, num_photos: int) -> dict[str, float]:
    return {
        "plain_img_s": plain.rate(0),
        "prefeed_img_s": prefeed.rate(0),
        "prefeed_warm_img_s": prefeed.rate(1),
        "local_img_s": local.rate(0),
        "of_local": prefeed.rate(0) / local.rate(0),
        "of_local_warm": prefeed.rate(1) / local.rate(0),
        "over_plain": prefeed.rate(0) / plain.rate(0),
        "prefeed_with_start_img_s": prefeed.rate(0, with_start=True),
        "opens_per_file": prefeed.opens / num_photos,
    }


def _numbered(plain: Run, prefeed: Run, local: Run) -> dict[str, float]:
    return {
        "numbered_first_img_s": prefeed.rate(0),
        "numbered_second_img_s": prefeed.rate(1),
        "numbered_local_img_s": local.rate(0),
        "numbered_first_over_plain": prefeed.rate(0) / plain.rate(0),
        "numbered_second_of_local": prefeed.rate(1) / local.rate(0),
    }


def _open_cost(plain: Run, prefeed: Run) -> dict[str, float]:
    # Not the first epoch: what a sample opens is only known, and served, from the second one on.
    without, replaced = (statistics.median(epoch["open_us"] for epoch in run.epochs[1:]) for run in (plain, prefeed))
    return {"open_us": without, "interception_overhead_us": replaced - without}


# ---------------------------------------------------------------- a program as it is, under prefeed run, and on files in the page cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process printed, an epoch per item, and the opens of the slow directory meanwhile."""

    epochs: Sequence[Mapping[str, Any]]
    opens: int = 0
    start_seconds: float = 0.0

    def rate(self, epoch: int, *, with_start: bool = False) -> float:
        """Return images per second."""
        found = self.epochs[epoch]
        rate: float = found["images"] / (found["seconds"] + (self.start_seconds if with_start else 0.0))
        return rate

    def summary(self) -> dict[str, Any]:
        """Return what goes into the result: all but the checksums."""
        epochs = [{key: value for key, value in epoch.items() if key != "checksums"} for epoch in self.epochs]
        return {"epochs": epochs, "opens": self.opens, "start_seconds": self.start_seconds}


def run_local(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run ``script root arguments`` on files in the page cache."""
    return Run(epochs=run_program(script, [str(root), *arguments]))


def run_plain(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run it on the slow directory, without prefeed."""
    with slow_mount(root) as slow:
        epochs = run_program(script, [str(slow.path), *arguments])
        return Run(epochs=epochs, opens=slow.opens())


def run_prefeed(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run it on the slow directory under ``prefeed run``, from an empty cache."""
    with slow_mount(root) as slow, temporary_home() as home:
        epochs = run_program(script, [str(slow.path), *arguments], prefeed_env=home.env)
        return Run(epochs=epochs, opens=slow.opens(), start_seconds=home.start_seconds)


def check_same_batches(runs: Sequence[Run]) -> None:
    """Raise unless all epochs of the same number saw the same batches, as far as each went."""
    for epoch in range(max(len(run.epochs) for run in runs)):
        seen = [run.epochs[epoch]["checksums"] for run in runs if epoch < len(run.epochs)]
        longest = max(seen, key=len)
        if any(checksums != longest[: len(checksums)] for checksums in seen):
            raise BenchFailedError(f"the variants saw different batches in epoch {epoch + 1}")
