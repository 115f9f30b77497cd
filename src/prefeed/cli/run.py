"""``prefeed run``: runs a training program unchanged, with all its DataLoaders using the cache.

Replaces this process by Python, with an environment in which Python finds ``autostart/sitecustomize.py``. The program therefore
runs exactly as with ``python script.py``: same ``sys.argv`` and ``sys.path``, tracebacks, exit codes and signals. The processes
that the program starts inherit the environment. The outermost Python process prints the run summary (``prefeed.run_summary``).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from prefeed.cli.options import config_of, home_option
from prefeed.cli.text import printable
from prefeed.config import SAMPLE_SET, Config
from prefeed.errors import PrefeedError
from prefeed.run_summary.explain import ROOTS
from prefeed.run_summary.report import JSON, RUN, remove
from prefeed.sampleset.names import resolve_roots
from prefeed.sources.mounts import Roots
from prefeed.wire.endpoint import make_runtime_dir

_BINARY: Final = b"\x7fELF"
_LONGEST_FIRST_LINE: Final = 256
_PYTHON: Final = re.compile(r"(python|pypy)[0-9.]*t?")

AUTOSTART: Final = Path(__file__).parents[1] / "autostart"


@click.command(
    name="run",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--memory", metavar="SIZE", help="Size limit of the memory tier, such as 8GiB (PREFEED_MEMORY).")
@click.option(
    "--root", "roots", multiple=True, metavar="DIR",
    help="Directory whose files are cached; may be repeated (PREFEED_ROOTS). Default: network file systems.",
)  # fmt: skip
@home_option
@click.option(
    "--read-once",
    is_flag=True,
    help="Free data after one read, not keeping any for the next epoch (PREFEED_READ_ONCE).",
)
@click.option("--report-interval", metavar="SECONDS", help="Seconds between two reports (PREFEED_REPORT_INTERVAL).")
@click.option(
    "--json", "json_file", metavar="FILE", type=click.Path(path_type=Path),
    help="File for the run summary, as one JSON object.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="List the calls that open files without the cache; slows down each open.")
@click.option("--quiet", is_flag=True, help="Print only warnings and errors, no reports and no run summary.")
@click.option("-m", "kind", flag_value="-m", help="Run PROGRAM as a module, as python -m does.")
@click.option("-c", "kind", flag_value="-c", help="Run PROGRAM as Python code, as python -c does.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    *, roots: tuple[str, ...], read_once: bool, json_file: Path | None, explain: bool, quiet: bool, kind: str | None,
    program: str, arguments: tuple[str, ...], **settings: str | None,
) -> None:  # fmt: skip
    """Run a training program unchanged, with all its DataLoaders using the cache.

    PROGRAM is a Python script, - for standard input, with -m a module, with -c Python code, or a command that starts
    Python, such as torchrun. Arguments after PROGRAM are passed to it. Programs that it starts use the cache as well.
    A summary at the end shows the reads, and how long the program waited for data.
    """
    given: dict[str, Any] = dict(settings)
    if any(os.pathsep in root.removeprefix(SAMPLE_SET) for root in roots):
        raise click.UsageError(f"a directory with {os.pathsep!r} in its path cannot be named by --root")
    if roots:
        given["roots"] = roots
    if read_once:
        given["read_once"] = True
    config = config_of(**given)
    # Report a bad sample set once here, instead of in each process of the program.
    directories = resolve_roots(config).roots
    environment = run_environment({name for name, value in given.items() if value is not None}, config, os.environ)
    line = command_line(program, arguments, kind=kind)
    environment |= _summary_environment(
        replace(config, roots=directories), json_file=json_file, explains=explain, quiet=quiet
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(line[0], line, environment)


def _summary_environment(config: Config, *, json_file: Path | None, explains: bool, quiet: bool) -> dict[str, str]:
    """Return the variables with which the program counts reads and prints a run summary at its end.

    Args:
        config: Settings whose roots are directories.
        json_file: File for the summary as JSON, or None.
        explains: Record opens that bypass the cache.
        quiet: Print nothing.

    Raises:
        click.UsageError: The file cannot be written, or ``--explain`` has no directory to watch.
    """
    environment = {"PREFEED_QUIET": "1"} if quiet else {}
    if RUN in os.environ:
        if json_file is not None or explains:
            raise click.UsageError(
                "the outer `prefeed run` prints the run summary: give --json and --explain to that one"
            )
        return environment
    if not config.enabled and not quiet:
        click.echo("prefeed: the cache is not used, because PREFEED_ENABLED is 0", err=True)
    if not config.enabled or (quiet and json_file is None):
        return environment
    roots = Roots.of(config)
    if explains:
        if not roots:
            raise click.UsageError("--explain needs --root DIR, because no network file system is mounted")
        environment[ROOTS] = os.pathsep.join(roots.places)
    if json_file is not None:
        environment[JSON] = str(json_file.resolve())
        if json_file.is_dir() or not os.access(json_file.absolute().parent, os.W_OK):
            raise click.UsageError(f"cannot write {json_file}: name a file in a directory that you may write to")
    try:
        runtime = make_runtime_dir(config.runtime_dirs)
    except (PrefeedError, OSError) as err:
        click.echo(printable(f"prefeed: no run summary will be printed: {err}"), err=True)
        return environment
    for left in runtime.glob("run-*"):  # Left by programs that a signal has killed.
        if not os.path.exists(f"/proc/{left.name.split('-')[1]}"):
            remove(str(left))
    return environment | {RUN: f"{os.getpid()}:{runtime}"}


def run_environment(given: set[str], config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with these settings, in which every Python process uses the cache.

    Args:
        given: Names of the settings to pass on. Each process resolves the other settings again.
        config: Values of the settings.
        environ: Environment to extend.
    """
    environment = dict(environ)
    for name in given | ({"reads"} if config.reads == "all" else set()):  # Needed before settings are read.
        environment[f"PREFEED_{name.upper()}"] = _as_text(getattr(config, name))
    paths = [str(AUTOSTART), environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    environment["PREFEED_AUTO"] = "1"
    return environment


def command_line(program: str, arguments: tuple[str, ...], *, kind: str | None = None) -> list[str]:
    """Return the command line that runs a program.

    Args:
        program: Path of a script, or path or name of a command; a module or code if ``kind`` is given.
        arguments: Arguments of the program.
        kind: ``-m`` for a module, ``-c`` for code, as for python.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise click.UsageError("python was started with -E, -I or -S, which disables prefeed: leave them out")
    if not kind and (flag := _isolating_flag((program, *arguments))):
        raise click.UsageError(
            f"python {flag} disables prefeed: leave out -E, -I and -S, or write `import prefeed.auto` in the program"
        )
    python = [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]
    if kind:
        return [*python, kind, program, *arguments]
    if os.path.exists(program):
        here = program if os.sep in program else os.path.join(os.curdir, program)
        return [here, *arguments] if _is_command(program) else [*python, program, *arguments]
    if not program.endswith(".py") and (found := shutil.which(program)):
        return [found, *arguments]
    is_quoted = len(words := program.split()) > 1 and shutil.which(words[0]) is not None
    if program == "-" or (program.endswith(".py") and not is_quoted):
        return [*python, program, *arguments]
    hint = "; pass its arguments as separate words, without quotes" if is_quoted else ""
    raise click.UsageError(f"no such file or command: {printable(program)!r}{hint}")


def _isolating_flag(words: tuple[str, ...]) -> str | None:
    """Find a Python option that disables prefeed, such as ``-I``, in a command line.

    Python may be started by another command: ``nice python -I train.py``. Words after a script, ``-m`` or ``-c`` are the program's own.

    Returns:
        None if the command line has no such option.
    """
    is_python, is_value = False, False
    for word in words:
        if is_value:  # The value of -W or -X.
            is_value = False
        elif _PYTHON.fullmatch(os.path.basename(word)):
            is_python = True
        elif is_python and word.startswith("-") and word != "-":
            letters = word[1:] if not word.startswith("--") else ""
            flags = re.split("[cmWX]", letters, maxsplit=1)[0]
            if set(flags) & set("EIS"):
                return word
            if flags != letters and letters[len(flags)] in "cm":
                return None
            is_value = word == "--check-hash-based-pycs" or letters[len(flags) :] in ("W", "X")
        elif is_python or word.endswith(".py"):
            return None
    return None


def _is_command(path: str) -> bool:
    """Return True for an executable that is not a Python script: a binary, or a script for another interpreter."""
    if not os.path.isfile(path) or not os.access(path, os.X_OK | os.R_OK):
        return False
    with open(path, "rb") as file:
        first = file.readline(_LONGEST_FIRST_LINE)
    return first.startswith(_BINARY) or (first.startswith(b"#!") and b"python" not in first)


def _as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return os.pathsep.join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)
