"""Documents lead somewhere: every relative link is that of a file, every anchor that of a heading; drawings are those of their text."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)|(?:src|srcset)=\"(?P<source>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} (?P<text>.+?)\s*$", re.MULTILINE)


def slug(heading: str) -> str:
    """Return GitHub's anchor of a heading, and the site's."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(slug(found["text"]) for found in HEADING.finditer(FENCE.sub("", page.read_text())))


def broken(page: Path) -> list[str]:
    text = CODE.sub("", FENCE.sub("", page.read_text()))
    found = []
    for link in LINK.finditer(text):
        target = link["target"] or link["source"]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        leads_to = page if not path else (page.parent / path)
        if not leads_to.exists() or (anchor and leads_to.suffix == ".md" and anchor not in anchors(leads_to.resolve())):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# One: `two`\n```\n# no heading\n```\n")
    page = tmp_path / "a.md"
    page.write_text("[1](b.md#one-two) [2](b.md#no-heading) [3](c.md) [4](https://x.example/c.md) `[5](d.md)`\n")

    assert broken(page) == ["b.md#no-heading", "c.md"]


def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "docs" / "tools" / "drawing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_drawings_are_those_of_their_text() -> None:
    pictures = drawing().pictures(ROOT / "docs")

    assert pictures
    assert [path.name for path, text in pictures.items() if not path.exists() or path.read_text() != text] == []
