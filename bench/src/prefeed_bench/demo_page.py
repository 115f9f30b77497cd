"""What the demonstration measured, as a picture and as a page of its own: SVG and HTML without anything from elsewhere. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any, Final

SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "light": {"text": "#1f2933", "soft": "#52606d", "computing": "#3b6ea5", "waiting": "#d9782d", "line": "#d5dbe2"},
    "dark": {"text": "#f0f3f7", "soft": "#b8c2cf", "computing": "#6fa3d8", "waiting": "#f0a15c", "line": "#3a4350"},
}
"""Colors by scheme; the same two for computing and waiting in every picture."""

LOADERS: Final = {"plain": "torch's DataLoader", "prefeed": "prefeed.DataLoader"}
_WIDTH: Final = 760
_LEFT: Final = 190
_ROOM: Final = 470
_ROW: Final = 30
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def chart(facts: Mapping[str, Any], colors: Mapping[str, str]) -> str:
    """Return bars of all epochs as SVG, computing and waiting apart.

    Args:
        facts: ``DemoResult.to_json()``.
        colors: One of ``SCHEMES``, or other values of the same keys, such as ``var(--text)``.
    """
    rows = list(_rows(facts))
    longest = max(epoch["seconds"] for _, _, epoch in rows)
    height = 84 + _ROW * len(rows) + 12
    lines = [
        _opening(facts, height),
        _text(0, 20, title(facts), colors["text"], weight=600),
        f'<rect x="{_LEFT}" y="36" width="12" height="12" rx="2" fill="{colors["computing"]}"/>',
        _text(_LEFT + 18, 47, "computing", colors["soft"]),
        f'<rect x="{_LEFT + 110}" y="36" width="12" height="12" rx="2" fill="{colors["waiting"]}"/>',
        _text(_LEFT + 128, 47, "waiting for data", colors["soft"]),
    ]
    for number, (variant, name, epoch) in enumerate(rows):
        y = 64 + _ROW * number + (12 if variant == "prefeed" else 0)
        lines += _bar(y, name, epoch, _ROOM / longest, colors)
    return "\n".join([*lines, "</svg>"]) + "\n"


def _opening(facts: Mapping[str, Any], height: int) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    name = f"<title>{html.escape(title(facts))}</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{_FONT}" font-size="14">{name}'


def _rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for variant in LOADERS:
        for number, epoch in enumerate(facts["epochs"][variant], start=1):
            yield variant, f"{'torch' if variant == 'plain' else 'prefeed'}, epoch {number}", epoch


def _bar(y: int, name: str, epoch: Mapping[str, Any], scale: float, colors: Mapping[str, str]) -> Iterator[str]:
    waiting = epoch["waiting_ratio"] * epoch["seconds"] * scale
    computing = epoch["seconds"] * scale - waiting
    label = f"{epoch['seconds']:.1f} s, {100 * epoch['waiting_ratio']:.0f} % waiting"
    yield _text(_LEFT - 12, y + 16, name, colors["text"], anchor="end")
    yield f'<rect x="{_LEFT}" y="{y}" width="{computing:.1f}" height="22" fill="{colors["computing"]}"/>'
    yield f'<rect x="{_LEFT + computing:.1f}" y="{y}" width="{waiting:.1f}" height="22" fill="{colors["waiting"]}"/>'
    if computing + waiting > 0.7 * _ROOM:
        yield _text(_LEFT + computing + waiting - 8, y + 16, label, "#14191f", anchor="end")
    else:
        yield _text(_LEFT + computing + waiting + 8, y + 16, label, colors["soft"])


def _text(x: float, y: float, text: str, fill: str, *, anchor: str = "start", weight: int = 400) -> str:
    weighs = f' font-weight="{weight}"' if weight != 400 else ""
    return f'<text x="{x:.1f}" y="{y}" fill="{fill}" text-anchor="{anchor}"{weighs}>{html.escape(text)}</text>'


def title(facts: Mapping[str, Any]) -> str:
    """Return what was done, and how much faster it was."""
    return (
        f"ResNet-18 on {facts['images']:,} JPEGs, {1000 * facts['latency_seconds']:g} ms per request: "
        f"{facts['speedup']:.1f} times as fast, same batches"
    )


def page(facts: Mapping[str, Any]) -> str:
    """Return one HTML page that needs nothing else: the picture, a row per epoch, and the machine; for both color schemes.

    Args:
        facts: ``DemoResult.to_json()``.
    """
    variables = {name: f"var(--{name})" for name in SCHEMES["light"]}
    light, dark = (_declared(SCHEMES[scheme]) for scheme in ("light", "dark"))
    rows = "\n".join(_table_row(name, epoch) for _, name, epoch in _rows(facts))
    host = ", ".join(f"{html.escape(str(name))}: {html.escape(str(value))}" for name, value in facts["host"].items())
    plain, prefeed = (sum(epoch["seconds"] for epoch in facts["epochs"][variant]) for variant in LOADERS)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>prefeed demo</title>
<style>
:root {{ color-scheme: light dark; --paper: #ffffff; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #171b22; {dark} }} }}
body {{ margin: 0 auto; padding: 1.5rem 1rem; max-width: 52rem; background: var(--paper); color: var(--text); font: 1rem/1.5 {_FONT}; }}
h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
p {{ color: var(--soft); }}
.scroll {{ overflow-x: auto; }}
svg {{ width: 100%; height: auto; min-width: 40rem; }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .35rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
</style></head><body><main>
<h1>The same training, {facts["speedup"]:.1f} times as fast</h1>
<p>{prefeed:.0f} s instead of {plain:.0f} s for {len(facts["epochs"]["plain"])} epochs. Every batch and every loss is identical, bit by bit.</p>
<div class="scroll" tabindex="0" role="region" aria-label="seconds per epoch">
{chart(facts, variables)}</div>
<div class="scroll" tabindex="0" role="region" aria-label="all figures">
<table><thead><tr><th scope="col">loader, epoch</th><th scope="col">seconds</th><th scope="col">images/s</th>
<th scope="col">waiting</th><th scope="col">hit ratio</th><th scope="col">requests</th></tr></thead>
<tbody>
{rows}
</tbody></table></div>
<p>{facts["image_bytes"] / 1e6:,.0f} MB of pictures, served over HTTP on the same machine. {host}</p>
</main></body></html>
"""


def _declared(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


def _table_row(name: str, epoch: Mapping[str, Any]) -> str:
    hits = "-" if epoch["hit_ratio"] is None else f"{100 * epoch['hit_ratio']:.0f} %"
    cells = (
        f"{epoch['seconds']:.1f}",
        f"{epoch['images_per_s']:,.0f}",
        f"{100 * epoch['waiting_ratio']:.0f} %",
        hits,
        f"{epoch['origin_requests']:,}",
    )
    return f'<tr><th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
