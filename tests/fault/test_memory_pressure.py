"""A job that grows in a control group that the tier has filled: the tier gives way, and the kernel kills nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from control_groups import memory_group, num_killed
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
