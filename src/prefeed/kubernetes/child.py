"""Runs prefeed commands in child processes of a sidecar, next to its server and one at a time."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping


class ChildRunner:
    """Runner of child processes, one at a time, with the environment of the sidecar.

    **Threads and processes**: one thread calls ``run``. Any thread may call ``end``, after which no child is started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._is_ending = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, has_output: bool = False) -> tuple[int, bytes]:
        """Run a command to its end. Return its exit status and its output.

        The output is empty unless ``has_output``. After ``end``, nothing is started and the status is 0.
        """
        with self._lock:
            if self._is_ending:
                return 0, b""
            self._child = child = subprocess.Popen(
                [sys.executable, "-m", "prefeed", *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if has_output else None,
            )
        output, _ = child.communicate()
        return child.returncode, output or b""

    def end(self) -> None:
        """Send SIGTERM to the running child and start no other one."""
        with self._lock:
            self._is_ending = True
            if self._child is not None:
                self._child.send_signal(signal.SIGTERM)
