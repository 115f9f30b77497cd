"""``prefeed doctor``, and what is printed of it."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import click
import msgspec

from prefeed.cli import render
from prefeed.cli.doctor_page import doctor_page
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.run import AUTOSTART, command_line
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.diagnose.doctor.verdict import Cure, Verdict, beside_the_prediction, sentences
from prefeed.diagnose.measurement import Measurement
from prefeed.errors import CannotExamineError, PrefeedError

_DEFAULT_STEPS: Final = 20
_LOOK_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 10.0
"""What a program has for its clean-up, once it is over."""


@click.command(name="doctor", context_settings={"allow_interspersed_args": False})
@click.option("--steps", type=click.IntRange(min=2), default=_DEFAULT_STEPS, show_default=True,
              help="Steps to time in each trial.")  # fmt: skip
@home_option
@json_option
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Also write the verdict as a page of its own.")  # fmt: skip
@click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as with python -m.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    steps: int,
    home: str | None,
    as_json: bool,
    page: Path | None,
    as_module: bool,
    program: str,
    arguments: tuple[str, ...],
) -> None:
    """Show whether a training program waits for data, for what, and what helps.

    PROGRAM is a Python script, with -m a module, or a command that starts Python, such as torchrun; it is not changed.
    Its training loop is fed for a minute or two: as it is, with one batch again and again, with its files in memory, its
    samples in a stage cache, with more workers. Then the program is ended: it trains on few batches, some of them more than
    once, so let it write nothing that you want to keep.
    """
    config = config_of(home=home)
    line = command_line(program, arguments, kind="-m" if as_module else None)
    verdict = _examine(line, steps=steps, to_stderr=as_json)
    last = config.home / "doctor" / f"{_name_of(line)}.json"
    before = _read(last)
    with suppress(OSError):  # only the comparison of the next time is lost
        last.parent.mkdir(parents=True, exist_ok=True)
        last.write_text(verdict.to_json())
    compared = None if before is None else beside_the_prediction(before, verdict)
    if as_json:
        render.print_json({**msgspec.to_builtins(verdict), "text": str(verdict), "since_last_time": compared})
    else:
        render.print_lines(verdict_lines(verdict))
        render.print_lines([] if compared is None else ["", compared])
    if page is not None and not _write_page(page, verdict):
        click.get_current_context().exit(EXIT_FAILED)


def _write_page(page: Path, verdict: Verdict) -> bool:
    """Write the page; return whether that went well, and say why not: the verdict took minutes, and is printed."""
    try:
        page.write_text(doctor_page(verdict, list(verdict_lines(verdict))), encoding="utf-8")
    except OSError as err:
        render.say(f"{page} cannot be written: {err.strerror}; give a file in a directory that exists")
        return False
    return True


def _examine(line: list[str], *, steps: int, to_stderr: bool) -> Verdict:
    """Run the program until there is a verdict.

    Raises:
        CannotExamineError: It ended before.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-doctor-") as directory:
        out = Path(directory) / "verdict.json"
        environment = _environment(os.environ, out, steps)
        try:
            status = _run(line, environment, out, stdout=sys.stderr if to_stderr else None)
        finally:
            _stop_servers(Path(directory))
        verdict = _read(out)
    if verdict is not None:
        return verdict
    if status:
        raise CannotExamineError(f"the program ended with status {status} before there was a verdict")
    raise CannotExamineError(
        "the program ended before there was a verdict: no loop over a torch DataLoader asked for enough batches; "
        f"let it train for longer, or use --steps with less than {steps}"
    )


def _run(line: list[str], environment: Mapping[str, str], out: Path, *, stdout: IO[str] | None) -> int:
    """Return the program's exit status; with a verdict it is ended, if it does not end by itself."""
    before = signal.signal(signal.SIGTERM, _leave)
    process = subprocess.Popen(line, env=environment, stdout=stdout)
    try:
        while (status := _status(process, _LOOK_SECONDS)) is None:
            if out.exists() and _status(process, _LEAVE_SECONDS) is None:
                # A thread may have met the end of the loop, and another wait for its batch, or for other ranks.
                _end(process)
        return status
    except KeyboardInterrupt:
        _status(process, _LEAVE_SECONDS)  # the terminal told the program, too
        raise
    finally:
        _end(process)
        signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _status(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        if _status(process, _LEAVE_SECONDS) is None:
            process.kill()
            process.wait()


def _stop_servers(directory: Path) -> None:
    """Stop what a program that was killed has left: servers of the trials' caches."""
    for home in directory.glob("*/home"):
        config = resolve({"home": str(home)})
        with suppress(PrefeedError, OSError), NodeClient.connect(config, autostart=False) as node:
            node.stop()


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


# ---------------------------------------------------------------- what is printed


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the verdict in words, what was measured, and what could be done."""
    yield from sentences(verdict)
    yield ""
    yield from _measured(verdict.measurement)
    if verdict.cures:
        yield ""
        yield from _cures(verdict.cures)
    for name, reason in verdict.measurement.reasons.items():
        yield f"  {name:<16} not tried: {reason}"


def _measured(m: Measurement) -> Iterator[str]:
    workers = f"{m.loader.num_workers} workers" if m.loader.num_workers != 1 else "1 worker"
    yield f"  {m.loader.dataset}, batches of {m.loader.batch_size:g}, {workers}, {m.loader.cores} cores: ms per batch"
    noise = m.as_is.relative_error(max(1, m.loader.num_workers))
    rows: list[tuple[str, float | None, str]] = [
        ("as it is", m.as_is.step_seconds, f"± {noise:.0%}".replace("%", " %")),
        ("  first epoch", m.first.step_seconds if m.first is not None and m.cached is None else None, ""),
        ("computing alone", m.compute.step_seconds, "the same batch again and again"),
        ("data alone", m.data.step_seconds, "the batches are not used"),
    ]
    c = m.costs
    if c is not None:
        rows += [("  opening files", c.opening, "one thread"), ("  reading files", c.reading, "one thread")]
        rows += [("  decoding", c.decoding, "one thread"), ("  collating", c.collating, "one thread")]
        rows += [("  from the worker", c.transferring or None, ""), ("  to the device", c.to_device, "")]
    for name, seconds, note in rows:
        if seconds is not None:
            yield f"  {name:<16} {1000 * seconds:9.1f}  {note}".rstrip()


def _cures(cures: list[Cure]) -> Iterator[str]:
    yield "  cure             times as fast"
    for cure in cures:
        how = "" if cure.is_measured else ", estimated"
        first = "" if cure.first_speedup is None else f", first epoch {cure.first_speedup:.2f}"
        yield f"  {cure.name:<16} {cure.speedup:9.2f}  {cure.what}{first}{how}"
