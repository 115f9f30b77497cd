"""The verdict of ``prefeed doctor`` as one HTML page that needs nothing else: for both color schemes, also on a phone. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prefeed.diagnose.doctor.verdict import CACHE, Verdict, sentences
from prefeed.diagnose.measurement import Counts

_PARTS: Final = (
    ("computing", "computing", "#3b6ea5", "#6fa3d8"),
    ("origin", "waiting for the origin", "#d9782d", "#f0a15c"),
    ("decode", "decoding", "#8a5fb0", "#b794d8"),
    ("collate", "collating", "#3f8f5f", "#7fc79c"),
    ("transfer", "transfer", "#8d7326", "#d3b75c"),
    ("other", "other waiting", "#7b8794", "#93a1b1"),
)
"""Name, words, color on white and on black of each part of a step."""

_LEAST: Final = 0.005
"""A smaller share of the time is not shown."""

_EPOCHS: Final = (("first", "first epoch", "origin", ""), ("cached", "later epoch", "computing", "7 5"))
"""Epochs of the trial of the cache: name, words, color, and the dashes of its line."""

_WIDTH: Final = 600
_HEIGHT: Final = 160

_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def doctor_page(verdict: Verdict, lines: Sequence[str]) -> str:
    """Return the page.

    Args:
        verdict: What to show.
        lines: The same as ``prefeed doctor`` prints it, with all that was measured.
    """
    shares = [(name, words, share) for name, words, share in shares_of(verdict) if share >= _LEAST]
    first, *rest = (_words(sentence) for sentence in sentences(verdict))
    light, dark = (" ".join(f"--{part[0]}: {part[at]};" for part in _PARTS) for at in (2, 3))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>prefeed doctor</title>
<style>
:root {{ color-scheme: light dark; --paper: #ffffff; --text: #1f2933; --soft: #52606d; --line: #d5dbe2; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #171b22; --text: #f0f3f7; --soft: #b8c2cf; --line: #3a4350; {dark} }} }}
body {{ margin: 0 auto; padding: 1.5rem 1rem; max-width: 52rem; background: var(--paper); color: var(--text); font: 1rem/1.5 {_FONT}; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.1rem; margin: 1.75rem 0 .5rem; }}
.step {{ display: flex; height: 2.25rem; border-radius: 4px; overflow: hidden; }}
ul.key {{ display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none; }}
.key span {{ display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem; }}
dl {{ margin: 0; }}
dt {{ margin-top: .6rem; }}
dd {{ margin: 0; color: var(--soft); }}
.bar {{ height: 1.1rem; border-radius: 2px; background: var(--computing); min-width: 2px; }}
.best .bar {{ background: var(--collate); }}
svg {{ display: block; width: 100%; max-width: 40rem; height: auto; }}
svg text {{ font-size: 13px; fill: var(--soft); }}
@media (max-width: 30rem) {{ svg text {{ font-size: 22px; }} }}
.axis {{ stroke: var(--line); }}
figure {{ margin: 0 0 1rem; }}
pre {{ overflow-x: auto; padding: .75rem; border: 1px solid var(--line); border-radius: 4px; font-size: .85rem; }}
</style></head><body><main>
<h1>{first}</h1>
{"".join(f"<p>{sentence}</p>" for sentence in rest)}
<h2>A step of the loop, {1000 * verdict.step_seconds:.1f} ms</h2>
<div class="step" aria-hidden="true">{"".join(_part(*share) for share in shares)}</div>
<ul class="key">{"".join(_key(*share) for share in shares)}</ul>
<h2>What if: samples per second</h2>
<dl>
{"".join(_what_ifs(verdict))}</dl>
<h2>Through prefeed, over time</h2>
{"".join(_over_time(verdict))}
<h2>All that was measured</h2>
<pre tabindex="0">{html.escape(chr(10).join(lines))}</pre>
</main></body></html>
"""


