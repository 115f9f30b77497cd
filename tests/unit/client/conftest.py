"""Readers and datasets map manifests; nothing of a test outlives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _forget_what_fixtures_returned(request: pytest.FixtureRequest) -> Iterator[None]:
    """Else pytest keeps it, and with it the descriptors of mapped manifests, until after they are counted."""
    yield
    request.node.funcargs.clear()
