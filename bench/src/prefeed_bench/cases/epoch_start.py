"""Time to the first batch of later epochs when half the data set fits: 20 ms latency, persistent workers."""

from __future__ import annotations

from statistics import mean

import msgspec

from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.origin import nginx_origin

_EPOCHS = 4
_PLAIN_OBJECTS = 640


def run(options: Options) -> BenchResult:
    """Measure the first batches of epochs 2 to 4 with torch's loader and with prefeed's."""
    photos = options.photos()
    with nginx_origin(photos.root, 0.02) as origin:

        def plain() -> LoadingOutcome:
            return run_loading(
                LoadingJob(
                    loader="torch",
                    data=origin.url,
                    epochs=_EPOCHS,
                    persistent_workers=True,
                    first_objects=min(_PLAIN_OBJECTS, photos.num_photos),
                )
            )

        def prefeed() -> LoadingOutcome:
            job = LoadingJob(loader="prefeed", data=origin.url, epochs=_EPOCHS, persistent_workers=True)
            with temporary_home(photos.total_bytes // 2) as home:
                return run_loading(job, env=home.env)

        runs = alternate({"plain": plain, "prefeed": prefeed}, runs=options.runs, say=options.say)
    samples = Samples()
    for without, cached in zip(runs["plain"], runs["prefeed"], strict=True):
        first = {"plain": _first_batch_seconds(without), "prefeed": _first_batch_seconds(cached)}
        samples.add(
            plain_first_batch_s=first["plain"],
            prefeed_first_batch_s=first["prefeed"],
            of_plain=first["prefeed"] / first["plain"],
        )
    return BenchResult(
        name="epoch_start",
        fields=samples.medians(),
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=(
            "mean over epochs 2 to 4, which follow each other without a pause",
            f"plain runs on {_PLAIN_OBJECTS} objects, since its first batch does not depend on their number",
        ),
    )


def _first_batch_seconds(outcome: LoadingOutcome) -> float:
    return mean(epoch.first_batch_seconds for epoch in outcome.epochs[1:])
