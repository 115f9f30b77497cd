"""SIGKILL at random points of a sync: no half file, and run again it is complete and equal."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.jobs.options import SyncOptions
from prefeed.jobs.sync import sync
from prefeed.system.machine import process_mark
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.patterns import WORK_NAME
from process.children import child_running
from unit.jobs.trees import make, tree

FILES = {f"c{number % 4}/{number}": bytes([number]) * (number * 700) for number in range(60)}
STALE = {"c0/4": b"old", "c1/1": b"older", "gone/1": b"g", "gone": b""}
POINTS = ("write", "rename", "unlink", "utime")


def _die_at(seed: int, source: Path, target: Path, pipe: Connection) -> None:
    """Die at the n-th call of a random step of those that change something."""
    chance = random.Random(seed)
    point, left = chance.choice(POINTS), chance.randrange(1, 40)
    real = getattr(os, point)

    def call(*arguments: object, **named: object) -> object:
        nonlocal left
        left -= 1
        if left <= 0 and chance.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*arguments, **named)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(os, point, call)
    sync(str(source), str(target), SyncOptions(delete_dst=True, delete_src=seed % 3 == 0, threads=4), resolve())


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.whole) for seed in range(12, 30))])
def test_killed_anywhere_and_run_again_it_is_complete(seed: int, tmp_path: Path) -> None:
    source = make(tmp_path / "source", FILES)
    target = make(tmp_path / "target", {path: data for path, data in STALE.items() if data})
    with child_running(_die_at, seed, source, target) as (process, _):
        process.join(60)
    there = tree(target)
    whole = {path: data for path, data in there.items() if not path.startswith(WORK_NAME)}
    for path, data in whole.items():
        assert data in (FILES.get(path), STALE.get(path)), f"{path} is half there"
    for path in FILES.keys() - tree(source).keys():
        assert whole[path] == FILES[path], f"{path} was removed from the source and is not at the target"

    if tree(source):  # with --delete-src it may have been all done
        sync(str(source), str(target), SyncOptions(delete_dst=False), resolve())
    assert {path: data for path, data in tree(target).items() if path in FILES} == FILES
    assert not (target / WORK_NAME).exists()
    if seed % 3:
        sync(str(source), str(target), SyncOptions(delete_dst=True), resolve())
        assert tree(target) == FILES


def test_a_half_written_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file is made it is in the directory for that, and nowhere else."""
    source, target = make(tmp_path / "source", {"a/b": b"data"}), tmp_path / "target"
    seen: list[set[str]] = []
    real = DirectorySink._write

    def looking(self: DirectorySink, *arguments: object) -> None:
        real(self, *arguments)  # type: ignore[arg-type]
        seen.append(set(tree(target)))

    monkeypatch.setattr(DirectorySink, "_write", looking)
    sync(str(source), str(target), SyncOptions(), resolve())

    assert seen == [{f"{WORK_NAME}/{process_mark()}-0"}]
    assert set(tree(target)) == {"a/b"}
