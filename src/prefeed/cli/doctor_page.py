"""The verdict of ``prefeed doctor`` as one HTML page that needs nothing else: for both color schemes, also on a phone. Pure."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import Final

from prefeed.diagnose.doctor.verdict import Verdict, sentences

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
