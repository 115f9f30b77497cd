"""An epoch of raw bytes from an empty cache: 3 ms latency, batch 64, 2 workers."""

from __future__ import annotations

from prefeed_bench.cases._cold import run_cold
from prefeed_bench.harness import BenchResult, Options


def run(options: Options) -> BenchResult:
    """Measure objects a second of the first epoch: local files, slow server, slow server with prefeed."""
    return run_cold("cold_bytes", options, sample="bytes", latency_seconds=0.003)
