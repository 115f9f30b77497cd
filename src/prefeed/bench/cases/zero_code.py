"""``prefeed run train.py`` on a directory whose opens are slow: the script is not touched, the cache is empty.

Two kinds of script. One lists its files (torchvision's ``ImageFolder``), so that the order of the first epoch is known
before it begins. The other computes each path inside the sample, so that the first epoch can only teach which files
belong to which sample.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed.bench.harness import BenchResult, Options, Samples, alternate
from prefeed.bench.home import temporary_home
from prefeed.bench.photos import PhotoFolder
from prefeed.bench.program import run_program
from prefeed.bench.requirements import BenchFailedError, MissingRequirementError
from prefeed.testing.slow_directory import FuseUnavailableError, SlowDirectory, slow_directory

_OPEN_SECONDS: Final = 0.02
_PLAIN_BATCHES: Final = 10
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What one process printed, an epoch an item, and the opens of the slow directory meanwhile."""

    epochs: Sequence[Mapping[str, Any]]
    opens: int = 0
    start_seconds: float = 0.0

    def rate(self, epoch: int, *, with_start: bool = False) -> float:
        """Return images a second."""
        found = self.epochs[epoch]
        rate: float = found["images"] / (found["seconds"] + (self.start_seconds if with_start else 0.0))
        return rate

    def summary(self) -> dict[str, Any]:
        """Return what goes into the result: all but the checksums."""
        epochs = [{key: value for key, value in epoch.items() if key != "checksums"} for epoch in self.epochs]
        return {"epochs": epochs, "opens": self.opens, "start_seconds": self.start_seconds}


def run(options: Options) -> BenchResult:
    """Measure an unmodified script: slow directory, slow directory under ``prefeed run``, local directory."""
    photos = options.photos()
    numbered = ["--numbered", str(min(_NUMBERED, photos.num_photos))]
    with tempfile.NamedTemporaryFile(prefix="prefeed-bench-") as local:
        variants: dict[str, Callable[[], _Run]] = {
            "plain": lambda: _plain(photos, "train.py", ["--batches", str(_PLAIN_BATCHES)]),
            "local": lambda: _local(photos, []),
            "prefeed": lambda: _prefeed(photos, "train.py", ["--epochs", "2"]),
            "numbered_local": lambda: _local(photos, numbered),
            "numbered_prefeed": lambda: _prefeed(photos, "train.py", [*numbered, "--epochs", "2"]),
            "open_plain": lambda: _plain(photos, "open_cost.py", [local.name, str(_OPENED)]),
            "open_prefeed": lambda: _prefeed(photos, "open_cost.py", [local.name, str(_OPENED)]),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    _check_same_batches(runs["local"] + runs["plain"] + runs["prefeed"])
    _check_same_batches(runs["numbered_local"] + runs["numbered_prefeed"])
    _check_intercepted(runs["open_prefeed"])
    return _result(photos, runs)


def _local(photos: PhotoFolder, arguments: Sequence[str]) -> _Run:
    return _Run(epochs=run_program("train.py", [str(photos.root), *arguments]))


def _plain(photos: PhotoFolder, script: str, arguments: Sequence[str]) -> _Run:
    with _slow(photos) as slow:
        epochs = run_program(script, [str(slow.path), *arguments])
        return _Run(epochs=epochs, opens=slow.opens())


def _prefeed(photos: PhotoFolder, script: str, arguments: Sequence[str]) -> _Run:
    with _slow(photos) as slow, temporary_home() as home:
        epochs = run_program(script, [str(slow.path), *arguments], prefeed_env=home.env)
        return _Run(epochs=epochs, opens=slow.opens(), start_seconds=home.start_seconds)


@contextlib.contextmanager
def _slow(photos: PhotoFolder) -> Iterator[SlowDirectory]:
    """Mount the pictures anew, so that no run finds what the one before left in the kernel's cache."""
    try:
        with slow_directory(Path(photos.root), open_seconds=_OPEN_SECONDS) as slow:
            yield slow
    except FuseUnavailableError as err:
        raise MissingRequirementError(str(err)) from err


def _check_same_batches(runs: Sequence[_Run]) -> None:
    """Raise unless all epochs of the same number saw the same batches, as far as each went."""
    for epoch in range(max(len(run.epochs) for run in runs)):
        seen = [run.epochs[epoch]["checksums"] for run in runs if epoch < len(run.epochs)]
        longest = max(seen, key=len)
        if any(checksums != longest[: len(checksums)] for checksums in seen):
            raise BenchFailedError(f"the variants saw different batches in epoch {epoch + 1}")


def _check_intercepted(runs: Sequence[_Run]) -> None:
    """Raise if the opens of the last epochs reached the slow directory: then nothing was there to be measured."""
    for run in runs:
        if run.opens > _OPENED:
            raise BenchFailedError(f"{_OPENED} files were opened {run.opens} times in spite of prefeed")


def _result(photos: PhotoFolder, runs: Mapping[str, Sequence[_Run]]) -> BenchResult:
    samples = Samples()
    for number in range(len(runs["local"])):
        done = {name: of_variant[number] for name, of_variant in runs.items()}
        samples.add(**_listed(done["plain"], done["prefeed"], done["local"], photos.num_photos))
        samples.add(**_numbered(done["plain"], done["numbered_prefeed"], done["numbered_local"]))
        samples.add(**_open_cost(done["open_plain"], done["open_prefeed"]))
    detail = {name: [run.summary() for run in of_variant] for name, of_variant in runs.items()}
    return BenchResult(name="zero_code", fields=samples.medians(), spread=samples.spread(), runs=detail, notes=NOTES)


def _listed(plain: _Run, prefeed: _Run, local: _Run, num_photos: int) -> dict[str, float]:
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


def _numbered(plain: _Run, prefeed: _Run, local: _Run) -> dict[str, float]:
    return {
        "numbered_first_img_s": prefeed.rate(0),
        "numbered_second_img_s": prefeed.rate(1),
        "numbered_local_img_s": local.rate(0),
        "numbered_first_over_plain": prefeed.rate(0) / plain.rate(0),
        "numbered_second_of_local": prefeed.rate(1) / local.rate(0),
    }


def _open_cost(plain: _Run, prefeed: _Run) -> dict[str, float]:
    # Not the first epoch: what a sample opens is only known, and served, from the second one on.
    without, replaced = (statistics.median(epoch["open_us"] for epoch in run.epochs[1:]) for run in (plain, prefeed))
    return {"open_us": without, "interception_overhead_us": replaced - without}
