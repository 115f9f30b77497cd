"""Counts for the run summary in this process, as below ``prefeed run``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from prefeed.run_summary import counters


@contextmanager
def counting(directory: Path) -> Iterator[Callable[[], Counter[str]]]:
    """Count in files of a directory inside the block; yield a function that returns the sums."""
    directory.mkdir(exist_ok=True)
    counters.begin(str(directory))
    try:
        yield lambda: Counter(counters.sums(str(directory))[0])
    finally:
        counters.begin("")
