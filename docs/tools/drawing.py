"""Drawings from text: boxes, groups and arrows of a YAML file, as one SVG for each color scheme.

    python docs/tools/drawing.py     # docs/drawings/*.yaml -> docs/images/*-light.svg, *-dark.svg

The pictures are kept in the repository, because its readers see them there; a test compares them with their source.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

DOCS: Final = Path(__file__).parents[1]
SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {
        "paper": "#ffffff", "text": "#1f2933", "soft": "#52606d", "line": "#7b8794", "group": "#f3f5f8",
        "torch": "#fbe6d4", "prefeed": "#d6e6f6", "data": "#dcefe2", "edge": "#9aa5b1",
    },
    "dark": {
        "paper": "#1e2129", "text": "#f0f3f7", "soft": "#b8c2cf", "line": "#93a1b1", "group": "#282c36",
        "torch": "#5a3a1f", "prefeed": "#1f4264", "data": "#204a35", "edge": "#5d6875",
    },
}  # fmt: skip
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
LINE_PIXELS: Final = 18
SIDES: Final = {"left": (0.0, None), "right": (1.0, None), "top": (None, 0.0), "bottom": (None, 1.0)}


def draw(source: Mapping[str, Any], scheme: str) -> str:
    """Return the SVG of a drawing.

    Args:
        source: ``title``, ``size``, ``groups``, ``boxes`` and ``arrows``, as the files of ``docs/drawings`` have them.
        scheme: A key of ``SCHEMES``.
    """
    color = SCHEMES[scheme]
    width, height = source["size"]
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="{FONT}">'
        ),
        f"<title>{html.escape(source['title'])}</title>",
        (
            f'<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{color["line"]}"/></marker></defs>'
        ),
        f'<rect width="{width}" height="{height}" rx="10" fill="{color["paper"]}"/>',
    ]
    for group in source["groups"]:
        lines += [
            _rectangle(group["at"], color["group"], color["edge"], dashed=True),
            _text(group["at"][0] + 14, group["at"][1] + 24, group["text"], 13, color["soft"], anchor="start"),
        ]
    for box in source["boxes"].values():
        lines += [_rectangle(box["at"], color[box["kind"]], color["edge"]), *_inside(box, color)]
    for arrow in source["arrows"]:
        lines += _arrow(arrow, source["boxes"], color)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rectangle(at: Sequence[float], fill: str, edge: str, *, dashed: bool = False) -> str:
    x, y, width, height = at
    dashes = ' stroke-dasharray="4 4"' if dashed else ""
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{edge}"{dashes}/>'


def _text(x: float, y: float, text: str, size: int, fill: str, *, anchor: str = "middle", weight: int = 400) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">'
        f"{html.escape(text)}</text>"
    )


def _inside(box: Mapping[str, Any], color: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a box: the first is its name."""
    x, y, width, height = box["at"]
    first = y + height / 2 - (len(box["text"]) - 1) * LINE_PIXELS / 2 + 5
    for number, line in enumerate(box["text"]):
        size, weight, fill = (15, 600, color["text"]) if number == 0 else (13, 400, color["text"])
        yield _text(x + width / 2, first + number * LINE_PIXELS, line, size, fill, weight=weight)


def _arrow(arrow: Mapping[str, Any], boxes: Mapping[str, Any], color: Mapping[str, str]) -> Iterator[str]:
    (x0, y0), (x1, y1) = _end(arrow["from"], boxes), _end(arrow["to"], boxes)
    yield (
        f'<path d="M{x0:g} {y0:g}L{x1:g} {y1:g}" stroke="{color["line"]}" stroke-width="2" fill="none" '
        'marker-end="url(#head)"/>'
    )
    texts = arrow.get("text", [])
    is_upright = abs(x0 - x1) < 1
    for number, text in enumerate(texts):
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        if is_upright:
            yield _text(x - 10, y + 5, text, 13, color["soft"], anchor="end")
        else:
            yield _text(x, y - 10 + LINE_PIXELS * (number - len(texts) + 1), text, 13, color["soft"])


def _end(text: str, boxes: Mapping[str, Any]) -> tuple[float, float]:
    """Return the point that ``box.side`` or ``box.side 0.3`` names."""
    name, _, rest = text.partition(".")
    side, _, share = rest.partition(" ")
    x, y, width, height = boxes[name]["at"]
    along = float(share or 0.5)
    across, down = SIDES[side]
    return x + width * (along if across is None else across), y + height * (along if down is None else down)


def pictures(docs: Path) -> dict[Path, str]:
    """Return the text of each picture by its file."""
    return {
        docs / "images" / f"{path.stem}-{scheme}.svg": draw(yaml.safe_load(path.read_text()), scheme)
        for path in sorted((docs / "drawings").glob("*.yaml"))
        for scheme in SCHEMES
    }


if __name__ == "__main__":
    for path, text in pictures(DOCS).items():
        path.write_text(text)
