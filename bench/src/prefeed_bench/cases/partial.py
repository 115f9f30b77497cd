"""When half the data set fits in the cache: what later epochs ask the origin for, and how soon they begin."""

from __future__ import annotations

from collections import OrderedDict
from statistics import mean

import numpy as np

from prefeed.store.log import stored_bytes
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.origin import nginx_origin
from prefeed_bench.photos import PhotoFolder

_EPOCHS = 4
_LATENCY_SECONDS = 0.003
_PLAIN_OBJECTS = 640


def run(options: Options) -> BenchResult:
    """Count the server's requests in epochs 2 to 4 of raw bytes, and what other policies would need."""
    photos = options.photos()
    with nginx_origin(photos.root, _LATENCY_SECONDS) as origin:
        job = LoadingJob(loader="prefeed", data=origin.url, sample="bytes", epochs=_EPOCHS, origin_url=origin.url)
        runs = alternate({"prefeed": lambda: _half_cached(photos, job)}, runs=options.runs, say=options.say)
    samples = Samples()
    mean_stored = mean(map(stored_bytes, photos.sizes.values()))
    for outcome in runs["prefeed"]:
        later = sum(epoch.origin_requests for epoch in outcome.epochs[1:]) / (_EPOCHS - 1)
        capacity = int(outcome.statistics["budget_bytes"] / mean_stored)
        floor = photos.num_photos - capacity
        samples.add(
            origin_requests_per_epoch=later,
            floor=floor,
            over_floor=later / floor,
            capacity_objects=capacity,
            resident_objects=outcome.statistics["resident_objects"],
            first_epoch_requests=outcome.epochs[0].origin_requests,
        )
    lru = lru_requests_per_epoch(photos.num_photos, int(samples.median("capacity_objects")), epochs=_EPOCHS)
    return samples.result(
        "partial",
        runs,
        f"PREFEED_MEMORY is half of the data set's bytes ({_half(photos)}); requests are counted by nginx",
        "capacity_objects: the tier's budget / mean size as stored; floor: objects - capacity_objects",
        "lru_requests_per_epoch: simulated, the same capacity and epochs with fresh shuffles",
        lru_requests_per_epoch=lru,
        objects=photos.num_photos,
    )


def run_epoch_start(options: Options) -> BenchResult:
    """Measure the first batches of epochs 2 to 4 with torch's loader and with prefeed's, 20 ms per request."""
    photos = options.photos()
    with nginx_origin(photos.root, 0.02) as origin:
        job = LoadingJob(loader="prefeed", data=origin.url, epochs=_EPOCHS, persistent_workers=True)
        plain = LoadingJob(
            loader="torch",
            data=origin.url,
            epochs=_EPOCHS,
            persistent_workers=True,
            first_objects=min(_PLAIN_OBJECTS, photos.num_photos),
        )
        variants = {"plain": lambda: run_loading(plain), "prefeed": lambda: _half_cached(photos, job)}
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for without, cached in zip(runs["plain"], runs["prefeed"], strict=True):
        first = {"plain": _first_batch_seconds(without), "prefeed": _first_batch_seconds(cached)}
        samples.add(
            plain_first_batch_s=first["plain"],
            prefeed_first_batch_s=first["prefeed"],
            of_plain=first["prefeed"] / first["plain"],
        )
    return samples.result(
        "epoch_start",
        runs,
        "mean over epochs 2 to 4, which follow each other without a pause",
        f"plain runs on {_PLAIN_OBJECTS} objects, since its first batch does not depend on their number",
    )


def _half_cached(photos: PhotoFolder, job: LoadingJob) -> LoadingOutcome:
    with temporary_home(_half(photos)) as home:
        return run_loading(job, env=home.env)


def _half(photos: PhotoFolder) -> int:
    return photos.total_bytes // 2


def _first_batch_seconds(outcome: LoadingOutcome) -> float:
    return mean(epoch.first_batch_seconds for epoch in outcome.epochs[1:])


def lru_requests_per_epoch(num_objects: int, capacity: int, *, epochs: int, seed: int = 0) -> float:
    """Return the misses per epoch, after the first, of a least-recently-used cache under fresh shuffles."""
    rng = np.random.default_rng(seed)
    cache: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for epoch in range(epochs):
        for item in rng.permutation(num_objects).tolist():
            if item in cache:
                cache.move_to_end(item)
                continue
            misses += epoch > 0
            cache[item] = None
            if len(cache) > capacity:
                cache.popitem(last=False)
    return misses / (epochs - 1)
