"""What ``cold`` and ``cold_bytes`` share: an epoch from local files, from a slow server, and with prefeed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, Sample, run_loading
from prefeed_bench.origin import Origin, nginx_origin
from prefeed_bench.requirements import BenchFailedError

NOTES = (
    "each variant runs in a fresh process; an epoch is timed from iter(loader) on, the start of the workers included",
    "prefeed: the server was started empty before the run; prefeed_with_start_img_s counts its start as well",
    "local: torchvision's ImageFolder or plain reads, files in the page cache; plain: obstore in the loader's workers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    outcome: LoadingOutcome
    start_seconds: float = 0.0


def run_cold(name: str, options: Options, *, sample: Sample, latency_seconds: float) -> BenchResult:
    """Run the three variants in turn and compare their first epochs."""
    photos = options.photos()
    with nginx_origin(photos.root, latency_seconds) as origin:
        variants: dict[str, Callable[[], _Run]] = {
            "local": lambda: _Run(outcome=run_loading(_job("torch", str(photos.root), sample))),
            "plain": lambda: _Run(outcome=run_loading(_job("torch", origin.url, sample))),
            "prefeed": lambda: _prefeed(origin, sample),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches([run.outcome for outcomes in runs.values() for run in outcomes])
    return _result(name, runs)


def _job(loader: Any, data: str, sample: Sample) -> LoadingJob:
    return LoadingJob(loader=loader, data=data, sample=sample)


def _prefeed(origin: Origin, sample: Sample) -> _Run:
    with temporary_home() as home:
        outcome = run_loading(_job("prefeed", origin.url, sample), env=home.env)
        return _Run(outcome=outcome, start_seconds=home.start_seconds)


def check_same_batches(outcomes: list[LoadingOutcome]) -> None:
    """Raise unless all variants saw the same batches in the same order.

    Raises:
        BenchFailedError: They did not.
    """
    digests = {outcome.digest for outcome in outcomes}
    if len(digests) != 1:
        raise BenchFailedError(f"the variants saw different batches: digests {', '.join(sorted(digests))}")


def _result(name: str, runs: dict[str, list[_Run]]) -> BenchResult:
    samples = Samples()
    for local, plain, prefeed in zip(runs["local"], runs["plain"], runs["prefeed"], strict=True):
        rates = {
            "local_img_s": _rate(local),
            "plain_img_s": _rate(plain),
            "prefeed_img_s": _rate(prefeed),
        }
        samples.add(
            **rates,
            of_local=rates["prefeed_img_s"] / rates["local_img_s"],
            over_plain=rates["prefeed_img_s"] / rates["plain_img_s"],
            prefeed_with_start_img_s=_rate(prefeed, with_start=True),
            prefeed_open_s=prefeed.outcome.open_seconds,
        )
    detail = {variant: [msgspec.to_builtins(run.outcome) for run in done] for variant, done in runs.items()}
    return BenchResult(name=name, fields=samples.medians(), spread=samples.spread(), runs=detail, notes=NOTES)


def _rate(run: _Run, *, with_start: bool = False) -> float:
    first = run.outcome.epochs[0]
    return first.samples / (first.seconds + (run.start_seconds if with_start else 0.0))
