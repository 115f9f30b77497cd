"""Origin requests of an epoch when half the data set fits in the cache."""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import numpy as np

from prefeed.store.layout import stored_bytes
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.origin import nginx_origin
from prefeed_bench.photos import INDEX_NAME, PhotoFolder

_EPOCHS = 4
_LATENCY_SECONDS = 0.003


def run(options: Options) -> BenchResult:
    """Count the server's requests in epochs 2 to 4 of raw bytes, and what other policies would need."""
    photos = options.photos()
    budget_bytes = photos.total_bytes // 2
    with nginx_origin(photos.root, _LATENCY_SECONDS) as origin:
        job = LoadingJob(loader="prefeed", data=origin.url, sample="bytes", epochs=_EPOCHS, origin_url=origin.url)

        def prefeed() -> LoadingOutcome:
            with temporary_home(budget_bytes) as home:
                return run_loading(job, env=home.env)

        runs = alternate({"prefeed": prefeed}, runs=options.runs, say=options.say)["prefeed"]
    samples = Samples()
    mean_stored = _mean_stored_bytes(photos)
    for outcome in runs:
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
    return BenchResult(
        name="partial",
        fields={**samples.medians(), "lru_requests_per_epoch": lru, "objects": photos.num_photos},
        spread=samples.spread(),
        runs={"prefeed": [msgspec.to_builtins(outcome) for outcome in runs]},
        notes=(
            f"PREFEED_MEMORY is half of the data set's bytes ({budget_bytes}); requests are counted by nginx",
            "capacity_objects: the tier's budget / mean size as stored; floor: objects - capacity_objects",
            "lru_requests_per_epoch: simulated, the same capacity and epochs with fresh shuffles",
        ),
    )


def _mean_stored_bytes(photos: PhotoFolder) -> float:
    lines = (photos.root / INDEX_NAME).read_text().splitlines()
    return sum(stored_bytes(int(line.split("\t")[1])) for line in lines) / len(lines)


def lru_requests_per_epoch(num_objects: int, capacity: int, *, epochs: int, seed: int = 0) -> float:
    """Return the misses an epoch, after the first, of a least-recently-used cache under fresh shuffles."""
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
