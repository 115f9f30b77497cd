"""A slow, counting directory for tests that need an origin whose files are opened by path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefeed_bench.slow_directory import SlowDirectory, slow_directory


@contextmanager
def slow_files(
    source: Path,
    *,
    open_seconds: float = 0.0,
    read_seconds: float = 0.0,
    remember_seconds: int = 3600,
    silent: str = "",
) -> Iterator[SlowDirectory]:
    """As ``slow_directory``; skips the test where /dev/fuse cannot be opened, and fails for everything else."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse for this user, and a directory that counts its opens needs it")
    with slow_directory(
        source, open_seconds=open_seconds, read_seconds=read_seconds, remember_seconds=remember_seconds, silent=silent
    ) as slow:
        yield slow


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Write files by relative path and return ``root``."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root
