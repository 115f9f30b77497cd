"""``cache_admin``: drop-in replacement for MindSpore's command of this name, for existing scripts.

A port number selects a server, but requests use the Unix socket of the port's home, and no process listens on the port. Arguments are
parsed by hand, as in MindSpore: ``-h`` is the host, ``-d`` takes several numbers, and errors are those that scripts expect.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click

from prefeed.client.ending import end_server
from prefeed.client.launch import start_server
from prefeed.client.node import NodeClient
from prefeed.config import (
    DEFAULT_PORT,
    EVERYTHING,
    LEAST_PORT,
    MOST_PORT,
    Config,
    DiskBudget,
    config_for_port,
    resolve,
)
from prefeed.errors import PrefeedError, ServerAlreadyRunningError, ServerBusyError, ServerUnavailableError
from prefeed.system.memory import read_memory
from prefeed.types import CacheInfo, SessionInfo

EXIT_FAILED: Final = 1
LOCAL_HOST: Final = "127.0.0.1"
_MAX_SESSION: Final = 2**32 - 1
MOST_WORKERS: Final = max(100, os.cpu_count() or 1)
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")

_COMMANDS: Final = {
    "--start": "start", "--stop": "stop", "--help": "help", "--list_sessions": "list_sessions",
    "--server_info": "server_info", "-g": "generate_session", "--generate_session": "generate_session",
    "-d": "destroy_session", "--destroy_session": "destroy_session",
}  # fmt: skip
_OPTIONS: Final = {
    "-h": "hostname", "--hostname": "hostname", "-p": "port", "--port": "port", "-w": "workers", "--workers": "workers",
    "-s": "spilldir", "--spilldir": "spilldir", "-l": "loglevel", "--loglevel": "loglevel",
    "-m": "shared_memory_size", "--shared_memory_size": "shared_memory_size",
    "-r": "memory_cap_ratio", "--memory_cap_ratio": "memory_cap_ratio",
}  # fmt: skip

HELP: Final = f"""\
cache_admin: manage the cache server of this node with the commands of MindSpore.

Commands:
  --start                            start the server
  --stop                             stop it and free the memory of its sessions
  --generate_session, -g             create a session and print its id as the last word
  --destroy_session, -d <id> [<id>]  drop sessions and their caches
  --list_sessions                    list sessions and the contents of their caches
  --server_info                      show the settings and sessions of the server
  --help                             show this message

Options:
  --hostname, -h <host>    only 127.0.0.1; default: MS_CACHE_HOST, or 127.0.0.1
  --port, -p <port>        port of the server, 1025 to 65535; default: MS_CACHE_PORT, or 50052
With --start:
  --workers, -w <number>   threads that fetch files, 1 to {MOST_WORKERS}; default: that limit, at most 256
  --spilldir, -s <dir>     absolute path of a directory for data that does not fit into memory
  --loglevel, -l <level>   0 (everything) to 4 (fatal errors); default: GLOG_v, or 1"""


class ArgumentsError(PrefeedError, ValueError):
    """The command line of ``cache_admin`` is invalid."""

    code = "bad-arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Parsed command line of ``cache_admin``. Options that were not given are None.

    Attributes:
        command: Name of the command, without dashes.
        port: Port that identifies the server.
        sessions: Numbers of the sessions to destroy.
        workers: Maximum number of concurrent fetches.
        spilldir: Parent directory of the disk tier.
        loglevel: Level from 0 (everything) to 4 (fatal errors).
        memory_ratio: Share of the available memory, above 0 and at most 1.
    """

    command: str
    port: int = DEFAULT_PORT
    sessions: tuple[int, ...] = ()
    workers: int | None = None
    spilldir: Path | None = None
    loglevel: int | None = None
    memory_ratio: float | None = None


