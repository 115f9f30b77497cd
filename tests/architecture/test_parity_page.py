"""docs/mindspore-parity.md names tests that exist, and all of them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import warm

pytestmark = pytest.mark.usefixtures("sandbox")

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mindspore-parity.md"
SECTION = re.compile(r"^### .*?\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"`(tests/e2e/test_mindspore_parity_\w+\.py)`")
NAME = re.compile(r"`(test_\w+)(?:\[(\w+)\])?`")
COLLECT = warm.given_as_text("import pytest; pytest.console_main()")


def sections() -> dict[str, list[tuple[str, str]]]:
    """Return for each file of tests the names, with their parameters, that the page has of it."""
    found = {}
    for text in SECTION.findall(PAGE.read_text()):
        for file in FILE.findall(text)[:1]:
            found[file] = NAME.findall(text)
    return found


def functions(file: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse((ROOT / file).read_text())
    return {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_three_files_are_described() -> None:
    files = {f"tests/e2e/{path.name}" for path in (ROOT / "tests/e2e").glob("test_mindspore_parity_*.py")}
    assert set(sections()) == files


@pytest.mark.parametrize("file", sections())
def test_names_exist(file: str) -> None:
    named, existing = sections()[file], functions(file)
    assert {name for name, _ in named} == set(existing)
    assert len(named) == len(set(named))


def test_parameters_exist() -> None:
    """Ask pytest: parameters are made in many ways."""
    wanted = {
        f"{file}::{name}[{parameter}]" for file, named in sections().items() for name, parameter in named if parameter
    }
    line = [sys.executable, "-c", COLLECT, "--collect-only", "-q", "--rootdir", str(ROOT), *sections()]
    listed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert wanted
    assert wanted <= set(listed.stdout.splitlines())
