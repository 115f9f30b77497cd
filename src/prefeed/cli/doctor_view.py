"""What ``prefeed doctor`` shows."""

from __future__ import annotations

from collections.abc import Iterator

from prefeed.diagnose.doctor.verdict import Cure, Verdict, sentences
from prefeed.diagnose.measurement import Measurement


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the verdict in words, what was measured, and what could be done."""
    yield from sentences(verdict)
    yield ""
    yield from _measured(verdict.measurement)
    if verdict.cures:
        yield ""
        yield from _cures(verdict.cures)
    for name, reason in verdict.measurement.reasons.items():
        yield f"  {name:<16} not tried: {reason}"


def _measured(m: Measurement) -> Iterator[str]:
    workers = f"{m.loader.num_workers} workers" if m.loader.num_workers != 1 else "1 worker"
    yield f"  {m.loader.dataset}, batches of {m.loader.batch_size:g}, {workers}, {m.loader.cores} cores: ms a batch"
    noise = m.as_is.relative_error(max(1, m.loader.num_workers))
    rows: list[tuple[str, float | None, str]] = [
        ("as it is", m.as_is.step_seconds, f"± {noise:.0%}".replace("%", " %")),
        ("  first epoch", m.first.step_seconds if m.first is not None and m.cached is None else None, ""),
        ("computing alone", m.compute.step_seconds, "the same batch again and again"),
        ("data alone", m.data.step_seconds, "nobody works on the batches"),
    ]
    c = m.costs
    if c is not None:
        rows += [("  opening files", c.opening, "one thread"), ("  reading files", c.reading, "one thread")]
        rows += [("  decoding", c.decoding, "one thread"), ("  collating", c.collating, "one thread")]
        rows += [("  from the worker", c.transferring or None, ""), ("  to the device", c.to_device, "")]
    for name, seconds, note in rows:
        if seconds is not None:
            yield f"  {name:<16} {1000 * seconds:9.1f}  {note}".rstrip()


def _cures(cures: list[Cure]) -> Iterator[str]:
    yield "  cure             times as fast"
    for cure in cures:
        how = "" if cure.is_measured else ", estimated"
        first = "" if cure.first_speedup is None else f", first epoch {cure.first_speedup:.2f}"
        yield f"  {cure.name:<16} {cure.speedup:9.2f}  {cure.what}{first}{how}"
