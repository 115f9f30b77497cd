"""A job that grows in a control group that the tier has filled: the tier gives way, and the kernel kills nobody."""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import prefeed
from control_groups import memory_group, num_killed
from process.children import child_running
from process.conditions import status
from sandbox import end_all

MIB = 1024**2
TESTS = Path(__file__).parents[1]
LIMIT_BYTES = 768 * MIB
ENTER = (
    "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid())); sys.argv[1:] = sys.argv[2:]\n"
    "from fault.grow_in_group import main; main(sys.argv[1], sys.argv[2], int(sys.argv[3]))"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(400):
        (root / f"{number:03}").write_bytes(os.urandom(64) * (1200 * 1024 // 64 + number))
    return root


def test_a_job_that_grows_where_the_tier_is_full(root: Path, sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More is asked for than the group has; the grant leaves a tenth, shrinks as the job grows, and grows when it shrinks."""
    monkeypatch.setenv("PREFEED_MEMORY", "3GiB")
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    with memory_group(LIMIT_BYTES) as procs:
        group = procs.parent
        usage = next(group / name for name in ("memory.current", "memory.usage_in_bytes") if (group / name).exists())
        ran = subprocess.run(
            [sys.executable, "-c", ENTER, str(procs), str(root), str(usage), str(LIMIT_BYTES)],
            env={**os.environ, "PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        killed = num_killed(group)
        found = status()
        end_all([] if found is None else [found.pid])
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stderr}"
    assert killed == 0
    seen = json.loads(ran.stdout)
    assert (seen["wrong"], seen["same_server"]) == (0, True)
    assert 300 * MIB < seen["before"][0] <= seen["before"][1] <= LIMIT_BYTES * 9 // 10
    assert seen["held"] > 200 * MIB
    assert seen["pressed"][0] <= seen["pressed"][1] < seen["before"][0] - 100 * MIB
    assert seen["errors"]["memory-given-back"] >= 1
    assert any("stay free for programs" in notice for notice in seen["notices"]), seen["notices"]


def read_all(root: Path) -> bool:
    """Return whether all objects are right, read through the node's server."""
    loader = prefeed.DataLoader(prefeed.datasets.Objects(root), batch_size=4, collate_fn=list)
    return [bytes(data) for batch in loader for data in batch] == [path.read_bytes() for path in sorted(root.iterdir())]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    root = tmp_path / "small"
    root.mkdir()
    for number in range(12):
        (root / f"{number:02}").write_bytes(bytes([number]) * 3000)
    return root


def test_a_server_whose_address_space_is_smaller_than_the_tiers_serves(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "2GiB")
    monkeypatch.setenv("PREFEED_DISK", "8GiB")
    line = 'ulimit -v 1500000; exec "$0" -m prefeed server start'
    started = subprocess.run(["bash", "-c", line, sys.executable], capture_output=True, text=True, check=False)
    assert started.returncode == 0, started.stderr
    assert "ulimit" not in started.stderr
    assert read_all(small)
    assert read_all(small)
    assert prefeed.statistics().hits == 24


def _read_under_limit(root: Path, pipe: Connection) -> None:
    said = io.StringIO()
    logging.getLogger("prefeed").addHandler(logging.StreamHandler(said))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (taken + 256 * MIB, taken + 256 * MIB))
    pipe.send((read_all(root), said.getvalue()))


def test_a_reader_whose_address_space_is_smaller_than_the_tier_hits(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "512MiB")
    assert read_all(small)
    with child_running(_read_under_limit, small) as (process, pipe):
        assert pipe.recv() == (True, "")
        process.join()
    assert prefeed.statistics().hits == 24
