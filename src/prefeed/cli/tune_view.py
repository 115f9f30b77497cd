"""What ``prefeed tune`` shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prefeed.cli.render import format_bytes
from prefeed.diagnose.tune.report import Trial, Tuning, sentences
from prefeed.diagnose.tune.search import Settings, size_text

_COLUMNS: Final = ("batches/s", "samples/s", "spread", "waited", "memory", "busy")


def tuning_lines(tuning: Tuning) -> Iterator[str]:
    """Yield a table of what was tried, and below it what to do."""
    yield from _table(tuning)
    yield ""
    yield from sentences(tuning)


def _table(tuning: Tuning) -> Iterator[str]:
    names = _names_of(tuning)
    rows = [_cells(trial) for trial in tuning.trials if trial.batches_s is not None]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    left = max(len(name) for name in ("setting", *names))
    yield _line("setting".ljust(left), _COLUMNS, widths)
    cells = iter(rows)
    for name, trial in zip(names, tuning.trials, strict=True):
        if trial.batches_s is not None:
            yield _line(name.ljust(left), next(cells), widths)
        if trial.reason is not None:
            yield f"  {name.ljust(left)}  {trial.reason}"


def _names_of(tuning: Tuning) -> list[str]:
    marks = {tuning.present: " (present)", tuning.settings: " (best)"}
    if tuning.leave_it:
        marks = {tuning.present: " (present)"}
    return [setting_text(trial.settings) + marks.get(trial.settings, "") for trial in tuning.trials]


def _line(name: str, cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(["", name, *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])


def setting_text(settings: Settings) -> str:
    """Return ``4 workers x 2``, and what else is set."""
    workers = "1 worker" if settings.num_workers == 1 else f"{settings.num_workers} workers"
    parts = [f"{workers} x {settings.prefetch_factor}" if settings.num_workers else workers]
    if settings.pin_memory:
        parts.append("pinned")
    if settings.threads is not None:
        parts.append("1 thread" if settings.threads == 1 else f"{settings.threads} threads")
    if settings.lookahead is not None:
        parts.append(f"lookahead {size_text(settings.lookahead)}, first epoch")
    return ", ".join(parts)


def _cells(trial: Trial) -> tuple[str, ...]:
    return (
        _number(trial.batches_s),
        _number(trial.samples_s),
        "-" if trial.spread is None else f"± {100 * trial.spread:.0f} %",
        f"{100 * trial.waited_share:.0f} %",
        format_bytes(trial.memory_bytes) if trial.memory_bytes else "-",
        f"{trial.cpus:.1f}",
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
