"""What users may name: public modules, their ``__all__``, and what importing them costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("sandbox")

NAMES = ("prefeed", "prefeed.torch", "prefeed.datasets", "prefeed.sampleset")
SOURCES = {
    name: source
    for name in NAMES
    if (spec := importlib.util.find_spec(name)) and spec.origin and (source := Path(spec.origin).read_text().strip())
}
"""Public modules that there are, and their text."""


def public_names(name: str) -> set[str]:
    """Return what a user sees: what a package re-exports, and what a module of its own defines."""
    module = importlib.import_module(name)
    if not hasattr(module, "__path__"):
        return {defined for defined in defined_names(SOURCES[name]) if not defined.startswith("_")}
    return {
        n for n in dir(module) if not n.startswith("_") and n != "TYPE_CHECKING" and is_from_prefeed(getattr(module, n))
    }


def defined_names(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found.update(target.id for target in targets if isinstance(target, ast.Name))
    return found


def is_from_prefeed(value: object) -> bool:
    return not isinstance(value, types.ModuleType) and str(getattr(value, "__module__", "prefeed")).startswith(
        "prefeed"
    )


@pytest.mark.parametrize("name", SOURCES)
def test_all_is_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    submodules = {n for n in module.__all__ if isinstance(getattr(module, n), types.ModuleType)}

    assert len(module.__all__) == len(set(module.__all__))
    assert set(module.__all__) - submodules == public_names(name)


@pytest.mark.parametrize("name", SOURCES)
def test_public_names_are_documented(name: str) -> None:
    module = importlib.import_module(name)

    assert module.__doc__
    assert [
        n for n in module.__all__ if callable(getattr(module, n)) and not (getattr(module, n).__doc__ or "").strip()
    ] == []


def imported_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter imports for a statement, from ``-X importtime``."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", statement], capture_output=True, text=True, check=True
    )
    return {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}


def test_importing_prefeed_imports_nothing_heavy() -> None:
    imported = imported_by("import prefeed")

    assert "prefeed" in imported
    assert not imported & {"torch", "torchvision", "obstore", "rich", "click", "matplotlib", "moto", "boto3", "PIL"}


def test_every_layer_but_torch_works_without_torch() -> None:
    layers = "cli.main, client, config, core, errors, server, sources, store, types, wire"
    statement = "import " + ", ".join(f"prefeed.{layer.strip()}" for layer in layers.split(","))

    assert "torch" not in imported_by(statement)


def test_importtime_sees_a_heavy_import() -> None:
    assert "json.decoder" in imported_by("import json")
    assert json.decoder.__name__ == "json.decoder"
