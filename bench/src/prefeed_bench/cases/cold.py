"""First epochs, from an empty cache: ``cold`` and ``cold_bytes`` from a slow server, ``refill`` where no cache is needed."""

from __future__ import annotations

from dataclasses import dataclass

from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, Sample, check_same_batches, run_loading
from prefeed_bench.origin import nginx_origin


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    outcome: LoadingOutcome
    start_seconds: float = 0.0

    def rate(self, *, with_start: bool = False) -> float:
        """Return images per second of the first epoch."""
        first = self.outcome.epochs[0]
        return first.samples / (first.seconds + (self.start_seconds if with_start else 0.0))


def run(options: Options) -> BenchResult:
    """Measure images per second of an epoch of ResNet preprocessing, 20 ms per request: local files, slow server, prefeed."""
    return _run("cold", options, sample="imagenet", latency_seconds=0.02)


def run_bytes(options: Options) -> BenchResult:
    """Measure objects per second of an epoch of raw bytes, 3 ms per request: local files, slow server, prefeed."""
    return _run("cold_bytes", options, sample="bytes", latency_seconds=0.003)


def _run(name: str, options: Options, *, sample: Sample, latency_seconds: float) -> BenchResult:
    """Run the three variants in turn and compare their first epochs."""
    photos = options.photos()

    def torchs(data: str) -> _Run:
        return _Run(outcome=run_loading(LoadingJob(loader="torch", data=data, sample=sample)))

    with nginx_origin(photos.root, latency_seconds) as origin:
        variants = {
            "local": lambda: torchs(str(photos.root)),
            "plain": lambda: torchs(origin.url),
            "prefeed": lambda: _prefeed(LoadingJob(loader="prefeed", data=origin.url, sample=sample)),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(run.outcome for done in runs.values() for run in done)
    return _result(name, runs)


def _prefeed(job: LoadingJob) -> _Run:
    with temporary_home() as home:
        return _Run(outcome=run_loading(job, env=home.env), start_seconds=home.start_seconds)


def _result(name: str, runs: dict[str, list[_Run]]) -> BenchResult:
    samples = Samples()
    for local, plain, prefeed in zip(runs["local"], runs["plain"], runs["prefeed"], strict=True):
        samples.add(
            local_img_s=local.rate(),
            plain_img_s=plain.rate(),
            prefeed_img_s=prefeed.rate(),
            of_local=prefeed.rate() / local.rate(),
            over_plain=prefeed.rate() / plain.rate(),
            prefeed_with_start_img_s=prefeed.rate(with_start=True),
            prefeed_open_s=prefeed.outcome.open_seconds,
        )
    return samples.result(
        name,
        {variant: [run.outcome for run in done] for variant, done in runs.items()},
        "each variant runs in a fresh process; an epoch is timed from iter(loader) on, the start of the workers included",
        "prefeed: the server was started empty before the run; prefeed_with_start_img_s counts its start as well",
        "local: torchvision's ImageFolder or plain reads, files in the page cache; plain: obstore in the loader's workers",
    )


def run_refill(options: Options) -> BenchResult:
    """Measure two epochs from files in the page cache without prefeed, and two with it; the first one fills the cache."""
    data = str(options.photos().root)
    variants = {
        "plain": lambda: run_loading(LoadingJob(loader="torch", data=data, epochs=2)),
        "prefeed": lambda: _prefeed(LoadingJob(loader="prefeed", data=data, epochs=2)).outcome,
    }
    runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(outcome for done in runs.values() for outcome in done)
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
    return samples.result(
        "refill", runs, "plain: torchvision's ImageFolder in torch's DataLoader; the files are in the page cache"
    )
