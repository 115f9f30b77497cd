"""``prefeed doctor``: starts a program, measures its training loop and prints the report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import click
import msgspec

from prefeed.cli import render
from prefeed.cli.options import json_option
from prefeed.cli.run import AUTOSTART, command_line
from prefeed.config import resolve
from prefeed.diagnose.loader_clone import stop_server
from prefeed.diagnose.report import LoaderReport, table
from prefeed.errors import CannotExamineError

_DEFAULT_STEPS: Final = 20
_POLL_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 10.0
"""Time that the program has to exit after its measurement."""


@click.command(name="doctor", context_settings={"allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(min=2), default=_DEFAULT_STEPS, show_default=True,
              help="Number of training steps to time in each trial.")  # fmt: skip
@json_option
@click.option("-m", "as_module", is_flag=True, help="Run PROGRAM as a module, as python -m does.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(steps: int, as_json: bool, as_module: bool, program: str, arguments: tuple[str, ...]) -> None:
    """Diagnose why a training program waits for data, and name remedies.

    PROGRAM is a Python script, a module (-m), or a command that starts Python, such as torchrun. Its training loop is
    measured for a minute or two: unchanged, with one batch repeated, with its files in memory, with its samples in a stage
    cache, and with more workers. The program is then terminated. It trains on few batches, some of them repeatedly, so run
    it with an output directory that you do not need.
    """
    line = command_line(program, arguments, kind="-m" if as_module else None)
    report = _examine(line, steps=steps, to_stderr=as_json)
    render.show(as_json, msgspec.to_builtins(report), [*report.text.splitlines(), "", *table(report)])


def _examine(line: list[str], *, steps: int, to_stderr: bool) -> LoaderReport:
    """Run the program until it has written a report.

    Raises:
        CannotExamineError: The program ended without a report.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-doctor-") as directory:
        out = Path(directory) / "report.json"
        try:
            paths = [str(AUTOSTART), *filter(None, [os.environ.get("PYTHONPATH")])]
            more = {"PYTHONPATH": os.pathsep.join(paths), "PREFEED_DOCTOR": f"{steps}:{out}"}
            status = _run(line, {**os.environ, **more}, out, stdout=sys.stderr if to_stderr else None)
        finally:
            for home in Path(directory).glob("*/home"):  # of a program that was killed
                stop_server(resolve({"home": str(home)}))
        if out.exists():
            return msgspec.json.decode(out.read_bytes(), type=LoaderReport)
    if status:
        raise CannotExamineError(
            f"the program ended with status {status} before it was measured; fix the error that it has printed"
        )
    raise CannotExamineError(
        "the program ended before it was measured: no loop over a torch DataLoader requested enough batches; "
        f"let it train for longer, or use --steps with less than {steps}"
    )


def _run(line: list[str], environment: Mapping[str, str], out: Path, *, stdout: IO[str] | None) -> int | None:
    """Run the program until it ends or has written a report, terminate it, and return its exit status."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    process = subprocess.Popen(line, env=environment, stdout=stdout)
    try:
        while process.poll() is None and not out.exists():
            _wait(process, _POLL_SECONDS)
        # One thread may have finished the loop while another one still waits for its batch or for other ranks.
        return _wait(process, _LEAVE_SECONDS)
    except KeyboardInterrupt:
        _wait(process, _LEAVE_SECONDS)  # The terminal has interrupted the program as well.
        raise
    finally:
        process.terminate()
        if _wait(process, _LEAVE_SECONDS) is None:
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None
