"""Variants in processes of their own: once, in phases, or as one of the scripts that know nothing of prefeed.

A process of its own starts without the caches, connections and random state of the variant before it. It is given its job as
JSON, and prints an outcome as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final, Generic, Self, TypeVar

import msgspec

from prefeed_bench.errors import BenchFailedError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")
Phase = TypeVar("Phase")

SCRIPTS: Final = Path(__file__).parent / "scripts"
_TIMEOUT_SECONDS: Final = 900.0
_END_SECONDS: Final = 60.0
_SHOWN_CHARACTERS: Final = 4000
_READY: Final = b"ready\n"


def run_child(
    module: str, job: Any, outcome: type[Outcome], *, name: str, env: Mapping[str, str] | None = None
) -> Outcome:
    """Do a job in a new process, ``python -m MODULE JOB``, and return what it measured.

    Args:
        module: Its ``__main__`` part calls ``main_of_child``.
        job: What to do.
        outcome: Type of what is returned.
        name: What messages call it.
        env: Set in the child's environment, over this process's own.

    Raises:
        BenchFailedError: The child failed; the end of what it wrote is in the message.
    """
    return msgspec.json.decode(_output(command_of(module, job), name, env or {})[-1], type=outcome)


def main_of_child(job: type[Job], measure: Callable[[Job], Any]) -> None:
    """Do the job that the command line describes and print what was measured."""
    sys.stdout.write(msgspec.json.encode(measure(job_of_child(job))).decode() + "\n")


def job_of_child(job: type[Job]) -> Job:
    """Return the job that the command line describes."""
    return msgspec.json.decode(sys.argv[1], type=job)


def run_program(
    script: str,
    arguments: Sequence[str],
    *,
    prefeed_env: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] = sys.executable,
) -> list[dict[str, Any]]:
    """Run a script in a process of its own and return what it printed, a JSON object per line.

    Args:
        script: File name in ``scripts``.
        arguments: What follows it on the command line.
        prefeed_env: If given, the script runs under ``prefeed run`` with this in the environment; otherwise as it is.
        python: Runs it.

    Raises:
        BenchFailedError: The script failed; the end of what it wrote is in the message.
    """
    under = ["-m", "prefeed.cli.main", "run"] if prefeed_env is not None else []
    command = [os.fspath(python), *under, str(SCRIPTS / script), *arguments]
    name = f"{'prefeed run' if under else 'python'} {script} {' '.join(arguments)}"
    return [json.loads(line) for line in _output(command, name, prefeed_env or {})]


def command_of(module: str, job: Any) -> list[str]:
    """Return the command line that does a job."""
    return [sys.executable, "-m", module, msgspec.json.encode(job).decode()]


def failed(name: str, status: int, said: bytes) -> BenchFailedError:
    """Return the error of a process that failed, with the end of what it wrote."""
    return BenchFailedError(f"{name} ended with status {status}:\n{said.decode(errors='replace')[-_SHOWN_CHARACTERS:]}")


def _output(command: Sequence[str], name: str, env: Mapping[str, str]) -> list[bytes]:
    """Run a command and return the lines that it printed."""
    env = {**os.environ, **env}
    try:
        done = subprocess.run(command, capture_output=True, env=env, timeout=_TIMEOUT_SECONDS, check=True)
    except subprocess.TimeoutExpired as err:
        raise BenchFailedError(f"{name} did not end within {_TIMEOUT_SECONDS:g} s") from err
    except subprocess.CalledProcessError as err:
        raise failed(name, err.returncode, err.stderr) from err
    return done.stdout.splitlines()


# ---------------------------------------------------------------- phases


class PhasedProcess(Generic[Outcome]):
    """A process that does its job in phases, each when it is told to, so that several can begin each of them together.

    It is ``python -m MODULE JOB``, whose main part calls ``serve_phases``; killed at the end of the block if it still runs.

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
            raise BenchFailedError(f"{self._name} did not say that it is ready")

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
        raise failed(self._name, status, self._said.read())


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


# ---------------------------------------------------------------- the process that starts them


@contextlib.contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, by ``SystemExit`` inside the block; main thread only."""

    def stop(_signum: int, _frame: FrameType | None) -> None:
        sys.exit(128 + signal.SIGTERM)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
