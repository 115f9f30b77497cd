"""What tests of killed processes wait for."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leaks import wait_until
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ServerUnavailableError
from prefeed.types import ServerStatus

TRAINER = Path(__file__).with_name("trainer.py")
NUM_OBJECTS = 200
OBJECT_BYTES = 40_000


def make_objects(root: Path) -> Path:
    """Write objects that tell their own numbers; return their directory."""
    root.mkdir()
    for index in range(NUM_OBJECTS):
        data = index.to_bytes(4, "little") + bytes([index % 251]) * (OBJECT_BYTES - 4)
        (root / f"{index:04}.bin").write_bytes(data)
    return root


def status() -> ServerStatus | None:
    """Return the status of this home's server; None when none runs."""
    try:
        with NodeClient.connect(resolve(), autostart=False) as node:
            return node.status()
    except ServerUnavailableError:
        return None


def server_pid() -> int:
    """Return the process id of the server that runs."""
    found = status()
    assert found is not None
    return found.pid


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """End a process and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, number)
        assert select.select([descriptor], [], [], 60)[0], f"{pid} is still there"
    finally:
        os.close(descriptor)


def wait_for(condition: Any, what: str, *, timeout_seconds: float = 60.0) -> None:
    """Block until the condition holds."""
    assert wait_until(condition, timeout_seconds=timeout_seconds), f"not in {timeout_seconds:g} s: {what}"


class Trainer:
    """A trainer in a process and session of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def step(self) -> Any:
        """Return the next step; None at the end."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def go_on(self) -> None:
        """Let a gated trainer take its next step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def rest(self) -> list[Any]:
        """Return all steps that are left, and wait for the end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # end of input opens the gate for good
        steps = [json.loads(line) for line in self.process.stdout]
        assert self.process.wait() == 0, self.errors()
        return steps

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def trainer(url: Path | str, *arguments: str) -> Iterator[Trainer]:
    """Run a trainer; it is killed at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, str(TRAINER), str(url), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Trainer(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
