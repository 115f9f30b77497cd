"""One variant of a benchmark in a process of its own: given a job as JSON, it prints an outcome as JSON.

A process of its own starts without the caches, connections and random state of the variant before it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from prefeed_bench.requirements import BenchFailedError

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")

_TIMEOUT_SECONDS: Final = 900.0
_SHOWN_CHARACTERS: Final = 4000


def command_of(module: str, job: Any) -> list[str]:
    """Return the command line that does a job: ``python -m MODULE JOB``."""
    return [sys.executable, "-m", module, msgspec.json.encode(job).decode()]


def run_child(
    module: str, job: Any, outcome: type[Outcome], *, name: str, env: Mapping[str, str] | None = None
) -> Outcome:
    """Do a job in a new process and return what it measured.

    Args:
        module: Its ``__main__`` part calls ``main_of_child``.
        job: What to do.
        outcome: Type of what is returned.
        name: What messages call it.
        env: Set in the child's environment, over this process's own.

    Raises:
        BenchFailedError: The child failed; the end of what it wrote is in the message.
    """
    try:
        done = subprocess.run(
            command_of(module, job),
            capture_output=True,
            env={**os.environ, **(env or {})},
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as err:
        raise BenchFailedError(f"{name} did not end within {_TIMEOUT_SECONDS:g} s") from err
    except subprocess.CalledProcessError as err:
        raise BenchFailedError(f"{name} ended with status {err.returncode}:\n{end_of(err.stderr)}") from err
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=outcome)


def end_of(said: bytes) -> str:
    """Return the end of what a process wrote, for a message."""
    return said.decode(errors="replace")[-_SHOWN_CHARACTERS:]


def main_of_child(job: type[Job], measure: Callable[[Job], Any], argument: str) -> None:
    """Do the job that the argument describes and print what was measured."""
    outcome = measure(msgspec.json.decode(argument, type=job))
    sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
