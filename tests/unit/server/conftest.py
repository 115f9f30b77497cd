from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from desk import Desk, desk
from nodes import content
from sandbox import Sandbox

NUM_FILES = 20


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    """A directory of small files."""
    directory = sandbox.root / "origin"
    directory.mkdir()
    for index in range(NUM_FILES):
        (directory / f"{index:03d}.bin").write_bytes(content(index))
    return directory


@pytest.fixture
def server(sandbox: Sandbox) -> Iterator[Desk]:
    with desk() as made:
        yield made
