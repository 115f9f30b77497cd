"""Python blocks of a Markdown page, as one script whose line numbers are the page's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = re.compile(r"\s*# not run\b")


@dataclass(frozen=True)
class Page:
    """Blocks that are run, one after another in one namespace, how many are not, and what was printed."""

    script: str
    num_run: int
    num_not_run: int
    printed: str = ""


def read_page(path: Path, *, first_line: str = "") -> Page:
    """Return the page's blocks fenced as ``python``; one that begins with ``# not run`` is left out.

    Args:
        path: A Markdown file.
        first_line: Python to run before the page's own, in the place of its title.
    """
    lines = path.read_text().splitlines()
    kept = [""] * len(lines)
    num_run = num_not_run = 0
    start: int | None = None
    for number, line in enumerate(lines):
        if start is None and line.strip() == "```python":
            start = number + 1
        elif start is not None and line.strip() == "```":
            block = lines[start:number]
            if block and NOT_RUN.match(block[0]):
                num_not_run += 1
            else:
                kept[start:number] = block
                num_run += 1
            start = None
    if start is not None:
        raise ValueError(f"{path}: the block at line {start} is never closed")
    return Page(script="\n".join([first_line, *kept[1:]]) + "\n", num_run=num_run, num_not_run=num_not_run)
