"""From numbers to a verdict: is the job waiting for data, for what, which cure is worth its while, and what speaks against it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from prefeed.diagnose.measurement import Costs, LoaderFacts, Measurement, Timing

CACHE: Final = "cache"
WORKERS: Final = "workers"
DEVICE: Final = "device prefetch"
STAGE_CACHE: Final = "stage cache"
FAST_DECODE: Final = "fast decode"
PACKING: Final = "packing"

_LARGE_LISTS: Final = 32 << 20
"""Bytes of a dataset's lists from which on their copies in workers are worth a sentence."""


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
    held = "" if share == 1.0 else f"; {share:.0%} of it fits".replace("%", " %")
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
    room = _size(needed) if m.loader.samples else f"{_size(needed)} per sample"
    fits = needed <= m.loader.memory_bytes
    place = "" if fits else f"; with spilling, because only {m.loader.memory_bytes / 1e9:.1f} GB of memory are free"
    return Cure(
        name=STAGE_CACHE,
        what=f"samples kept as they are made ({room}{place})",
        how="Wrap the dataset: prefeed.CachedDataset(dataset); random steps go above it, with prefeed.mapped.",
        speedup=m.as_is.step_seconds / staged.step_seconds,
    )


def _of_costs(m: Measurement, costs: Costs, perfect: float) -> Iterator[Cure]:
    if m.loader.samples is None and costs.reading:  # of a stream
        yield _computed(m, perfect, costs.reading / max(1, m.loader.num_workers), CACHE,
                        "shards read ahead and kept by the node",
                        "Open them through prefeed: prefeed:URL in WebDataset, prefeed::URL in datasets and fsspec, or "
                        "prefeed.shards(urls).")  # fmt: skip
    if costs.jpeg_saved:
        yield _computed(m, perfect, costs.jpeg_saved / max(1, m.loader.num_workers), FAST_DECODE,
                        "JPEGs decoded and resized by faster code",
                        "Use prefeed.vision.ResizeCropNormalize as the transform.", m.staged)  # fmt: skip
    if costs.opening:
        yield _computed(m, perfect, costs.opening / max(1, m.loader.num_workers), PACKING,
                        "many small files packed into few large ones",
                        "prefeed pack SRC OUT, then prefeed.datasets.Packed(OUT).", m.cached, m.staged)  # fmt: skip


def _computed(
    m: Measurement, perfect: float, saved: float, name: str, what: str, how: str, *bounds: Timing | None
) -> Cure:
    """Return a cure that takes that many seconds off each step's data; the computing stays.

    ``bounds`` are measurements of cures that save all that this one saves, and more: it cannot be quicker than these. None: not measured.
    """
    step = m.as_is.step_seconds
    saved = min(saved, m.as_is.waited_seconds / m.as_is.steps)  # what is not waited for gains nothing
    speedup = min(perfect, step / (step - saved)) if saved < step else perfect
    speedup = min([speedup, *(step / bound.step_seconds for bound in bounds if bound is not None)])
    return Cure(name=name, what=what, how=how, speedup=speedup, is_measured=False)


_LEAST_SECONDS: Final = 0.1
"""A shorter loop says more of the machine's other work than of its own."""

_MOST_NOISE: Final = 0.25
_MOST_ABOVE_PERFECT: Final = 1.15
"""No cure brings more than data loading that takes no time; what it seems to bring beyond so much is no noise."""

_LEAST_SHARE: Final = 0.3
"""The part of the time that a cure takes away must have been so large to be missed."""

_LEAST_GAIN: Final = 0.25
"""What a cure brings must be this share of what taking that part away would bring."""


def doubts_of(
    measurement: Measurement, cures: Sequence[Cure], *, perfect: float, noise: float, origin: float, decode: float
) -> list[str]:
    """Return why the figures should not be believed, in sentences; nothing when they may be.

    Args:
        measurement: All of them.
        cures: What would be gained.
        perfect: The most that can be gained.
        noise: Standard error of a step, as a share of it.
        origin: Share of the time that the loop is said to wait for files.
        decode: The same for samples to be made.
    """
    by_name = {cure.name: cure for cure in cures if cure.is_measured}
    contradictions = [*_too_good(by_name, perfect), *_without_effect(by_name, origin, decode)]
    doubts = [f"These figures contradict each other: {'; '.join(contradictions)}."] if contradictions else []
    is_short = measurement.as_is.seconds < _LEAST_SECONDS or noise > _MOST_NOISE
    if doubts or is_short:
        doubts.append(_how_little(measurement, noise, is_short=is_short))
    return doubts


