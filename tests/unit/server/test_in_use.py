"""A server says what it has in use, again and again: others remove what nobody uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prefeed.server.main import _keep_in_use
from prefeed.store.node_directory import BEAT_SECONDS, NodeDirectory


def test_what_is_in_use_is_touched(tmp_path: Path) -> None:
    later: list[tuple[float, Callable[[], None]]] = []
    loop: Any = SimpleNamespace(call_later=lambda seconds, function: later.append((seconds, function)))
    listing, runtime = tmp_path / "listing", tmp_path / "runtime"
    for directory in (listing, runtime):
        directory.mkdir()
    datasets = {1: SimpleNamespace(manifest=SimpleNamespace(directory=tmp_path / "gone"))}
    own = NodeDirectory.claim(tmp_path / "nodes")
    try:
        _keep_in_use(own, [runtime], SimpleNamespace(datasets=datasets), loop)  # type: ignore[arg-type]
        datasets[2] = SimpleNamespace(manifest=SimpleNamespace(directory=listing))
        touched = (listing, runtime, own.path / "lock")
        for path in touched:
            os.utime(path, (0, 0))
        ((seconds, again),) = later
        again()
        assert seconds == BEAT_SECONDS
        assert all(path.stat().st_mtime > 0 for path in touched)
        assert len(later) == 2
    finally:
        own.close()
