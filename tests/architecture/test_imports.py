"""What import-linter cannot say; its contracts are in pyproject.toml."""

from __future__ import annotations

import ast
from pathlib import Path

import prefeed
import prefeed_bench

PACKAGE = Path(prefeed.__file__).parent
PACKAGES = (PACKAGE, Path(prefeed_bench.__file__).parent)
ROOT = PACKAGE.parent.parent


def modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(PACKAGE.rglob("*.py"))]


def test_nothing_inside_imports_from_the_top_package() -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            whole = isinstance(node, ast.Import) and any(alias.name == "prefeed" for alias in node.names)
            part = isinstance(node, ast.ImportFrom) and (node.level > 0 or takes_a_name_from_the_top(node))
            if whole or part:
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}")

    assert found == []


def test_modules_stay_small_enough_to_read() -> None:
    long = {str(path): n for package in PACKAGES for path in package.rglob("*.py") if (n := lines(path)) > 600}

    assert long == {}


def takes_a_name_from_the_top(node: ast.ImportFrom) -> bool:
    submodules = {path.stem for path in PACKAGE.iterdir()}
    return node.module == "prefeed" and any(alias.name not in submodules for alias in node.names)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())
