"""MindSpore's cache beside ours, where a Python that has it is named; it needs an environment of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prefeed_bench.program import run_program
from prefeed_bench.requirements import BenchFailedError, MissingRequirementError

VARIABLE: Final = "PREFEED_BENCH_MINDSPORE"
"""Names a Python that can import mindspore; its cache server's command lies beside it."""

_COMMAND_SECONDS: Final = 90.0


def mindspore_python() -> Path | None:
    """Return the Python that has MindSpore; None when none is named.

    Raises:
        MissingRequirementError: The one that is named has no cache server.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    python = Path(named)
    if not _admin(python).is_file():
        raise MissingRequirementError(
            f"{VARIABLE} is {named}, but there is no {_admin(python).name} beside it: `{named} -m pip install mindspore`"
        )
    return python


def mindspore_rates(python: Path, data: Path, *, num_rows: int, epochs: int) -> dict[str, float]:
    """Return rows a second of warm epochs, for each way of taking rows.

    Args:
        python: Has MindSpore.
        data: Pictures, a folder a class.
        num_rows: Rows an epoch.
        epochs: Warm ones.

    Raises:
        BenchFailedError: Its server or its reader failed.
    """
    with _session(python) as (port, session):
        arguments = ["--port", str(port), "--session", session, "--rows", str(num_rows), "--epochs", str(epochs)]
        found = run_program("mindspore_rows.py", [str(data), *arguments], python=python)
    return {line["way"]: line["rows_s"] for line in found}


@contextlib.contextmanager
def _session(python: Path) -> Iterator[tuple[int, str]]:
    """Start MindSpore's cache server with one session; stop it at the end of the block."""
    port = _free_port()
    _run(python, "--start", port)
    try:
        yield port, _run(python, "--generate_session", port).split()[-1]
    finally:
        _run(python, "--stop", port)


def _run(python: Path, command: str, port: int) -> str:
    done = subprocess.run(
        [str(_admin(python)), command, "-p", str(port)],
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BenchFailedError(f"{_admin(python).name} {command} ended with status {done.returncode}: {done.stderr}")
    return done.stdout


def _admin(python: Path) -> Path:
    return python.parent / "dataset-cache"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
