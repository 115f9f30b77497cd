"""Commands of prefeed that a sidecar runs beside its server: in children, one at a time, until it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Mapping


class Child:
    """One child at a time, with the environment that the sidecar was given.

    **Threads and processes**: one thread calls ``run``; any one calls ``end``, after which no child is there or is started.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._lock = threading.Lock()
        self._is_ending = False
        self._child: subprocess.Popen[bytes] | None = None

    def run(self, *words: str, has_output: bool = False) -> tuple[int, bytes]:
        """Run a command to its end; return its exit status, and its output if that is wanted.

        The status is 0 when no child is to be started any more.
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
        """Tell the child to end, and start none any more."""
        with self._lock:
            self._is_ending = True
            if self._child is not None:
                self._child.send_signal(signal.SIGTERM)