def _words(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def shares_of(verdict: Verdict) -> Iterator[tuple[str, str, float]]:
    """Yield name, words and share of the time of each part of a step; they sum up to 1."""
    known = verdict.origin + verdict.decode + verdict.collate + verdict.transfer
    for name, words, *_ in _PARTS:
        if name == "computing":
            yield name, words, 1 - verdict.waiting
        elif name == "other":
            yield name, words, max(0.0, verdict.waiting - known)
        else:
            yield name, words, getattr(verdict, name)


def _part(name: str, words: str, share: float) -> str:
    return f'<div style="flex:{share:.4f};background:var(--{name})"></div>'


def _key(name: str, words: str, share: float) -> str:
    return f'<li><span style="background:var(--{name})"></span>{words} {100 * share:.0f} %</li>'


def _what_ifs(verdict: Verdict) -> Iterator[str]:
    """Yield a bar for the job as it is, one for each cure, and one for data loading that takes no time."""
    rows = [("as it is", 1.0, "", False)]
    for cure in verdict.cures:
        how = "measured" if cure.is_measured else "estimated"
        rows.append((cure.name, cure.speedup, f"{cure.what}; {how}. {cure.how}", cure.name == verdict.best))
    rows.append(("perfect data loading", verdict.perfect_speedup, "no batch is ever waited for", False))
    most = max(speedup for _, speedup, _, _ in rows)
    for name, speedup, note, is_best in rows:
        attribute = ' class="best"' if is_best else ""
        chosen = ", the cheapest cure" if is_best else ""
        yield (
            f"<div{attribute}><dt>{html.escape(name)}{chosen}: {verdict.samples_s * speedup:,.0f} ({speedup:.2f} times)</dt>"
            f'<dd><div class="bar" style="width:{100 * speedup / most:.1f}%"></div>{_words(note)}</dd></div>\n'
        )


def _over_time(verdict: Verdict) -> Iterator[str]:
    """Yield hit ratio and requests to the origin while the loop ran through the cache; or why that is not known."""
    found = {name: counts for name, counts in verdict.measurement.counts.items() if len(counts) > 1}
    if not found:
        why = verdict.measurement.reasons.get(CACHE, "the job does not wait for files long enough to try the cache")
        yield f"<p>Not recorded: {_words(why)}.</p>"
        return
    yield (
        "<p>The cache was empty before the first epoch. The later epoch reads the same samples again. "
        "Files that the loop read in place, before the cache was ready, are not counted.</p>\n"
    )
    yield f'<ul class="key">{"".join(_epoch(*each, found) for each in _EPOCHS if each[0] in found)}</ul>\n'
    yield _chart(
        "Hit ratio so far, %", found, lambda counts: None if counts.hit_ratio is None else 100 * counts.hit_ratio
    )
    yield _chart("Requests to the origin so far", found, lambda counts: counts.origin_requests)


def _epoch(name: str, words: str, color: str, dashes: str, found: Mapping[str, Sequence[Counts]]) -> str:
    last = found[name][-1]
    ratio = "no read" if last.hit_ratio is None else f"{100 * last.hit_ratio:.0f} % hits in {last.reads:,} reads"
    line = f'<svg viewBox="0 0 28 10" style="display:inline;width:1.75rem" aria-hidden="true">{_line([(0, 5), (28, 5)], color, dashes)}</svg>'
    return f"<li>{line} {words}: {ratio}, {last.origin_requests:,} requests to the origin in {last.seconds:.1f} s</li>"


def _chart(title: str, found: Mapping[str, Sequence[Counts]], value: Callable[[Counts], float | None]) -> str:
    """Return lines over the seconds since an epoch began, one for each epoch."""
    points = {
        name: [(counts.seconds, y) for counts in found[name] if (y := value(counts)) is not None] for name in found
    }
    right = max((x for line in points.values() for x, _ in line), default=0.0) or 1.0
    top = max((y for line in points.values() for _, y in line), default=0.0) or 1.0
    lines = [
        _line([(_WIDTH * x / right, _HEIGHT * (1 - y / top)) for x, y in points[name]], color, dashes)
        for name, _, color, dashes in _EPOCHS
        if name in points
    ]
    return f"""<figure><figcaption>{title}</figcaption>
<svg viewBox="-64 -16 {_WIDTH + 76} {_HEIGHT + 44}" role="img" aria-label="{title}, by seconds since the epoch began">
<path class="axis" fill="none" d="M0 0V{_HEIGHT}H{_WIDTH}"/>
<text x="-6" y="5" text-anchor="end">{top:,.0f}</text><text x="-6" y="{_HEIGHT}" text-anchor="end">0</text>
<text x="0" y="{_HEIGHT + 22}">0 s</text><text x="{_WIDTH}" y="{_HEIGHT + 22}" text-anchor="end">{right:.1f} s</text>
{"".join(lines)}</svg></figure>
"""


def _line(points: Sequence[tuple[float, float]], color: str, dashes: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<polyline fill="none" stroke-width="2.5" style="stroke:var(--{color})"{dashed} points="{path}"/>'
