"""Control groups for tests, where this user may make them; else the test is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leaks import read_proc, wait_until


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A control group of this process's own with a limit; yields the file by which a process enters it."""
    parent, limit_name = own_memory_group()
    group = parent / f"pft-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit_name).write_text(str(limit_bytes))
    except OSError as err:
        if group.exists():
            group.rmdir()
        pytest.skip(f"this user may not make a control group with a memory limit: {err}")
    procs = group / "cgroup.procs"
    try:
        yield procs
    finally:
        wait_until(lambda: not procs.read_text(), timeout_seconds=60)  # children of killed servers end by themselves
        group.rmdir()


def own_memory_group() -> tuple[Path, str]:
    for line in read_proc(os.getpid(), "cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/"), "memory.limit_in_bytes"
    return Path("/sys/fs/cgroup") / path.lstrip("/"), "memory.max"


def num_killed(group: Path) -> int:
    """Return how many processes of a group the kernel has killed for memory."""
    name = "memory.events" if (group / "memory.events").exists() else "memory.oom_control"
    lines = (group / name).read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