def _too_good(cures: Mapping[str, Cure], perfect: float) -> Iterator[str]:
    for name, cure in cures.items():
        if cure.speedup > _MOST_ABOVE_PERFECT * perfect:
            yield f"{name} made it {cure.speedup:.1f} times as fast, and the job without data loading is {perfect:.1f} times as fast"


def _without_effect(cures: Mapping[str, Cure], origin: float, decode: float) -> Iterator[str]:
    parts = (
        (CACHE, origin, "for files", "with its files in memory"),
        (STAGE_CACHE, origin + decode, "for files and samples", "with its samples in memory"),
    )
    for name, share, for_what, how in parts:
        cure = cures.get(name)
        if cure is None or not _LEAST_SHARE <= share < 1:
            continue
        expected = 1 / (1 - share)
        if cure.speedup - 1 < _LEAST_GAIN * (expected - 1):
            yield f"it waits {share * 100:.0f} % of its time {for_what}, and {how} it was {cure.speedup:.2f} times as fast"


def _how_little(measurement: Measurement, noise: float, *, is_short: bool) -> str:
    """Return what was measured, and what to do for more."""
    as_is, loader = measurement.as_is, measurement.loader
    num_batches = (
        None if not loader.samples or not loader.batch_size else max(1, round(loader.samples / loader.batch_size))
    )
    text = f"{as_is.steps} steps in {as_is.seconds:.2f} s were measured, give or take {noise * 100:.0f} %"
    if num_batches is not None and num_batches < as_is.steps:
        text += f", always the same {num_batches} batches"
    verdict = "that is too short for a verdict" if is_short else "that may be too little for a verdict"
    return f"{text}: {verdict}. Examine more steps (--steps {max(100, 10 * as_is.steps)}), and more data if this is a part of it."


WORTH_WHILE: Final = 1.05
"""A cure that makes a job less than this factor faster is not worth the time, nor above the noise."""

_NEARLY_BEST: Final = 0.9
"""The cheapest cure is taken that brings this share of what the best one would."""


_WORTH_SAYING: Final = 0.1
_MUCH: Final = 100
"""A loop that does nothing with its batches would be ten thousand times as fast."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a job waits for data, for what, and what to do.

    Attributes:
        waiting: Share of the time that the loop loses by waiting for batches, 0 to 1. A device that computes while the loop
            waits for its next batch loses nothing. The next four sum up to it, or are 0 where the parts are not known.
        origin: For files to be opened and read.
        decode: For samples to be made of them.
        collate: For samples to be put together.
        transfer: For batches to come from the workers, and to the device.
        step_seconds: Seconds of a step as it is.
        samples_s: Samples a second as it is.
        noise: Standard error of ``step_seconds``, as a share of it.
        perfect_speedup: How many times as fast the job would be if data loading took no time.
        cures: What could be done, the cheapest first.
        best: Name of the cheapest of those that help nearly as much as any; None: leave it.
        measurement: What all this was computed from.
        doubts: Why not to believe it: figures that contradict each other, or too few.
    """

    waiting: float
    origin: float
    decode: float
    collate: float
    transfer: float
    step_seconds: float
    samples_s: float
    noise: float
    perfect_speedup: float
    cures: list[Cure]
    best: str | None
    measurement: Measurement
    doubts: list[str] = []

    @property
    def cure(self) -> Cure | None:
        """The cure to take; None: leave it."""
        return next((cure for cure in self.cures if cure.name == self.best), None)

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def judge(measurement: Measurement) -> Verdict:
    """Return the verdict on what was measured."""
    as_is = measurement.as_is
    perfect = max(1.0, as_is.step_seconds / measurement.compute.step_seconds)
    cures = cures_of(measurement, perfect)
    waiting = min(as_is.waited_share, 1 - 1 / perfect)
    origin, decode, collate, transfer = _shares(measurement, waiting)
    noise = as_is.relative_error(max(1, measurement.loader.num_workers))
    return Verdict(
        waiting=waiting,
        origin=origin,
        decode=decode,
        collate=collate,
        transfer=transfer,
        step_seconds=as_is.step_seconds,
        samples_s=measurement.loader.batch_size / as_is.step_seconds,
        noise=noise,
        perfect_speedup=perfect,
        cures=cures,
        best=_best(cures, perfect),
        measurement=measurement,
        doubts=doubts_of(measurement, cures, perfect=perfect, noise=noise, origin=origin, decode=decode),
    )


def _best(cures: list[Cure], perfect: float) -> str | None:
    if perfect < WORTH_WHILE:
        return None
    most = max((cure.speedup for cure in cures), default=0.0)
    worth = [cure for cure in cures if cure.speedup >= max(WORTH_WHILE, 1 + _NEARLY_BEST * (most - 1))]
    return worth[0].name if worth else None


