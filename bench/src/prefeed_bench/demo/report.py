"""What the demo shows: a table, a chart, and a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.table import Table

from prefeed_bench.demo.runner import VARIANTS, DemoResult
from prefeed_bench.demo.training import EpochReport

_NAMES: Final = {"plain": "torch", "prefeed": "prefeed"}
_COMPUTING: Final = "#3b6ea5"
_WAITING: Final = "#e08a3c"


def make_table(result: DemoResult) -> Table:
    """Return the table of both trainings, one row an epoch."""
    latency_ms = 1000 * result.options.latency_seconds
    title = (
        f"ResNet-18 on {result.photos.num_photos:,} JPEGs of {result.photos.mean_bytes / 1000:.0f} KB, "
        f"{latency_ms:g} ms a request"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("loader", no_wrap=True)
    for heading in ("epoch", "time", "images/s", "waiting\nfor data", "hit\nratio", "origin\nrequests"):
        table.add_column(heading, justify="right", no_wrap=True)
    for variant in VARIANTS:
        for report in result.epochs[variant]:
            table.add_row(*_row(variant, report), end_section=report is result.epochs[variant][-1])
    return table


def _row(variant: str, report: EpochReport) -> tuple[str, ...]:
    return (
        _NAMES[variant] if report.epoch == 0 else "",
        str(report.epoch + 1),
        f"{report.seconds:.1f} s",
        f"{report.images / report.seconds:.0f}",
        f"{100 * report.waiting_seconds / report.seconds:.0f} %",
        "-" if report.hit_ratio is None else f"{100 * report.hit_ratio:.0f} %",
        f"{report.origin_requests:,}",
    )


def make_summary(result: DemoResult) -> str:
    """Return the one sentence that a hurried reader takes home."""
    plain, prefeed = result.seconds("plain"), result.seconds("prefeed")
    return (
        f"The same training, {result.speedup:.1f} times as fast: {prefeed:.0f} s instead of {plain:.0f} s. "
        "Every batch and every loss is identical, bit by bit."
    )


def write_chart(result: DemoResult, path: Path) -> None:
    """Draw time an epoch, computing and waiting apart, one bar an epoch and loader."""
    from matplotlib.figure import Figure  # takes a second to import, and the table is shown first

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    reports = [(variant, report) for variant in VARIANTS for report in result.epochs[variant]]
    labels = [f"{_NAMES[variant]}, epoch {report.epoch + 1}" for variant, report in reports]
    waiting = [report.waiting_seconds for _, report in reports]
    computing = [report.seconds - report.waiting_seconds for _, report in reports]
    axes.barh(labels, computing, color=_COMPUTING, label="computing")
    axes.barh(labels, waiting, left=computing, color=_WAITING, label="waiting for data")
    for row, (_, report) in enumerate(reports):
        axes.text(report.seconds, row, f"  {report.seconds:.1f} s", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("seconds an epoch")
    axes.spines[["top", "right"]].set_visible(False)
    latency_ms = 1000 * result.options.latency_seconds
    figure.suptitle(
        f"ResNet-18 on {result.photos.num_photos:,} JPEGs, {latency_ms:g} ms a request: "
        f"{result.speedup:.1f} times as fast, same batches, same losses"
    )
    figure.legend(frameon=False, loc="outside lower right", ncols=2)
    figure.savefig(path, dpi=150)