def main() -> None:
    """Run the command line and end the process with 0, or with 1 and the reason on stderr."""
    logging.getLogger("prefeed").setLevel(logging.ERROR)  # Scripts do not expect notices about settings.
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run a command and return the exit status."""
    if not words:
        click.echo(HELP)
        return EXIT_FAILED
    try:
        arguments = parse(words, os.environ)
        lines = _lines(arguments)
        try:
            for line in lines:
                click.echo(line)
        except BrokenPipeError:  # The reader has closed the pipe, and the command is done.
            os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
    except PrefeedError as err:
        click.echo(f"cache_admin: {err}", err=True)
        return EXIT_FAILED
    return 0


def _lines(arguments: Arguments) -> list[str]:
    if arguments.command == "help":
        return [HELP]
    port = arguments.port
    config = config_for_port(resolve(), port)
    if arguments.command == "start":
        return _start(arguments, config)
    try:
        if arguments.command == "stop":
            end_server(config)
            return [f"Cache server on port {port} has been stopped successfully."]
        node = NodeClient.connect(config, autostart=False)
    except ServerBusyError:
        raise
    except ServerUnavailableError as err:
        raise ServerUnavailableError(
            f"no server runs on port {port}; start one with `cache_admin --start -p {port}`"
        ) from err
    with node:
        if arguments.command == "generate_session":
            return [f"Session created for server on port {port}: {node.new_session()}"]
        if arguments.command == "destroy_session":
            node.drop_sessions(arguments.sessions)
            return [f"Drop session successfully for server on port {port}"]
        sessions = node.list_sessions()
        if arguments.command == "list_sessions":
            return [f"Listing sessions for server on port {port}", "", *session_lines(sessions)]
        return info_lines(config, port, node.connection.settings, sessions)


# ---------------------------------------------------------------- starting


def _start(arguments: Arguments, config: Config) -> list[str]:
    port = arguments.port
    workers = arguments.workers or min(config.limits.max_in_flight, MOST_WORKERS)
    options = ["--port", str(port)]
    changes: dict[str, object] = {"idle_timeout": 0.0, "limits": replace(config.limits, max_in_flight=workers)}
    if arguments.loglevel is not None:
        options += ["--log-level", str(arguments.loglevel)]
    if arguments.memory_ratio is not None:
        changes["memory"] = int(arguments.memory_ratio * read_memory().limit_bytes)
    if arguments.spilldir is not None:
        changes["disk"] = DiskBudget(EVERYTHING, _make_disk_dir(arguments.spilldir, port))
    config = replace(config, **changes)  # type: ignore[arg-type]
    try:
        pid = start_server(config, arguments=options)
    except ServerAlreadyRunningError as err:
        raise ServerAlreadyRunningError(
            f"a cache server already runs on port {port}; stop it first with `cache_admin --stop -p {port}`"
        ) from err
    except PrefeedError:
        if arguments.spilldir is not None:
            _remove_if_empty(config.disk_path.parent)
        raise
    log = config.runtime_dir / "server.log"
    return [
        "Cache server startup completed successfully!",
        f"The cache server daemon has been created as process id {pid} and is listening on port {port}",
        "",
        "Recommendation:",
        f"The server runs in the background; its log is {log}",
    ]


def _make_disk_dir(spilldir: Path, port: int) -> Path:
    directory = spilldir / f"prefeed-{os.getuid()}-{port}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as err:
        raise ArgumentsError(f"spilldir {spilldir} cannot be written: {err.strerror}") from err
    return directory


def _remove_if_empty(directory: Path) -> None:
    """Remove the directory of a server that did not start."""
    with suppress(OSError):
        directory.rmdir()


# ---------------------------------------------------------------- tables

_COLUMNS: Final = (
    ("Session", 12), ("Cache Id", 12), ("Mem cached", 12), ("Disk cached", 13), ("Avg cache size", 16), ("Numa hit", 10),
)  # fmt: skip


def session_lines(sessions: Sequence[SessionInfo]) -> list[str]:
    """Return the table of sessions with one line per cache. 0 is shown as ``n/a``."""
    if not sessions:
        return ["No active sessions."]
    lines = ["".join(name.rjust(width) for name, width in _COLUMNS)]
    for session in sessions:
        rows = [_row(session, cache) for cache in session.caches] or [(session.session, 0, 0, 0, 0, 0)]
        lines += [_aligned(row) for row in rows]
    return lines


def _row(session: SessionInfo, cache: CacheInfo) -> tuple[int, ...]:
    average = max(1, round(cache.average_bytes)) if cache.average_bytes else 0
    near = 0 if session.numa_node is None else cache.memory_entries
    return (session.session, cache.cache, cache.memory_entries, cache.disk_entries, average, near)


def _aligned(row: Sequence[int]) -> str:
    texts = [str(row[0]), *(str(number) if number else "n/a" for number in row[1:])]
    return "".join(text.rjust(width) for text, (_, width) in zip(texts, _COLUMNS, strict=True))


def info_lines(config: Config, port: int, settings: dict[str, str], sessions: Sequence[SessionInfo]) -> list[str]:
    """Return the settings and the sessions of the server."""
    size, _, directory = settings.get("disk", "0").partition(":")
    rows = (
        ("hostname", LOCAL_HOST),
        ("port", str(port)),
        ("number of workers", settings.get("workers", "?")),
        ("log level", settings.get("log_level", "?")),
        ("spill dir", "None" if size == "0" else directory or str(config.disk_path)),
    )
    lines = ["Cache Server Configuration:", *(f"{name:>20}    {value}" for name, value in rows)]
    if not sessions:
        return [*lines, "No active sessions."]
    return [*lines, "Active sessions:", "  ".join(str(session.session) for session in sessions)]


# ---------------------------------------------------------------- arguments


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Arguments:
    """Parse a command line.

    Args:
        arguments: Command line without the program.
        environ: Environment, whose MS_CACHE_HOST, MS_CACHE_PORT and GLOG_v are the defaults of options.

    Raises:
        ArgumentsError: The command line is invalid.
    """
    given = _split_arguments(arguments)
    if "command" not in given:
        raise ArgumentsError("no command was given; `cache_admin --help` lists the commands")
    host = given.get("hostname", environ.get("MS_CACHE_HOST", LOCAL_HOST))
    if host != LOCAL_HOST:
        raise ArgumentsError(f"host {host} cannot be used: the cache serves only {LOCAL_HOST}")
    command = given["command"]
    spilldir = given.get("spilldir")
    loglevel = given.get("loglevel", environ.get("GLOG_v") if command == "start" else None)
    if "shared_memory_size" in given:
        _number("shared_memory_size", given["shared_memory_size"], 1, 1 << 31)
    return Arguments(
        command=command,
        port=_number("port", given.get("port", environ.get("MS_CACHE_PORT", str(DEFAULT_PORT))), LEAST_PORT, MOST_PORT),
        sessions=tuple(_number("session", text, 0, _MAX_SESSION) for text in given.get("sessions", "").split()),
        workers=_optional("workers", given.get("workers"), 1, MOST_WORKERS),
        spilldir=None if spilldir is None else _spill_directory(spilldir),
        loglevel=_optional("loglevel", loglevel, 0, 4),
        memory_ratio=_ratio(given.get("memory_cap_ratio")),
    )


def _split_arguments(arguments: Sequence[str]) -> dict[str, str]:
    """Return the texts of command and options by long name."""
    given: dict[str, str] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in _COMMANDS:
            if "command" in given:
                more = "twice" if given["command"] == _COMMANDS[word] else f"together with --{given['command']}"
                raise ArgumentsError(f"{word} was given {more}: one command at a time")
            given["command"] = _COMMANDS[word]
            if given["command"] == "destroy_session":
                given["sessions"] = _take_values(word, left)
        elif word in _OPTIONS:
            name = _OPTIONS[word]
            if name in given:
                raise ArgumentsError(f"{word} was given more than once")
            given[name] = _take_value(word, left)
        else:
            raise ArgumentsError(f"{word} is not an argument of cache_admin; `cache_admin --help` lists the arguments")
    return given


def _take_value(option: str, left: list[str]) -> str:
    if not left or not _is_value(left[0]):
        raise ArgumentsError(f"{option} needs a value: {option} <{_OPTIONS.get(option, 'session id')}>")
    return left.pop(0)


def _take_values(option: str, left: list[str]) -> str:
    values = [_take_value(option, left)]
    while left and _is_value(left[0]):
        values.append(left.pop(0))
    return " ".join(values)


def _is_value(word: str) -> bool:
    return bool(word) and (not word.startswith("-") or _NUMBER.fullmatch(word) is not None)


def _number(name: str, text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ArgumentsError(f"{name} {text!r} is not a whole number; use {least} to {most}") from None
    if not least <= number <= most:
        raise ArgumentsError(f"{name} {number} is out of range: use {least} to {most}")
    return number


def _optional(name: str, text: str | None, least: int, most: int) -> int | None:
    return None if text is None else _number(name, text, least, most)


def _ratio(text: str | None) -> float | None:
    if text is None:
        return None
    ratio = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < ratio <= 1:
        raise ArgumentsError(f"memory_cap_ratio {text} is out of range: use more than 0 and at most 1")
    return ratio


def _spill_directory(text: str) -> Path:
    directory = Path(text)
    if not directory.is_absolute():
        raise ArgumentsError(f"spilldir {text} is relative: name an absolute path")
    if not directory.is_dir():
        raise ArgumentsError(f"spilldir {text} does not exist, or is not a directory")
    return directory
