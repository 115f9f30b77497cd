"""Warm entries of a stage cache, read into one reused batch; beside a plain copy, and MindSpore's cache if it is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from prefeed_bench.cases._mindspore import VARIABLE, mindspore_python, mindspore_rates
from prefeed_bench.cases._stages import stage_home
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.hits import HitJob, HitOutcome, run_hits
from prefeed_bench.rows import row_bytes

_ROWS = 1024
_QUICK_ROWS = 64
_PASSES = 11
_QUICK_PASSES = 2

_NOTES = (
    "in process, one thread, no loader; batches of 64 float32 rows of 3 x 224 x 224 in random order, one reused tensor",
    "of_memcpy: over copying as many rows of an array in memory, in the same order, into the same batch",
    "owned_rows_s: with samples that own their memory (cached[i]) and are then copied once more",
)
_WITH_MINDSPORE = (
    "mindspore_rows_s: warm epochs of its cache in turn with ours, 2 workers, the faster of two ways to take rows",
    "mindspore_batched: it makes batches of 64; mindspore_single: its rows are copied into one reused batch of 64",
)
_WITHOUT_MINDSPORE = (f"mindspore_rows_s: not measured; set {VARIABLE} to a Python that has mindspore",)


def run(options: Options) -> BenchResult:
    """Measure rows a second from the cache, from memory, and from MindSpore's cache."""
    job = HitJob(num_rows=_QUICK_ROWS if options.quick else _ROWS, passes=_QUICK_PASSES if options.quick else _PASSES)
    python = mindspore_python()
    with stage_home(job.num_rows, row_bytes("float32")) as home:
        variants: dict[str, Callable[[], Any]] = {"prefeed": lambda: run_hits(job, env=home.env)}
        if python is not None:
            photos = options.photos()
            rows = min(photos.num_photos, job.num_rows)
            variants["mindspore"] = lambda: mindspore_rates(python, photos.root, num_rows=rows, epochs=job.passes)
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _result(runs)


def _result(runs: Mapping[str, list[Any]]) -> BenchResult:
    samples = Samples()
    for number, hits in enumerate(runs["prefeed"]):
        samples.add(**_of_prefeed(hits))
        if "mindspore" in runs:
            samples.add(**_of_mindspore(runs["mindspore"][number], hits))
    empty = {} if "mindspore" in runs else {"mindspore_rows_s": None, "of_mindspore": None}
    return BenchResult(
        name="stage_hit",
        fields={**samples.medians(), **empty},
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=(*_NOTES, *(_WITH_MINDSPORE if "mindspore" in runs else _WITHOUT_MINDSPORE)),
    )


def _of_prefeed(hits: HitOutcome) -> dict[str, float]:
    return {
        "rows_s": hits.rows / hits.cached_seconds,
        "gb_s": hits.bytes / hits.cached_seconds / 1e9,
        "of_memcpy": hits.memory_seconds / hits.cached_seconds,
        "us_per_row": hits.cached_seconds / hits.rows * 1e6,
        "memcpy_rows_s": hits.rows / hits.memory_seconds,
        "owned_rows_s": hits.rows / hits.owned_seconds,
    }


def _of_mindspore(rates: Mapping[str, float], hits: HitOutcome) -> dict[str, float]:
    best = max(rates.values())
    return {
        "mindspore_rows_s": best,
        "of_mindspore": hits.rows / hits.cached_seconds / best,
        "mindspore_batched_rows_s": rates["batched"],
        "mindspore_single_rows_s": rates["single"],
    }
