"""Runs one of the scripts that know nothing of prefeed: as it is, or with ``prefeed run`` before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prefeed_bench.requirements import BenchFailedError

SCRIPTS: Final = Path(__file__).parent / "scripts"
_TIMEOUT_SECONDS: Final = 900.0
_SHOWN_CHARACTERS: Final = 4000


def run_program(
    script: str,
    arguments: Sequence[str],
    *,
    prefeed_env: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] = sys.executable,
) -> list[dict[str, Any]]:
    """Run a script in a process of its own and return what it printed, a JSON object a line.

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
    shown = f"{'prefeed run' if under else 'python'} {script} {' '.join(arguments)}"
    env = {**os.environ, **(prefeed_env or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=_TIMEOUT_SECONDS, check=True)
    except subprocess.TimeoutExpired as err:
        raise BenchFailedError(f"{shown} did not end within {_TIMEOUT_SECONDS:g} s") from err
    except subprocess.CalledProcessError as err:
        said = err.stderr[-_SHOWN_CHARACTERS:]
        raise BenchFailedError(f"{shown} ended with status {err.returncode}:\n{said}") from err
    return [json.loads(line) for line in done.stdout.splitlines()]
