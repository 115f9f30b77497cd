"""The prose of each package may become plainer, and not less plain: a ratchet."""

from __future__ import annotations

from pathlib import Path

import pytest

import prefeed
from architecture.prose import rate_of

PACKAGE = Path(prefeed.__file__).parent

LIMITS = {
    "prefeed": 0.3,
    "cli": 1.3,
    "client": 32.4,
    "copying": 0.0,
    "core": 30.9,
    "datasets": 0.0,
    "diagnose": 1.1,
    "files": 0.0,
    "frameworks": 1.3,
    "fuse": 0.0,
    "interception": 0.3,
    "jobs": 0.3,
    "kubernetes": 1.0,
    "loaders": 31.0,
    "mount": 0.7,
    "packing": 8.0,
    "pool": 0.7,
    "run_summary": 0.0,
    "sampleset": 0.8,
    "server": 50.1,
    "sources": 27.4,
    "stage_cache": 42.2,
    "store": 34.3,
    "system": 1.4,
    "torch": 31.4,
    "transfer": 0.0,
    "vision": 0.0,
    "wire": 36.2,
}
"""Constructions per 1,000 words that a package may have. Lower a limit after its package has become plainer; never raise one."""


def test_every_package_has_a_limit() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}

    assert set(LIMITS) == packages | {"prefeed"}


@pytest.mark.parametrize("name", LIMITS)
def test_prose_is_at_least_as_plain_as_before(name: str) -> None:
    paths = PACKAGE.glob("*.py") if name == "prefeed" else (PACKAGE / name).rglob("*.py")

    assert rate_of(paths) <= LIMITS[name] + 0.05, f"rewrite docstrings or comments that you added to {name}/"
