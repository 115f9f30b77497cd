"""The Python on README.md and on the pages of the documentation works as it stands there.

Recipes of frameworks that are not installed with prefeed's tests are run by ``make test-programs`` and ``make test-frameworks``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import prefeed
from leaks import wait_until
from pages import ROOT, run_page
from snippets import read_page

DOCS = ROOT / "docs"
RECIPES = DOCS / "integrations"
PROGRAMS = ("huggingface", "monai", "timm", "ultralytics")
"""Run by tests/programs/test_pages.py."""

FRAMEWORKS = ("grain", "mindspore", "paddle", "tensorflow")
"""Run by tests/frameworks, each by the file of its framework."""

HERE = sorted(path for path in RECIPES.glob("*.md") if path.stem not in (*PROGRAMS, *FRAMEWORKS))
PAGES = sorted(
    [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "guide").glob("*.md"), *(DOCS / "reference").glob("*.md")]
)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(path: Path, tmp_path: Path, record_property) -> None:
    page = run_page(path, tmp_path)
    record_property("num_not_run", page.num_not_run)


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_recipes_are_served(path: Path, tmp_path: Path) -> None:
    page = run_page(path, tmp_path)

    assert not page.num_run or wait_until(lambda: prefeed.statistics().reads >= 24, timeout_seconds=60)


def test_every_recipe_is_run_somewhere() -> None:
    elsewhere = {
        *PROGRAMS,
        *(name for name in FRAMEWORKS if list((ROOT / "tests" / "frameworks").glob(f"test_{name}*.py"))),
    }

    assert {path.stem for path in HERE} | elsewhere == {path.stem for path in RECIPES.glob("*.md")}


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_line_numbers_are_the_pages(tmp_path: Path) -> None:
    page = read_page(write(tmp_path, "# Title\n\n```python\na = 1\n```\n\ntext\n\n```python\nb = a\n```\n"))

    assert page.script.splitlines() == ["", "", "", "a = 1", "", "", "", "", "", "b = a", ""]
    assert (page.num_run, page.num_not_run) == (2, 0)


def test_blocks_not_run_are_counted(tmp_path: Path) -> None:
    page = read_page(write(tmp_path, "# T\n```python\n# not run: needs a bucket\nboom\n```\n```sh\nls\n```\n"))

    assert page.script.strip() == ""
    assert (page.num_run, page.num_not_run) == (0, 1)


def test_open_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2 is never closed"):
        read_page(write(tmp_path, "# T\n```python\na = 1\n"))
