"""The cost of a cache that is of no use: the origin is a local directory in the page cache."""

from __future__ import annotations

import msgspec

from prefeed_bench.cases._cold import check_same_batches
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading


def run(options: Options) -> BenchResult:
    """Measure two epochs without prefeed and two with it, the first of which fills the cache."""
    data = str(options.photos().root)

    def plain() -> LoadingOutcome:
        return run_loading(LoadingJob(loader="torch", data=data, epochs=2))

    def prefeed() -> LoadingOutcome:
        with temporary_home() as home:
            return run_loading(LoadingJob(loader="prefeed", data=data, epochs=2), env=home.env)

    runs = alternate({"plain": plain, "prefeed": prefeed}, runs=options.runs, say=options.say)
    check_same_batches([outcome for outcomes in runs.values() for outcome in outcomes])
    samples = Samples()
    for without, cached in zip(runs["plain"], runs["prefeed"], strict=True):
        samples.add(
            first_epoch_ratio=cached.epochs[0].seconds / without.epochs[0].seconds,
            warm_ratio=cached.epochs[1].seconds / without.epochs[1].seconds,
            plain_first_s=without.epochs[0].seconds,
            plain_second_s=without.epochs[1].seconds,
            prefeed_first_s=cached.epochs[0].seconds,
            prefeed_second_s=cached.epochs[1].seconds,
        )
    return BenchResult(
        name="refill",
        fields=samples.medians(),
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=("plain: torchvision's ImageFolder in torch's DataLoader; the files are in the page cache",),
    )
