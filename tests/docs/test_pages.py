"""The Python on README.md and on the pages of the documentation works as it stands there, with the settings that users have.

Each page is run twice in the same directory, on a local disk, and each recipe of a framework once, since a second run of a
recipe finds nothing of the first. Pages and recipes that depend on how quick storage is are also run on a slow mount.
Recipes of frameworks that are not installed with prefeed's tests are run by ``make test-programs`` and ``make test-frameworks``.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import prefeed
from limits import set_limits
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


@pytest.fixture(autouse=True)
def _settings_of_users(monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, read_in_place=True, start_ahead=True)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(path: Path, tmp_path: Path, record_property) -> None:
    page = run_page(path, tmp_path, times=2)
    record_property("num_not_run", page.num_not_run)


@pytest.mark.parametrize("name", ["run", "sample-files", "files"])
def test_guides_on_slow_storage(name: str, tmp_path: Path) -> None:
    run_page(DOCS / "guide" / f"{name}.md", tmp_path, is_slow=True)


@pytest.mark.parametrize("path", HERE, ids=lambda path: path.stem)
def test_recipes_on_a_local_disk(path: Path, tmp_path: Path) -> None:
    """Nothing is cached, and the log says so, as the page does."""
    page = run_page(path, tmp_path)

    assert prefeed.statistics().hits == 0
    if "prefeed.auto" in page.script:
        assert page.printed.count("do not lie on a network file system") == 1
    assert not page.num_run or "On a local disk nothing is cached" in path.read_text()


@pytest.mark.parametrize("path", [path for path in HERE if read_page(path).num_run], ids=lambda path: path.stem)
def test_recipes_on_slow_storage(path: Path, tmp_path: Path) -> None:
    """Each of the 24 pictures is counted once per epoch, from the cache or in place."""
    page = run_page(path, tmp_path, is_slow=True)

    assert "not used for this loader" not in page.printed
    if "prefeed.auto" in page.script:
        assert re.findall(r"epoch (\d) of .* of (\d+) reads", page.printed) == [("1", "24"), ("2", "24")]


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
