"""Deleting a sample set whose servers run on other nodes: refused, or without what those have open."""

from __future__ import annotations

import fcntl
import math
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from prefeed.config import resolve
from prefeed.errors import SampleSetInUseError
from prefeed.sampleset import provision, records
from prefeed.sampleset.provision import delete
from prefeed.sampleset.records import SampleSet, names, remove_deleted
from prefeed.system import locks
from prefeed.system.machine import Process
from unit.sampleset.documents import applied, sample_set


@pytest.mark.usefixtures("sandbox")
def test_what_other_nodes_use_stays_until_they_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1.bin").write_bytes(b"1")
    monkeypatch.setenv("PREFEED_DISK", f"1MiB:{tmp_path / 'disk'}")
    found = applied(sample_set(source={"uri": str(tmp_path / "data")}))
    settings = found.settings(resolve())
    own, other = settings.disk_path, settings.disk_path.with_name("0123456789ab-0")
    used = found.home / "nodes" / other.name
    for directory in (own, other, used):
        directory.mkdir(parents=True)
    running = [Process(pid=7, boot="b", host="node-b")]
    for module in (provision, records):
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


class Holder:
    """Has a lock, as another process or node would, by a clock of the test's own; it says so every so many seconds, or never."""

    def __init__(self, path: Path, *, says_so_every: float) -> None:
        self.now = 0.0
        self._said = 0.0
        self._every = says_so_every
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def pass_time(self, *_: object) -> None:
        self.now += 7
        if self.now - self._said >= self._every:
            self._said = self.now
            os.utime(self._file, (0, self.now))
        if self.now > 7200 and self._file >= 0:
            self.let_go()

    def let_go(self) -> None:
        os.close(self._file)
        self._file = -1
        self._every = math.inf


def applying(_: Path) -> AbstractContextManager[None]:
    return records.lock_sets(resolve())


def working(directory: Path) -> AbstractContextManager[None]:
    return records.lock_set(cast("SampleSet", SimpleNamespace(directory=directory)))


@pytest.mark.usefixtures("sandbox")
@pytest.mark.parametrize(
    ("name", "take", "says_so_every", "waited_seconds"),
    [(".lock", applying, math.inf, 60), ("working", working, math.inf, 600), ("working", working, 20.0, 7200)],
)
def test_a_lock_is_waited_for_as_long_as_its_holder_is_there(
    name: str, take: Any, says_so_every: float, waited_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is gone may keep one on NFS for ever; one that copies for hours says that it is there."""
    directory = resolve().home / "samplesets"
    directory.mkdir(parents=True)
    holder = Holder(directory / name, says_so_every=says_so_every)
    monkeypatch.setattr(records.time, "monotonic", lambda: holder.now)
    monkeypatch.setattr(locks.time, "sleep", holder.pass_time)
    with take(directory):
        assert waited_seconds <= holder.now <= waited_seconds + 30
    if says_so_every == math.inf:
        holder.let_go()
