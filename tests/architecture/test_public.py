"""What users may name: public modules, their ``__all__``, and what importing them costs."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import types

import pytest

PUBLIC_MODULES = [
    name
    for name in ("prefeed", "prefeed.torch", "prefeed.testing", "prefeed.datasets", "prefeed.sampleset")
    if importlib.util.find_spec(name) is not None
]


def public_names(module: types.ModuleType) -> set[str]:
    """Return what a user sees: names without underscore that are neither modules nor from outside prefeed."""
    found = set()
    for name in dir(module):
        value = getattr(module, name)
        from_here = str(getattr(value, "__module__", "prefeed")).partition(".")[0] == "prefeed"
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and from_here:
            found.add(name)
    return found


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_is_what_is_public(name: str) -> None:
    module = importlib.import_module(name)
    declared = module.__all__

    assert len(declared) == len(set(declared))
    assert {n for n in declared if not isinstance(getattr(module, n), types.ModuleType)} - {"__version__"} == (
        public_names(module)
    )


@pytest.mark.parametrize("name", PUBLIC_MODULES)
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
