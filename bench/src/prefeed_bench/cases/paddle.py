"""An unmodified Paddle script under ``prefeed run``, on a directory whose opens are slow, beside local files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prefeed_bench.cases.quick import empty_home
from prefeed_bench.cases.zero_code import Run, check_same_batches, run_local
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.fuse_mount import slow_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import run_program

_SCRIPT: Final = "paddle_train.py"
_IMAGES: Final = 1000
_QUICK: Final = 64

NOTES: Final = (
    "1,000 pictures, decoded by Pillow and scaled to 224 x 224; batch 32, 2 workers, opens of 20 ms",
    "an epoch is timed from iter(loader) on, the start of the workers included; local: the same files in the page cache",
    "prefeed: an empty home without a server; the server starts while the script imports Paddle",
)


def run(options: Options) -> BenchResult:
    """Measure two epochs of a Paddle loader: local files, and the slow directory under ``prefeed run``.

    Raises:
        MissingRequirementError: Paddle is not installed.
    """
    if importlib.util.find_spec("paddle") is None:
        raise MissingRequirementError("paddle is not installed: pip install paddlepaddle")
    photos = options.photos()
    arguments = ["--images", str(_QUICK if options.quick else min(_IMAGES, photos.num_photos))]
    variants: dict[str, Callable[[], Run]] = {
        "local": lambda: run_local(_SCRIPT, photos.root, arguments),
        "prefeed": lambda: _run_prefeed(photos, arguments),
    }
    return result(alternate(variants, runs=options.runs, say=options.say))


def result(runs: Mapping[str, Sequence[Run]]) -> BenchResult:
    """Return the figures of runs by variant.

    Raises:
        BenchFailedError: They saw different batches.
    """
    check_same_batches([*runs["local"], *runs["prefeed"]])
    samples = Samples()
    for local, prefeed in zip(runs["local"], runs["prefeed"], strict=True):
        samples.add(
            local_img_s=local.rate(0),
            prefeed_img_s=prefeed.rate(0),
            of_local=prefeed.rate(0) / local.rate(0),
            warm_of_local=prefeed.rate(1) / local.rate(1),
            opens_per_file=prefeed.opens / prefeed.epochs[0]["images"],
        )
    detail = {name: [run.summary() for run in of_variant] for name, of_variant in runs.items()}
    return samples.result("paddle", detail, *NOTES)


def _run_prefeed(photos: PhotoFolder, arguments: Sequence[str]) -> Run:
    with slow_mount(photos.root) as slow, empty_home(slow.path) as env:
        epochs = run_program(_SCRIPT, [str(slow.path), *arguments], prefeed_env=env)
        return Run(epochs=epochs, opens=slow.opens())
