"""A process that does its job in phases, each when it is told to, so that several can begin each of them together."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, Generic, Self, TypeVar

import msgspec

from prefeed_bench.child import command_of, end_of
from prefeed_bench.requirements import BenchFailedError

_READY: Final = b"ready\n"
_END_SECONDS: Final = 60.0

Phase = TypeVar("Phase")
Outcome = TypeVar("Outcome")


class PhasedProcess(Generic[Outcome]):
    """``python -m MODULE JOB``, whose main part calls ``serve_phases``; killed at the end of the block if it still runs.

    Args:
        module: What it runs.
        job: Its argument.
        outcome: Type of what it says at the end of each phase.
        name: What messages call it.
        env: Set in its environment, over this process's own.
    """

    def __init__(self, module: str, job: Any, outcome: type[Outcome], *, name: str, env: Mapping[str, str]) -> None:
        self._command = command_of(module, job)
        self._outcome = outcome
        self._name = name
        self._env = {**os.environ, **env}

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile()  # not a pipe, which somebody would have to empty
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=self._env
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._said, self._process:  # closes its pipes, which ends it, and waits for it
            with contextlib.suppress(BrokenPipeError):
                _pipe(self._process.stdin).close()
            try:
                self._process.wait(_END_SECONDS)
            except BaseException:
                self._process.kill()
                raise

    def wait_ready(self) -> None:
        """Wait until it has imported what it needs.

        Raises:
            BenchFailedError: It failed; the end of what it wrote is in the message.
        """
        if self._line() != _READY:
            raise BenchFailedError(f"{self._name} said something else than that it is ready")

    def begin(self, phase: Any) -> None:
        """Let it do the phase."""
        stdin = _pipe(self._process.stdin)
        stdin.write(msgspec.json.encode(phase) + b"\n")
        stdin.flush()

    def outcome(self) -> Outcome:
        """Wait for the end of the phase and return what came of it.

        Raises:
            BenchFailedError: It failed; the end of what it wrote is in the message.
        """
        return msgspec.json.decode(self._line(), type=self._outcome)

    def _line(self) -> bytes:
        line = _pipe(self._process.stdout).readline()
        if line:
            return line
        status = self._process.wait(_END_SECONDS)
        self._said.seek(0)
        raise BenchFailedError(f"{self._name} ended with status {status}:\n{end_of(self._said.read())}")


def run_phase(processes: Sequence[PhasedProcess[Outcome]], phase: Any) -> list[Outcome]:
    """Let processes that are ready do a phase at the same time; return what came of it, by process.

    Raises:
        BenchFailedError: One of them failed; the end of what it wrote is in the message.
    """
    for process in processes:
        process.begin(phase)
    return [process.outcome() for process in processes]


def serve_phases(kind: type[Phase], do: Callable[[Phase], Any]) -> None:
    """Say that this process is ready; then do what each line of standard input says, until it ends."""
    _say(_READY)
    for line in sys.stdin.buffer:
        _say(msgspec.json.encode(do(msgspec.json.decode(line, type=kind))) + b"\n")


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None
    return end
