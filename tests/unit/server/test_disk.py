"""A disk that fails is no error: nothing is stored, questions are answered, and the tier works again afterwards."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from leaks import wait_until
from log_tiers import key_of, value_of
from prefeed.server.disk import DiskTier
from prefeed.store.log import LogWriter
from prefeed.types import ClearResult

pytestmark = pytest.mark.usefixtures("sandbox")


def failing(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "the disk does not answer")


@pytest.mark.parametrize("operation", ["put_many", "free_many", "clear"])
def test_a_disk_that_fails(tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(tmp_path / "objects", budget_bytes=1 << 20, min_free_bytes=0)
    tier.offer(key_of(1), value_of(1, 1000))
    assert wait_until(lambda: len(tier.keys()) == 1, timeout_seconds=30)
    with monkeypatch.context() as broken:
        broken.setattr(LogWriter, operation, failing)
        if operation == "put_many":
            tier.offer(key_of(2), value_of(2, 1000))
            assert wait_until(lambda: tier.num_refused == 1, timeout_seconds=30)
        else:
            keys = [memoryview(key_of(1))] if operation == "free_many" else None
            assert cleared(tier, keys) == ClearResult(entries=0, bytes=0)
    assert tier.read(key_of(1)) == value_of(1, 1000)
    assert cleared(tier, None) == ClearResult(entries=1, bytes=1000)
    tier.close()


def test_files_that_cannot_be_made_again_are_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(tmp_path / "objects", budget_bytes=1 << 20, min_free_bytes=0)
    (tmp_path / "objects" / "index").unlink()
    with monkeypatch.context() as broken:
        broken.setattr(LogWriter, "__init__", failing)
        tier.offer(key_of(1), value_of(1, 1000))
        assert wait_until(lambda: tier.unwritten_bytes == 0, timeout_seconds=30)
    tier.offer(key_of(2), value_of(2, 1000))
    assert wait_until(lambda: (tmp_path / "objects" / "index").exists() and len(tier.keys()) == 1, timeout_seconds=30)
    assert tier.read(key_of(2)) == value_of(2, 1000)
    tier.close()


def cleared(tier: DiskTier, keys: list[memoryview] | None) -> ClearResult:
    results: list[ClearResult] = []
    then: Callable[[ClearResult], None] = results.append
    tier.clear(keys, then)
    assert wait_until(lambda: bool(results), timeout_seconds=30)
    return results[0]
