"""Epochs over a stage cache: ``stage_fill``, what filling it costs, and ``eval``, passes of evaluation that read it."""

from __future__ import annotations

from statistics import median

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import stage_home, temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, check_same_batches, run_loading
from prefeed_bench.rows import row_bytes

_PLAIN_PASSES = 2
_CACHED_PASSES = 4


def run(options: Options) -> BenchResult:
    """Measure the first epoch with torch's loader, with prefeed's, and with an empty stage cache."""
    photos = options.photos()
    photos.read_once()
    data, num_photos = str(photos.root), photos.num_photos

    def own_loader() -> LoadingOutcome:
        with temporary_home() as home:
            return run_loading(LoadingJob(loader="prefeed", data=data, torchvision=True), env=home.env)

    variants = {
        "torch": lambda: run_loading(LoadingJob(loader="torch", data=data)),
        "own_loader": own_loader,
        "cached": lambda: _run_cached(LoadingJob(loader="prefeed", data=data, cached=True, epochs=2), num_photos),
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(outcome for done in runs.values() for outcome in done)
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
    return samples.result(
        "stage_fill",
        runs,
        "torchvision's ImageFolder, files in the page cache: decode, resize 256, crop 224, float32, normalise",
        "batch 64, 2 workers, shuffled",
        "an epoch is timed from iter(loader) on, the start of the workers included; the server was started before",
        "first_epoch_ratio: over torch's DataLoader without a cache; _own_loader: over prefeed's without a cache",
        "cached_open_s: dataset, cache and loader made, before the epoch",
        images=num_photos,
    )


def run_eval(options: Options) -> BenchResult:
    """Measure a pass with torch's loader, and the first and later passes with prefeed's and a cache."""
    photos = options.photos()
    photos.read_once()
    data = str(photos.root)
    plain = LoadingJob(loader="torch", data=data, shuffle=False, epochs=_PLAIN_PASSES)
    cached = LoadingJob(loader="prefeed", data=data, shuffle=False, cached=True, epochs=_CACHED_PASSES)
    variants = {
        "without_cache": lambda: run_loading(plain),
        "with_cache": lambda: _run_cached(cached, photos.num_photos),
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(outcome for done in runs.values() for outcome in done)
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
    return samples.result(
        "eval",
        runs,
        "the loader alone, without a model; ResNet-50's preprocessing, cached after its last step; batch 64, 2 workers",
        "local JPEGs in the page cache; the workers are started for each pass, and that is counted",
        "without: torchvision's ImageFolder in torch's DataLoader; with: the same in a CachedDataset, prefeed's loader",
        "first_pass_s: the pass that fills the cache; with_cache_s: median of the later ones",
        images=photos.num_photos,
    )


def _run_cached(job: LoadingJob, num_entries: int) -> LoadingOutcome:
    """Run epochs over an empty stage cache that has room for all entries."""
    with stage_home(num_entries, row_bytes("float32")) as home:
        outcome = run_loading(job, env=home.env)
    entries = outcome.statistics["cache"]["num_mem_cached"]
    if entries != num_entries:
        raise BenchFailedError(f"{entries} of {num_entries} samples are in the cache's memory")
    return outcome
