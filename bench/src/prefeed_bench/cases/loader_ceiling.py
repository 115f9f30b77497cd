"""Warm stage entries through a loader with workers, against torch's loader over a tensor in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from prefeed_bench.cases._stages import stage_home
from prefeed_bench.ceiling import CeilingJob, CeilingOutcome, run_ceiling
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import Home
from prefeed_bench.requirements import BenchFailedError
from prefeed_bench.rows import DType, row_bytes

_ROWS: Final = 512
_BATCHES: Final = 300
_BATCH_SIZE: Final = 64
_QUICK_ROWS: Final = 16
_QUICK_BATCHES: Final = 4
_QUICK_BATCH_SIZE: Final = 8
_DTYPES: Final[dict[str, DType]] = {"f32": "float32", "u8": "uint8"}


def run(options: Options) -> BenchResult:
    """Measure batches a second: torch's loader over memory, prefeed's and torch's over a warm stage cache."""
    with stage_home(_ROWS, sum(map(row_bytes, _DTYPES.values()))) as home:
        variants: dict[str, Callable[[], CeilingOutcome]] = {}
        for short, dtype in _DTYPES.items():
            variants |= _variants(short, dtype, home, options)
        runs = alternate(variants, runs=options.runs, say=options.say)
    for short in _DTYPES:
        _check_same_batches([outcome for name, done in runs.items() if name.endswith(short) for outcome in done])
    samples = Samples()
    for number in range(options.runs):
        for short in _DTYPES:
            samples.add(**_figures(short, {name: done[number] for name, done in runs.items()}))
    return BenchResult(
        name="loader_ceiling",
        fields=samples.medians(),
        spread=samples.spread(),
        runs={name: [msgspec.to_builtins(outcome) for outcome in done] for name, done in runs.items()},
        notes=(
            f"batches of {_BATCH_SIZE} rows of 3 x 224 x 224, 2 workers that stay; the second epoch is timed, from iter(loader) on",
            "torch: torch's DataLoader over rows of one tensor in memory; prefeed: prefeed's over a warm CachedDataset",
            "torch_cached: torch's DataLoader over the same CachedDataset",
            f"{_ROWS} rows drawn with replacement; the main process looks at a few values of each row, nothing else",
        ),
    )


def _variants(short: str, dtype: DType, home: Home, options: Options) -> dict[str, Callable[[], CeilingOutcome]]:
    num_rows = _QUICK_ROWS if options.quick else _ROWS
    batches = _QUICK_BATCHES if options.quick else _BATCHES
    batch_size = _QUICK_BATCH_SIZE if options.quick else _BATCH_SIZE
    over_memory = CeilingJob(
        loader="torch", rows_from="memory", dtype=dtype, num_rows=num_rows, batches=batches, batch_size=batch_size
    )
    over_cache = msgspec.structs.replace(over_memory, rows_from="cache")
    return {
        f"torch_{short}": partial(run_ceiling, over_memory, env=home.env),
        f"prefeed_{short}": partial(run_ceiling, msgspec.structs.replace(over_cache, loader="prefeed"), env=home.env),
        f"torch_cached_{short}": partial(run_ceiling, over_cache, env=home.env),
    }


def _check_same_batches(outcomes: list[CeilingOutcome]) -> None:
    if len({outcome.digest for outcome in outcomes}) != 1:
        raise BenchFailedError("the variants saw different batches")


def _figures(short: str, done: dict[str, CeilingOutcome]) -> dict[str, float]:
    torchs, prefeeds, cached = (done[f"{name}_{short}"].batches_s for name in ("torch", "prefeed", "torch_cached"))
    return {
        f"torch_{short}_batches_s": torchs,
        f"prefeed_{short}_batches_s": prefeeds,
        f"{short}_ratio": prefeeds / torchs,
        f"torch_cached_{short}_batches_s": cached,
    }
