"""The arguments of ``cache_admin``: MindSpore's commands and options, and what they refuse.

No option parser of the usual kind: ``-h`` is the host, a number may follow ``-d`` several times, and each refusal is
one that scripts know.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.config import DEFAULT_PORT, LEAST_PORT, MOST_PORT
from prefeed.errors import PrefeedError

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


class ArgumentsError(PrefeedError, ValueError):
    """What was typed is not understood, or not allowed."""

    code = "bad-arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What ``cache_admin`` is to do.

    Attributes:
        command: One of the commands, without dashes.
        port: Names the server.
        sessions: Those to be destroyed.
        workers: Threads that fetch; None when not given.
        spilldir: Where the disk tier is to lie; None without one.
        loglevel: 0 to 4; None when not given.
        memory_ratio: Share of the memory to be had; None when not given.
    """

    command: str
    port: int = DEFAULT_PORT
    sessions: tuple[int, ...] = ()
    workers: int | None = None
    spilldir: Path | None = None
    loglevel: int | None = None
    memory_ratio: float | None = None


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> Arguments:
    """Return what is to be done.

    Args:
        arguments: The command line, without the program.
        environ: MS_CACHE_HOST, MS_CACHE_PORT and GLOG_v stand for options that are not given.

    Raises:
        ArgumentsError: With the reason.
    """
    given = _sort_out(arguments)
    if "command" not in given:
        raise ArgumentsError("no command was given; `cache_admin --help` lists them")
    host = given.get("hostname", environ.get("MS_CACHE_HOST", LOCAL_HOST))
    if host != LOCAL_HOST:
        raise ArgumentsError(f"host {host} cannot be used: the cache is on the host that it serves, {LOCAL_HOST}")
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


def _sort_out(arguments: Sequence[str]) -> dict[str, str]:
    """Return command and options as they were typed, by long name."""
    given: dict[str, str] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word in _COMMANDS:
            if "command" in given:
                more = "twice" if given["command"] == _COMMANDS[word] else f"beside --{given['command']}"
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
            raise ArgumentsError(f"{word} is no argument of cache_admin; `cache_admin --help` lists them")
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
        raise ArgumentsError(f"{name} {text!r} is not a whole number; it is {least} to {most}") from None
    if not least <= number <= most:
        raise ArgumentsError(f"{name} {number} is out of range: it is {least} to {most}")
    return number


def _optional(name: str, text: str | None, least: int, most: int) -> int | None:
    return None if text is None else _number(name, text, least, most)


def _ratio(text: str | None) -> float | None:
    if text is None:
        return None
    ratio = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < ratio <= 1:
        raise ArgumentsError(f"memory_cap_ratio {text} is out of range: it is more than 0 and at most 1")
    return ratio


def _spill_directory(text: str) -> Path:
    directory = Path(text)
    if not directory.is_absolute():
        raise ArgumentsError(f"spilldir {text} is relative: name an absolute path")
    if not directory.is_dir():
        raise ArgumentsError(f"spilldir {text} does not exist, or is no directory")
    return directory
