"""SIGKILL while a sample set is applied, at each file that is put in its place, and company: nothing half is ever seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.config import resolve
from prefeed.errors import SampleSetNotFoundError
from prefeed.jobs.running import copy_to_origin
from prefeed.sampleset.provision import bring_up, delete
from prefeed.sampleset.records import find
from prefeed.sampleset.status import BOUND, MOUNT, READY, SYNC_FAILED, observe
from prefeed.sources import credentials
from sandbox import Sandbox
from slow_files import write_files
from unit.sampleset.documents import SECRET, apply, files_below, keys, sample_set

FILES = {"train/1": b"x" * 5000, "train/2": b"y" * 7000}


@pytest.fixture
def documents(sandbox: Sandbox) -> tuple[dict[str, Any], ...]:
    origin = write_files(sandbox.root / "origin", FILES)
    (sandbox.root / "copies").mkdir()
    return (
        keys(storage="file", bucket=str(sandbox.root / "copies")),
        sample_set(source={"uri": str(origin)}, secretRef={"name": "keys"}),
    )


def _apply_and_bring_up(documents: tuple[dict[str, Any], ...]) -> None:
    apply(*documents)
    progress = bring_up(find("imagenet", resolve()), resolve(), copy_to_origin)
    assert not progress.error


def _run_and_die(work: Callable[[], None], die_at: int) -> bool:
    """Fork, and kill the child before it puts its ``die_at``-th file in place; return whether it was killed."""
    child = os.fork()
    if child == 0:
        replace, calls = os.replace, 0

        def dying(source: str, target: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target)

        credentials.os.replace = dying  # type: ignore[attr-defined]
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_killed_at_each_file_it_continues(documents: tuple[dict[str, Any], ...], sandbox: Sandbox) -> None:
    killed = 0
    for die_at in range(1, 20):
        was_killed = _run_and_die(lambda: _apply_and_bring_up(documents), die_at)
        try:
            found = find("imagenet", resolve())
        except SampleSetNotFoundError:
            assert was_killed
        else:
            phase = observe(found, resolve()).phase
            assert phase in (BOUND, MOUNT, SYNC_FAILED, READY) if was_killed else phase == READY
        _apply_and_bring_up(documents)
        found = find("imagenet", resolve())
        assert observe(found, resolve()).phase == READY
        holding = {name for name, data in files_below(sandbox.root).items() if SECRET.encode() in data}
        assert holding == {"home/secrets/keys.json"}  # nothing of what was being written
        delete(found, resolve(), force=True)
        (sandbox.home / "secrets" / "keys.json").unlink()
        if not was_killed:
            break
        killed += 1
    assert killed >= 6
    assert files_below(sandbox.root / "copies" / "imagenet") == FILES


def test_two_that_apply_the_same_make_one_set(documents: tuple[dict[str, Any], ...], sandbox: Sandbox) -> None:
    file = sandbox.root / "set.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    words = [sys.executable, "-m", "prefeed", "sampleset", "apply", "-f", str(file), "--wait"]
    processes = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(output.count("sampleset imagenet created") for output in outputs) == [0, 0, 1]
    found = find("imagenet", resolve())
    assert observe(found, resolve()).phase == READY
    assert len(list((found.directory / "jobs").glob("sync-*.json"))) == 1  # copied once: the others found it done
    delete(found, resolve())
