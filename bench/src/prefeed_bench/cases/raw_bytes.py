"""Warm raw bytes through workers, against torch's loader over the same bytes in memory."""

from __future__ import annotations

from collections.abc import Callable

from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, check_same_batches, run_loading

_EPOCHS = 4


def run(options: Options) -> BenchResult:
    """Measure samples per second of warm epochs of raw bytes in lists of 64: torch's loader over memory, prefeed's over its cache."""
    data = str(options.photos().root)
    over_memory = LoadingJob(
        loader="torch", data=data, sample="bytes", in_memory=True, epochs=_EPOCHS, persistent_workers=True
    )
    over_cache = LoadingJob(loader="prefeed", data=data, sample="bytes", epochs=_EPOCHS, persistent_workers=True)

    def prefeeds() -> LoadingOutcome:
        with temporary_home() as home:
            return run_loading(over_cache, env=home.env)

    variants: dict[str, Callable[[], LoadingOutcome]] = {"torch": lambda: run_loading(over_memory), "prefeed": prefeeds}
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(outcome for done in runs.values() for outcome in done)
    samples = Samples()
    for torchs, prefeed in zip(runs["torch"], runs["prefeed"], strict=True):
        samples.add(torch_img_s=_rate(torchs), prefeed_img_s=_rate(prefeed), ratio=_rate(prefeed) / _rate(torchs))
    return samples.result(
        "bytes",
        runs,
        "lists of 64 objects of about 87 KB, as torch's default_collate makes them; 2 workers that stay",
        f"epochs 2 to {_EPOCHS}, all of them together, from iter(loader) on; the main process looks at 64 bytes of each object",
        "torch: torch's DataLoader over a list of bytes, made before the workers are forked; prefeed: prefeed's over a warm cache",
    )


def _rate(outcome: LoadingOutcome) -> float:
    """Return samples per second of all epochs but the first."""
    epochs = outcome.epochs[1:]
    return sum(epoch.samples for epoch in epochs) / sum(epoch.seconds for epoch in epochs)
