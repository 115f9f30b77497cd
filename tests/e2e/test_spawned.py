"""Workers that are spawned: what they import, and that they read as the loader has found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import prefeed
from e2e.hashed import Hashed, kept, write_hashed
from limits import limits_text, set_limits
from prefeed.client import in_place
from sandbox import Sandbox, servers_of

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import json, multiprocessing, sys

def ours():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "prefeed")

class Numbered:
    def __init__(self, root):
        self.root = root
    def __len__(self):
        return 4
    def __getitem__(self, index):
        with open(f"{self.root}/{index}") as file:
            return file.read(), ours()

def train(root):
    from torch.utils.data import DataLoader
    before = ours()
    loader = DataLoader(Numbered(root), batch_size=2, num_workers=1, multiprocessing_context="spawn", collate_fn=list)
    print(json.dumps([before, list(loader), ours()]))

if __name__ == "__main__":
    rank = multiprocessing.get_context("spawn").Process(target=train, args=(sys.argv[1],))
    rank.start()
    rank.join()
    sys.exit(rank.exitcode)
"""
"""A spawned process trains, with a spawned worker: the process that starts them never imports torch."""


def modules(text: str) -> set[str]:
    return {f"prefeed.{name}" for name in text.split()} | {"prefeed"}


WITH_TORCH = modules("""
    after_import auto config errors frameworks frameworks.hooks
    interception interception.asking interception.events interception.files
    interception.reading interception.scope interception.threads interception.writing
    limits loaders loaders.replacing places quantities
    system system.machine system.trust
    run_summary run_summary.counters torch torch.patch
""")
"""What a spawned process imports with torch. Each takes processor time in each worker, so another one needs a reason."""

OF_WORKER = WITH_TORCH | modules("""
    client client.in_place client.seen
    core core.in_place core.plan loaders.kinds loaders.stages
    run_summary.explain sources sources.mounts system.heap system.memory system.paths system.units
    torch.collating torch.in_place torch.order torch.permutation torch.ring
    torch.samples torch.sending torch.slots
""")
"""The same of a worker that reads in place: nothing that talks to a server, and nothing that serves a loader."""


@pytest.mark.cold
def test_what_spawned_processes_import(tmp_path: Path) -> None:
    """A worker imports what it reads with. The process that makes the loader imports the rest when it does, and is served."""
    root, program = tmp_path / "data", tmp_path / "program.py"
    root.mkdir()
    for number in range(4):
        (root / str(number)).write_text(f"sample {number}")
    program.write_text(PROGRAM)
    settings = {"PREFEED_ROOTS": str(root), "PREFEED_LIMITS": limits_text(read_in_place=True), "PREFEED_AUTOSTART": "0"}
    ended = subprocess.run(
        [sys.executable, "-m", "prefeed", "run", str(program), str(root)],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr
    before, batches, after = json.loads(ended.stdout)
    samples = [sample for batch in batches for sample in batch]
    assert [text for text, _ in samples] == [f"sample {number}" for number in range(4)]
    assert set(before) == WITH_TORCH
    assert {*samples[-1][1]} - OF_WORKER == set()
    assert "prefeed.torch.loader" in after
    assert "1 not: Numbered-1" in ended.stderr


class Quick(Hashed):
    """The same; in each process that receives it, storage is quick, whatever the machine does meanwhile."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        in_place.QUICK_NS = 1 << 62


def test_quick_storage_needs_no_server(root: Path, sandbox: Sandbox) -> None:
    """New workers in each epoch: nothing is asked, and each epoch is read in place."""
    ours, truth = (
        cls(Quick(root, 32), batch_size=8, collate_fn=kept, num_workers=1, multiprocessing_context=context)
        for cls, context in ((prefeed.DataLoader, "spawn"), (DataLoader, "fork"))
    )
    for _ in range(2):
        assert list(ours) == list(truth)
    (reads,) = prefeed.statistics().origins
    assert (reads.in_place, reads.samples, reads.round_trip_seconds) == (True, 2 * 32, None)
    assert reads.files == 2 * 32
    assert not servers_of(sandbox)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = write_hashed(tmp_path / "data", Hashed(tmp_path / "data", 32))
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    set_limits(monkeypatch, read_in_place=True)
    return root
