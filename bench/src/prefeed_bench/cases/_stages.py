"""What the benchmarks of stage caches share: pictures in the page cache, a node with room for the entries."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from prefeed_bench.home import Home, temporary_home
from prefeed_bench.loading import LoadingJob, LoadingOutcome, run_loading
from prefeed_bench.photos import INDEX_NAME, PhotoFolder
from prefeed_bench.requirements import BenchFailedError

MIB: Final = 1024**2
_HEADER_BYTES: Final = 8192
"""More than an entry takes beside its values: header, note, the rest of its last page."""


def stage_home(num_entries: int, entry_bytes: int) -> AbstractContextManager[Home]:
    """Start a server that has room for all entries in memory, with its share of objects beside them."""
    return temporary_home(256 * MIB + num_entries * (entry_bytes + _HEADER_BYTES) * 3 // 2)


def read_once(photos: PhotoFolder) -> None:
    """Read every file, so that the first variant finds them in the page cache as the others do."""
    for line in (photos.root / INDEX_NAME).read_text().splitlines():
        Path(photos.root, line.split("\t")[0]).read_bytes()


def run_cached(job: LoadingJob, num_entries: int, entry_bytes: int) -> LoadingOutcome:
    """Run epochs over an empty stage cache of a node's own.

    Raises:
        BenchFailedError: It failed, or there was no room for all entries.
    """
    with stage_home(num_entries, entry_bytes) as home:
        outcome = run_loading(job, env=home.env)
    entries = outcome.statistics["cache"]["num_mem_cached"]
    if entries != num_entries:
        raise BenchFailedError(f"{entries} of {num_entries} samples are in the cache's memory")
    return outcome


def check_same_epochs(outcomes: Sequence[LoadingOutcome]) -> None:
    """Raise unless epochs of the same number saw the same batches in the same order.

    Raises:
        BenchFailedError: They did not.
    """
    for number in range(max(len(outcome.epochs) for outcome in outcomes)):
        digests = {outcome.epochs[number].digest for outcome in outcomes if number < len(outcome.epochs)}
        if len(digests) != 1:
            raise BenchFailedError(f"the variants saw different batches in epoch {number + 1}")
