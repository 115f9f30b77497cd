"""Runs variants in turn, sums them up, and says on which machine: what every benchmark shares."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos

T = TypeVar("T")

Say = Callable[[str], None]
"""Shows one line of progress to a person."""

_PACKAGES: Final = ("prefeed", "torch", "torchvision", "pillow", "simplejpeg", "obstore", "numpy")


def _silent(_: str) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person who starts a benchmark may choose.

    Attributes:
        runs: How often each variant runs.
        num_photos: Pictures in the data set.
        num_objects: Objects of the manifest of ``scale``; 0 for the default.
        quick: Small and fast: shows that the benchmark works, its figures mean nothing.
        data_dir: Where pictures are kept between benchmarks; None for the default.
        charts_dir: Where charts are drawn.
        fetch_processes: Of ``fetch``: each is a variant; empty: as the node chooses.
        say: Shows progress.
    """

    runs: int = 3
    num_photos: int = 4000
    num_objects: int = 0
    quick: bool = False
    data_dir: Path | None = None
    charts_dir: Path = Path("bench-output")
    fetch_processes: tuple[str, ...] = ()
    say: Say = field(default=_silent)

    def photos(self) -> PhotoFolder:
        """Return the pictures, made now unless they are there from last time."""
        recipe = PhotoRecipe(num_photos=self.num_photos)
        self.say(f"{recipe.num_photos} pictures")
        return make_photos(recipe, cache_dir=self.data_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """Outcome of one benchmark.

    Attributes:
        name: The benchmark.
        fields: Its figures by name, medians over the runs.
        spread: Lowest and highest value of a field over the runs.
        runs: What each run of each variant measured.
        notes: What a reader must know to read the figures.
    """

    name: str
    fields: Mapping[str, float | int | str | None]
    spread: Mapping[str, tuple[float, float]]
    runs: Mapping[str, Sequence[Any]]
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return one flat object: name, fields, then spread, runs, notes and host."""
        return {
            "bench": self.name,
            **{name: _rounded(value) for name, value in self.fields.items()},
            "spread": {name: [_rounded(low), _rounded(high)] for name, (low, high) in self.spread.items()},
            "runs": self.runs,
            "notes": list(self.notes),
            "host": host_facts(),
        }


class Samples:
    """Figures of several runs: collects values by field, gives medians and spreads.

    Args:
        runs: Figures of each run, where they are there already.
    """

    def __init__(self, runs: Iterable[Mapping[str, float]] = ()) -> None:
        self._values: dict[str, list[float]] = {}
        for figures in runs:
            self.add(**figures)

    def add(self, **figures: float) -> None:
        """Add the figures of one run."""
        for name, value in figures.items():
            self._values.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        """Return the median of one field."""
        return statistics.median(self._values[name])

    def medians(self) -> dict[str, float]:
        """Return the median of every field."""
        return {name: statistics.median(values) for name, values in self._values.items()}

    def spread(self) -> dict[str, tuple[float, float]]:
        """Return lowest and highest value of every field."""
        return {name: (min(values), max(values)) for name, values in self._values.items()}

    def result(
        self, name: str, runs: Mapping[str, Sequence[Any]], *notes: str, **more: float | str | None
    ) -> BenchResult:
        """Return the outcome of a benchmark.

        Args:
            name: The benchmark.
            runs: What each run of each variant measured: figures, or ``msgspec`` structures of them.
            *notes: What a reader must know to read the figures.
            **more: Figures that no run has; they follow the medians.
        """
        fields = {**self.medians(), **more}
        detail = {variant: msgspec.to_builtins(list(done)) for variant, done in runs.items()}
        return BenchResult(name=name, fields=fields, spread=self.spread(), runs=detail, notes=notes)


def alternate(variants: Mapping[str, Callable[[], T]], *, runs: int, say: Say = _silent) -> dict[str, list[T]]:
    """Run the variants in turn (A B A B ...), so that a slow minute of the machine hits all of them alike.

    Args:
        variants: Name to what is run.
        runs: How often each runs.
        say: Told before each run.

    Returns:
        Results by name, in the order of the runs.
    """
    if runs < 1:
        raise ValueError(f"runs must be at least 1: {runs}")
    results: dict[str, list[T]] = {name: [] for name in variants}
    for run in range(runs):
        for name, variant in variants.items():
            say(f"run {run + 1} of {runs}: {name}")
            results[name].append(variant())
    return results


def host_facts() -> dict[str, Any]:
    """Return what a reader needs to compare figures of two machines."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "ram_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _rounded(value: float | int | str | None) -> float | int | str | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def cpu_seconds(pid: int) -> float:
    """Return the processor time, user and system, that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Return what the kernel says of a process's memory, in MiB: VmRSS, VmHWM, RssAnon, RssFile, RssShmem, ..."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines if words[-1] == "kB"}
