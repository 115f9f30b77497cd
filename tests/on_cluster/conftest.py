"""Tests against a cluster have no sandbox: their pods are no children of theirs, even if the cluster is on this machine."""

from __future__ import annotations

import pytest


@pytest.fixture
def sandbox() -> None:
    """Replace the sandbox of other tests."""
