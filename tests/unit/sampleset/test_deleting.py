"""Deleting a sample set whose servers run on other nodes: refused, or without what those have open."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import SampleSetInUseError
from prefeed.machine import Process
from prefeed.sampleset import bringing_up, records
from prefeed.sampleset.bringing_up import delete
from prefeed.sampleset.records import names, remove_deleted
from unit.sampleset.documents import applied, sample_set


@pytest.mark.usefixtures("sandbox")
def test_what_other_nodes_use_stays_until_they_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.bin").write_bytes(b"1")
    monkeypatch.setenv("PREFEED_DISK", "1MiB")
    monkeypatch.setenv("PREFEED_DISK_DIR", str(tmp_path / "disk"))
    found = applied(sample_set(source={"uri": str(tmp_path / "data")}))
    settings = found.settings(resolve())
    own, other = settings.disk_path, settings.disk_path.with_name("0123456789ab-0")
    used = found.home / "nodes" / other.name
    for directory in (own, other, used):
        directory.mkdir(parents=True)
    running = [Process(pid=7, boot="b", host="node-b")]
    for module in (bringing_up, records):
        monkeypatch.setattr(module, "servers_elsewhere", lambda _: running)
    with pytest.raises(SampleSetInUseError, match="process 7 of node-b"):
        delete(found, resolve())
    assert names(resolve()) == ["imagenet"]

    delete(found, resolve(), force=True)
    assert names(resolve()) == []
    assert (own.exists(), other.exists(), used.exists()) == (False, True, True)
    os.utime(found.directory, (0, time.time() - 2 * 24 * 3600))
    remove_deleted(resolve())
    assert used.exists()
    running.clear()
    remove_deleted(resolve())
    assert not found.directory.exists()
