"""Frameworks keep descriptors to the end of the process, which the tests' marks say: modules are not looked at for them."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _module_closes_its_files() -> None:
    """In place of the fixture of that name of all other tests."""
