"""A program on a directory whose opens are slow: as it is, under ``prefeed run``, and on the same files in the page cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed.testing.slow_directory import FuseUnavailableError, SlowDirectory, slow_directory
from prefeed_bench.home import temporary_home
from prefeed_bench.program import run_program
from prefeed_bench.requirements import BenchFailedError, MissingRequirementError

OPEN_SECONDS: Final = 0.02
PLAIN_BATCHES: Final = 10
"""Batches of the slow variant: its rate is even, and the whole epoch would take most of the benchmark's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one process printed, an epoch an item, and the opens of the slow directory meanwhile."""

    epochs: Sequence[Mapping[str, Any]]
    opens: int = 0
    start_seconds: float = 0.0

    def rate(self, epoch: int, *, with_start: bool = False) -> float:
        """Return images a second."""
        found = self.epochs[epoch]
        rate: float = found["images"] / (found["seconds"] + (self.start_seconds if with_start else 0.0))
        return rate

    def summary(self) -> dict[str, Any]:
        """Return what goes into the result: all but the checksums."""
        epochs = [{key: value for key, value in epoch.items() if key != "checksums"} for epoch in self.epochs]
        return {"epochs": epochs, "opens": self.opens, "start_seconds": self.start_seconds}


def run_local(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run ``script root arguments`` on files in the page cache."""
    return Run(epochs=run_program(script, [str(root), *arguments]))


def run_plain(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run it on the slow directory, without prefeed."""
    with _slow(root) as slow:
        epochs = run_program(script, [str(slow.path), *arguments])
        return Run(epochs=epochs, opens=slow.opens())


def run_prefeed(script: str, root: Path, arguments: Sequence[str] = ()) -> Run:
    """Run it on the slow directory under ``prefeed run``, from an empty cache."""
    with _slow(root) as slow, temporary_home() as home:
        epochs = run_program(script, [str(slow.path), *arguments], prefeed_env=home.env)
        return Run(epochs=epochs, opens=slow.opens(), start_seconds=home.start_seconds)


def check_same_batches(runs: Sequence[Run]) -> None:
    """Raise unless all epochs of the same number saw the same batches, as far as each went."""
    for epoch in range(max(len(run.epochs) for run in runs)):
        seen = [run.epochs[epoch]["checksums"] for run in runs if epoch < len(run.epochs)]
        longest = max(seen, key=len)
        if any(checksums != longest[: len(checksums)] for checksums in seen):
            raise BenchFailedError(f"the variants saw different batches in epoch {epoch + 1}")


@contextlib.contextmanager
def _slow(root: Path) -> Iterator[SlowDirectory]:
    """Mount the files anew, so that no run finds what the one before left in the kernel's cache."""
    try:
        with slow_directory(root, open_seconds=OPEN_SECONDS) as slow:
            yield slow
    except FuseUnavailableError as err:
        raise MissingRequirementError(str(err)) from err
