"""What can be done for a job that waits, how much it would gain, and what it asks of the user. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from prefeed.diagnose.measurement import Costs, Measurement, Timing

CACHE: Final = "cache"
WORKERS: Final = "workers"
DEVICE: Final = "device prefetch"
STAGE_CACHE: Final = "stage cache"
FAST_DECODE: Final = "fast decode"
PACKING: Final = "packing"


class Cure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do.

    Attributes:
        name: One of the names above.
        what: What it is, as a phrase.
        how: What to type.
        speedup: How many times as fast the job is predicted to be.
        first_speedup: The same in the first epoch, when the cache is being filled; None: no different.
        is_measured: The loop was run that way on a few batches; else it was computed.
    """

    name: str
    what: str
    how: str
    speedup: float
    first_speedup: float | None = None
    is_measured: bool = True


def cures_of(measurement: Measurement, perfect: float) -> list[Cure]:
    """Return what could be tried, the cheapest first: one line, an argument, a few lines, a conversion."""
    return [cure for cure in _all(measurement, perfect) if cure.speedup > 0]


def _all(m: Measurement, perfect: float) -> Iterator[Cure]:
    if m.cached is not None:
        yield _cache(m, m.cached)
    if m.workers:
        yield _workers(m)
    costs = m.costs
    if costs is not None and costs.to_device:
        yield _computed(m, perfect, costs.to_device, DEVICE, "batches copied to the device while it computes",
                        "Wrap the loader: prefeed.DevicePrefetcher(loader, device).")  # fmt: skip
    if m.staged is not None:
        yield _stage_cache(m, m.staged)
    if costs is not None:
        yield from _of_costs(m, costs, perfect)


def _cache(m: Measurement, cached: Timing) -> Cure:
    needed = _cache_bytes(m)
    share = min(1.0, m.loader.memory_bytes / needed) if needed else 1.0
    first = m.first or cached
    # What does not fit is fetched ahead in every epoch, as all is in the first.
    seconds = share * cached.step_seconds + (1 - share) * first.step_seconds
    room = _size(needed)
    held = "" if share == 1.0 else f", of which {share:.0%} fit".replace("%", " %")
    return Cure(
        name=CACHE,
        what=f"files read ahead and kept in memory ({room}{held})",
        how="Start it with `prefeed run`, or write `import prefeed.auto`.",
        speedup=m.as_is.step_seconds / seconds,
        first_speedup=m.as_is.step_seconds / first.step_seconds,
    )


def _cache_bytes(m: Measurement) -> int:
    if m.costs is None or m.loader.samples is None or not m.loader.batch_size:
        return 0
    return int(m.costs.file_bytes / m.loader.batch_size * m.loader.samples)


def _workers(m: Measurement) -> Cure:
    number, timing = min(m.workers.items(), key=lambda found: found[1].step_seconds)
    return Cure(
        name=WORKERS,
        what=f"{number} workers instead of {m.loader.num_workers}",
        how=f"DataLoader(..., num_workers={number}); `prefeed tune` tries more.",
        speedup=m.as_is.step_seconds / timing.step_seconds,
    )


def _size(num_bytes: int) -> str:
    if num_bytes >= 5 * 10**7:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 10**6 else "less than 1 MB"


def _stage_cache(m: Measurement, staged: Timing) -> Cure:
    needed = m.staged_bytes * (m.loader.samples or 1)
    room = _size(needed) if m.loader.samples else f"{_size(needed)} a sample"
    fits = needed <= m.loader.memory_bytes
    place = "" if fits else f"; with spilling, for only {m.loader.memory_bytes / 1e9:.1f} GB of memory are free"
    return Cure(
        name=STAGE_CACHE,
        what=f"samples kept as they are made ({room}{place})",
        how="Wrap the dataset: prefeed.CachedDataset(dataset); random steps go above it, with prefeed.map.",
        speedup=m.as_is.step_seconds / staged.step_seconds,
    )


def _of_costs(m: Measurement, costs: Costs, perfect: float) -> Iterator[Cure]:
    if costs.jpeg_saved:
        yield _computed(m, perfect, costs.jpeg_saved / max(1, m.loader.num_workers), FAST_DECODE,
                        "JPEGs decoded and resized by leaner code",
                        "Use prefeed.vision.ResizeCropNormalize as the transform.")  # fmt: skip
    if costs.opening:
        yield _computed(m, perfect, costs.opening / max(1, m.loader.num_workers), PACKING,
                        "many small files packed into few large ones",
                        "prefeed pack SRC OUT, then prefeed.datasets.Packed(OUT).")  # fmt: skip


def _computed(m: Measurement, perfect: float, saved: float, name: str, what: str, how: str) -> Cure:
    """Return a cure that takes so many seconds off each step's data; the computing stays."""
    step = m.as_is.step_seconds
    saved = min(saved, m.as_is.waited_seconds / m.as_is.steps)  # what is not waited for gains nothing
    speedup = min(perfect, step / (step - saved)) if saved < step else perfect
    return Cure(name=name, what=what, how=how, speedup=speedup, is_measured=False)
