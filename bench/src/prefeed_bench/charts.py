"""Bar charts of relative times."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_BASE: Final = "#8a8f98"
_BAR: Final = "#3b6ea5"


@dataclass(slots=True, kw_only=True)
class Bars:
    """One chart.

    Attributes:
        title: What is shown.
        base: Name of what all else is a share of.
        rows: Name, median, lowest, highest.
    """

    title: str
    base: str
    rows: list[tuple[str, float, float, float]] = field(default_factory=list)

    def add(self, name: str, median: float, low: float, high: float) -> None:
        """Add a bar."""
        self.rows.append((name, median, low, high))


def write_bars(bars: Bars, path: Path) -> Path:
    """Draw the bars, the base first; lines show the lowest and the highest run."""
    from matplotlib.figure import Figure  # takes a second to import, and the figures are shown first

    rows = [(bars.base, 1.0, 1.0, 1.0), *bars.rows]
    figure = Figure(figsize=(8, 0.9 + 0.5 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    values = [median for _, median, _, _ in rows]
    spread = [[median - low for _, median, low, _ in rows], [high - median for _, median, _, high in rows]]
    colors = [_BASE] + [_BAR] * len(bars.rows)
    axes.barh([name for name, *_ in rows], values, xerr=spread, color=colors, ecolor="#222222", capsize=3)
    for row, (_, median, _, high) in enumerate(rows):
        axes.text(max(median, high), row, f"  {median:.2f}", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * max(high for *_, high in rows))
    axes.set_xlabel("time of two epochs, relative")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(bars.title, loc="left", fontsize=11)
    figure.savefig(path, dpi=130)
    return path
