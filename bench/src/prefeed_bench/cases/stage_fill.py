"""The cost of filling a stage cache: an epoch that computes and stores preprocessed pictures, and one that computes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from prefeed_bench.cases._stages import check_same_epochs, read_once, run_cached
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.rows import row_bytes


def run(options: Options) -> BenchResult:
    """Measure the first epoch with torch's loader, with prefeed's, and with an empty stage cache."""
    photos = options.photos()
    read_once(photos)
    data, num_photos = str(photos.root), photos.num_photos

    def own_loader() -> LoadingOutcome:
        with temporary_home() as home:
            return run_loading(LoadingJob(loader="prefeed", data=data, torchvision=True), env=home.env)

    variants: dict[str, Callable[[], LoadingOutcome]] = {
        "torch": lambda: run_loading(LoadingJob(loader="torch", data=data)),
        "own_loader": own_loader,
        "cached": lambda: run_cached(
            LoadingJob(loader="prefeed", data=data, cached=True, epochs=2), num_photos, row_bytes("float32")
        ),
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_epochs([outcome for outcomes in runs.values() for outcome in outcomes])
    samples = Samples()
    for torchs, own, cached in zip(runs["torch"], runs["own_loader"], runs["cached"], strict=True):
        first = cached.epochs[0].seconds
        samples.add(
            first_epoch_ratio=first / torchs.epochs[0].seconds,
            first_epoch_ratio_own_loader=first / own.epochs[0].seconds,
            torch_epoch_s=torchs.epochs[0].seconds,
            own_loader_epoch_s=own.epochs[0].seconds,
            cached_first_epoch_s=first,
            warm_epoch_s=cached.epochs[1].seconds,
            cached_open_s=cached.open_seconds,
        )
    return BenchResult(
        name="stage_fill",
        fields={**samples.medians(), "images": num_photos},
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=(
            "torchvision's ImageFolder, files in the page cache: decode, resize 256, crop 224, float32, normalise",
            "batch 64, 2 workers, shuffled",
            "an epoch is timed from iter(loader) on, the start of the workers included; the server was started before",
            "first_epoch_ratio: over torch's DataLoader without a cache; _own_loader: over prefeed's without a cache",
            "cached_open_s: dataset, cache and loader made, before the epoch",
        ),
    )
