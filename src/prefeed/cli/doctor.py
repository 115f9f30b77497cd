"""``prefeed doctor``."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click
import msgspec

from prefeed.advice.verdict import Verdict, beside_the_prediction
from prefeed.cli import render
from prefeed.cli.doctor_view import verdict_lines
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.run import AUTOSTART, command_line
from prefeed.errors import CannotExamineError

_DEFAULT_STEPS: Final = 20


@click.command(name="doctor", context_settings={"allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(min=2), default=_DEFAULT_STEPS, show_default=True,
              help="Steps of each trial that count.")  # fmt: skip
@home_option
@json_option
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int, home: str | None, as_json: bool, as_module: bool, program: str, arguments: tuple[str, ...]
) -> None:
    """Say whether a training program waits for data, for what, and what helps.

    PROGRAM is a Python script, with -m a module, or a command that starts Python, such as torchrun; it is not changed.
    Its training loop is fed for a minute or two: as it is, with one batch again and again, with its files in memory, its
    samples in a stage cache, with more workers. Then the program is ended: it trains on few batches, some of them more than
    once, so let it write nothing that you want to keep.
    """
    config = config_of(home=home)
    line = command_line(program, arguments, as_module=as_module)
    verdict = _examine(line, steps=steps, to_stderr=as_json)
    last = config.home / "doctor" / f"{_name_of(line)}.json"
    before = _read(last)
    last.parent.mkdir(parents=True, exist_ok=True)
    last.write_text(verdict.to_json())
    compared = None if before is None else beside_the_prediction(before, verdict)
    if as_json:
        render.print_json({**msgspec.to_builtins(verdict), "text": str(verdict), "since_last_time": compared})
    else:
        render.print_lines(verdict_lines(verdict))
        render.print_lines([] if compared is None else ["", compared])


def _examine(line: list[str], *, steps: int, to_stderr: bool) -> Verdict:
    """Run the program until there is a verdict.

    Raises:
        CannotExamineError: It ended before.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-doctor-") as directory:
        out = Path(directory) / "verdict.json"
        environment = _environment(os.environ, out, steps)
        ended = subprocess.run(line, env=environment, stdout=sys.stderr if to_stderr else None, check=False)
        verdict = _read(out)
    if verdict is not None:
        return verdict
    if ended.returncode:
        raise CannotExamineError(f"the program ended with status {ended.returncode} before there was a verdict")
    raise CannotExamineError(
        f"the program ended before there was a verdict: no loop over a torch DataLoader asked for enough batches; "
        f"let it train for longer, or say --steps with less than {steps}"
    )


def _environment(environ: Mapping[str, str], out: Path, steps: int) -> dict[str, str]:
    paths = [str(AUTOSTART), environ.get("PYTHONPATH", "")]
    order = msgspec.json.encode({"out": str(out), "steps": steps}).decode()
    return {**environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), "PREFEED_DOCTOR": order}


def _name_of(line: list[str]) -> str:
    """Return the name under which the last verdict on a program is kept: its command line, and where it was given."""
    return hashlib.sha256("\0".join([os.getcwd(), *line]).encode()).hexdigest()[:16]


def _read(path: Path) -> Verdict | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Verdict)
    except (OSError, msgspec.DecodeError):  # none yet, or another version's
        return None
