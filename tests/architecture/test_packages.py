"""What a package says it holds is what lies in its folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import prefeed
import prefeed_bench

ROOT = Path(prefeed.__file__).parent
BENCH = Path(prefeed_bench.__file__).parent
PACKAGES = sorted(
    folder
    for folder in [*ROOT.iterdir(), BENCH]
    if (folder / "__init__.py").exists() and sum(not one.stem.startswith("__") for one in folder.glob("*.py")) > 1
)
ROW = re.compile(r"^``(\w+)``  +\S", re.MULTILINE)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda folder: folder.name)
def test_the_docstring_lists_every_module_once(package: Path) -> None:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False) or ""
    modules = [one.stem for one in package.glob("*.py") if not one.stem.startswith("__")]
    folders = [one.name for one in package.iterdir() if (one / "__init__.py").exists()]
    assert sorted(ROW.findall(text)) == sorted([*modules, *folders])


def test_the_overview_names_every_package() -> None:
    """ARCHITECTURE.md has a row for each, and for no other."""
    text = Path(__file__).parents[2].joinpath("ARCHITECTURE.md").read_text()
    rows = re.findall(r"^\| `(\w+)/`", text, re.MULTILINE)
    there = [one.name for one in ROOT.iterdir() if one.is_dir() and list(one.glob("*.py"))]
    assert sorted(rows) == sorted(there)
