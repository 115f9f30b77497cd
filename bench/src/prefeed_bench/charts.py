"""Bar charts of medians, for people who do not read tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

Bar = tuple[str, float, tuple[float, float]]
"""A name, the median, and the lowest and the highest run."""

_PLAIN: Final = "#8a8f98"
_OTHER: Final = "#3b6ea5"


def write_bars(title: str, label: str, bars: Sequence[Bar], path: Path, *, digits: int, plain: str) -> Path:
    """Draw one horizontal bar per name; lines show the lowest and the highest run.

    Args:
        title: Above the chart.
        label: Below the chart: what is measured, and its unit.
        bars: From top to bottom.
        path: Where the PNG is written; its directory exists.
        digits: Decimals of the values beside the bars.
        plain: Name of the bar that the others are compared with; it is grey.

    Returns:
        ``path``.
    """
    from matplotlib.figure import Figure  # takes a second to import, and the figures are shown first

    figure = Figure(figsize=(8, 0.9 + 0.5 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    values = [median for _, median, _ in bars]
    spread = [[median - low for _, median, (low, _) in bars], [high - median for _, median, (_, high) in bars]]
    colors = [_PLAIN if name == plain else _OTHER for name, *_ in bars]
    axes.barh([name for name, *_ in bars], values, xerr=spread, color=colors, ecolor="#222222", capsize=3)
    for row, (_, median, (_, high)) in enumerate(bars):
        axes.text(max(median, high), row, f"  {median:,.{digits}f}", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(high for _, _, (_, high) in bars))
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    figure.savefig(path, dpi=130)
    return path
