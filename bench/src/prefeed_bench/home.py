"""A node cache of a benchmark's own: an empty home, its server, and nothing left afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed import Statistics
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.errors import ServerUnavailableError
from prefeed.limits import LIMITS_VARIABLE
from prefeed.wire.endpoint import remove_runtime_dirs
from prefeed_bench.errors import BenchFailedError

_ENTRY_HEADER_BYTES: Final = 8192
"""More than an entry takes beside its values: header, note, the rest of its last page."""


THROUGH_THE_CACHE: Final = {LIMITS_VARIABLE: "start_ahead=0 read_in_place=0"}
"""Benchmarks measure the cache also where files would better be read in place; ``quick`` and ``start`` measure the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """An empty node cache.

    Attributes:
        config: Settings of its server and clients.
        env: The same settings for child processes.
        server_pid: Process id of its server.
        start_seconds: How long the server took to start.
    """

    config: Config
    env: dict[str, str]
    server_pid: int
    start_seconds: float


@contextlib.contextmanager
def temporary_home(memory_bytes: int | None = None, **settings: str) -> Iterator[Home]:
    """Start a server with an empty cache of its own; stop it and free the cache at the end of the block.

    Args:
        memory_bytes: Size of the memory tier; None for prefeed's default.
        **settings: Further ones, by name, as in the environment.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        env = {"PREFEED_HOME": directory, **THROUGH_THE_CACHE}
        if memory_bytes is not None:
            env["PREFEED_MEMORY"] = str(memory_bytes)
        env.update({f"PREFEED_{name.upper()}": value for name, value in settings.items()})
        config = resolve(environ={**os.environ, **env})
        started = time.perf_counter()
        pid = _start(env)
        start_seconds = time.perf_counter() - started
        try:
            yield Home(config=config, env=env, server_pid=pid, start_seconds=start_seconds)
        finally:
            _stop(config, pid)
            remove_runtime_dirs(config)


def stage_home(num_entries: int, entry_bytes: int) -> contextlib.AbstractContextManager[Home]:
    """Start a server that has room for all entries of a stage cache in memory, with its share of objects beside them."""
    return temporary_home(256 * 1024**2 + num_entries * (entry_bytes + _ENTRY_HEADER_BYTES) * 3 // 2)


def statistics_of(home: Home) -> Statistics:
    """Return what the server has counted."""
    with NodeClient.connect(home.config, autostart=False) as client:
        return client.statistics()


def _start(env: dict[str, str]) -> int:
    """Run ``prefeed server start``, as a user does, and return the server's process id; it is not a child of this process."""
    command = [sys.executable, "-m", "prefeed.cli.main", "server", "start", "--json"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchFailedError(f"prefeed server start ended with status {done.returncode}: {done.stderr.strip()}")
    pid: int = json.loads(done.stdout)["pid"]
    return pid


def _stop(config: Config, pid: int) -> None:
    """Stop the server and wait until its process is gone, its store with it."""
    with contextlib.suppress(ServerUnavailableError), NodeClient.connect(config, autostart=False) as client:
        client.stop()
    deadline = time.monotonic() + config.limits.start_seconds
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