def _shares(measurement: Measurement, waiting: float) -> tuple[float, float, float, float]:
    """Return the shares of the time that the loop waits for the origin, decoding, collating and transfer.

    In proportion to what each takes of one thread's time. Where files cannot be timed, the origin's share is what went
    away when they were in memory.
    """
    costs = measurement.costs
    if costs is None:  # its parts could not be tried
        return 0.0, 0.0, 0.0, 0.0
    workers = max(1, measurement.loader.num_workers)
    fetching = ((costs.opening or 0.0) + (costs.reading or 0.0)) / workers
    parts = [costs.decoding / workers, costs.collating / workers, costs.transferring + (costs.to_device or 0.0)]
    origin = waiting * fetching / (fetching + sum(parts) or 1.0)
    if costs.opening is None and measurement.cached is not None:
        gone = 1 - measurement.cached.step_seconds / measurement.as_is.step_seconds
        origin = min(waiting, max(0.0, gone))
    rest = (waiting - origin) / (sum(parts) or 1.0)
    decode, collate, transfer = (part * rest for part in parts)
    return origin, decode, collate, transfer


def sentences(verdict: Verdict) -> list[str]:
    """Return the verdict in words, a sentence or two a line; what speaks against it comes last."""
    return [*_conclusions(verdict), *_lists(verdict.measurement.loader), *verdict.doubts]


def _lists(loader: LoaderFacts) -> Iterator[str]:
    if loader.num_workers and loader.list_bytes >= _LARGE_LISTS:
        yield (
            f"Its dataset, {loader.dataset}, keeps {_size(loader.list_bytes)} of Python objects in long lists, with or without "
            f"prefeed. Each worker copies what it reads of them: up to {_size(loader.list_bytes * loader.num_workers)} for "
            f"{loader.num_workers}. A NumPy array is not copied: `self.paths = numpy.array(paths)`."
        )


def _conclusions(v: Verdict) -> list[str]:
    lines = [_waiting(v)]
    if v.perfect_speedup < WORTH_WHILE:
        lines.append(
            f"With perfect data loading it would be {_percent(v.perfect_speedup - 1)} faster: "
            "no cache can help; computing takes the time."
        )
        return lines
    lines.append(f"With perfect data loading it would be {_times(v.perfect_speedup)} as fast.{_not_by_waiting(v)}")
    cure = v.cure
    if not v.cures:
        lines.append("No cure could be tried with this loader; `prefeed tune` tries workers and more of its arguments.")
        return lines
    if cure is None:
        lines.append(f"None of the cures that were tried gains more than 5 %{'' if v.doubts else ': leave it'}.")
        return lines
    how = "measured on a few batches" if cure.is_measured else "estimated"
    lines.append(f"Cheapest cure: {cure.what}. Predicted: {_times(cure.speedup)} as fast ({how}). {cure.how}")
    return lines


def _waiting(v: Verdict) -> str:
    parts = [
        (v.origin, "the origin's latency"),
        (v.decode, "making samples" if _files_are_unseen(v) else "decoding"),
        (v.collate, "collating"),
        (v.transfer, "transfer"),
    ]
    named = ", ".join(f"{_percent(share)} for {name}" for share, name in parts if share >= 0.005)
    of_which = f": {named}" if named and v.waiting >= 0.01 else ""
    return f"This job waits for data {_percent(v.waiting)} of its time{of_which}."


def _files_are_unseen(v: Verdict) -> bool:
    """Return True where what is read of files was not told apart from what is made of them: HDF5, LMDB, SQLite."""
    costs = v.measurement.costs
    return costs is not None and costs.opening is None


def _not_by_waiting(v: Verdict) -> str:
    """Return what to say where more would be gained than is waited."""
    if 1 - 1 / v.perfect_speedup - v.waiting < _WORTH_SAYING:
        return ""
    return " That is more than its waiting time: making batches takes processors, or memory, from the computing."


def _times(speedup: float) -> str:
    return f"{speedup:.1f} times" if speedup < _MUCH else f"more than {_MUCH} times"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def beside_the_prediction(before: Verdict, now: Verdict) -> str | None:
    """Return how much faster a job became since it was examined before, beside what was predicted; None: by nothing."""
    cure = before.cure
    if cure is None or not before.samples_s:
        return None
    gained = now.samples_s / before.samples_s
    return (
        f"Since the last examination: {gained:.2f} times as fast "
        f"({before.samples_s:.0f} to {now.samples_s:.0f} samples/s); predicted for {cure.name}: {cure.speedup:.2f}."
    )
