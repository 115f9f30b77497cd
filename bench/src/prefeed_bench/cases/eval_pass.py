"""Evaluation during training: passes over the same pictures in the same order, as they are and from a stage cache."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import msgspec

from prefeed_bench.cases._stages import check_same_epochs, read_once, run_cached
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.rows import row_bytes

_PLAIN_PASSES = 2
_CACHED_PASSES = 4


def run(options: Options) -> BenchResult:
    """Measure a pass with torch's loader, and the first and later passes with prefeed's and a cache."""
    photos = options.photos()
    read_once(photos)
    data = str(photos.root)
    plain = LoadingJob(loader="torch", data=data, shuffle=False, epochs=_PLAIN_PASSES)
    cached = LoadingJob(loader="prefeed", data=data, shuffle=False, cached=True, epochs=_CACHED_PASSES)
    variants: dict[str, Callable[[], LoadingOutcome]] = {
        "without_cache": lambda: run_loading(plain),
        "with_cache": lambda: run_cached(cached, photos.num_photos, row_bytes("float32")),
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_epochs([outcome for outcomes in runs.values() for outcome in outcomes])
    samples = Samples()
    for without, warm in zip(runs["without_cache"], runs["with_cache"], strict=True):
        without_s = median(epoch.seconds for epoch in without.epochs)
        with_s = median(epoch.seconds for epoch in warm.epochs[1:])
        samples.add(
            without_cache_s=without_s,
            with_cache_s=with_s,
            speedup=without_s / with_s,
            first_pass_s=warm.epochs[0].seconds,
        )
    return BenchResult(
        name="eval",
        fields={**samples.medians(), "images": photos.num_photos},
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=(
            "the loader alone, without a model; ResNet-50's preprocessing, cached after its last step; batch 64, 2 workers",
            "local JPEGs in the page cache; the workers are started for each pass, and that is counted",
            "without: torchvision's ImageFolder in torch's DataLoader; with: the same in a CachedDataset, prefeed's loader",
            "first_pass_s: the pass that fills the cache; with_cache_s: median of the later ones",
        ),
    )
