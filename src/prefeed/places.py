"""Where a user's settings and sockets lie, on a machine that others use too."""

from __future__ import annotations

import functools
import logging
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from prefeed.errors import ConfigError
from prefeed.trust import why_not_trusted_file

USER_SETTINGS: Final = ("home", "memory_dir", "disk_dir", "pool", "metrics")
"""Where data go, where they come from, and who is told of it: no file that came with somebody's code may say so."""

_log = logging.getLogger("prefeed")
_said: set[str] = set()


def say_once(text: str) -> None:
    """Log a warning, once a process."""
    if text not in _said:
        _said.add(text)
        _log.warning("prefeed: %s", text)


@functools.lru_cache
def runtime_dirs(given: str, home: Path, node_id: str, user: int) -> tuple[Path, ...]:
    """Return the directories in which a server may listen, the preferred one first.

    Args:
        given: ``XDG_RUNTIME_DIR``; counts if it is an absolute path.
        home: Of the server; the last directory lies in it.
        node_id: Stands for the home on this node.
        user: Whose they are.
    """
    bases = [given] if given.startswith("/") else []
    bases += [f"/run/user/{user}", "/tmp", "/dev/shm", f"{home}/run"]
    return tuple(dict.fromkeys(Path(base) / f"prefeed-{user}" / node_id for base in bases))


def user_file() -> Path:
    """Return the path of the user's own settings."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.config")) / "prefeed" / "config.toml"


def read_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return what a TOML file says; nothing where there is none, or others than this user and root could have written it.

    Raises:
        ConfigError: It is no TOML, or has a setting that is not known.
    """
    try:
        table = tomllib.loads(_read_trusted(path).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}") from err
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ConfigError(f"{path}: unknown setting {unknown[0]!r}; known are {', '.join(known)}")
    return table


def project_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file that may have come with a cloned repository: not those that are the user's to say.

    Raises:
        ConfigError: It is no TOML, or has a setting that is not known.
    """
    table = read_settings(path, known)
    refused = [name for name in USER_SETTINGS if table.pop(name, None) is not None]
    if refused:
        say_once(
            f"{path.absolute()} names {', '.join(refused)}, which is not taken from there: a file like it comes with any "
            f"cloned repository; set {'it' if len(refused) == 1 else 'them'} in {user_file()}, by "
            f"PREFEED_{refused[0].upper()} or in a call"
        )
    return table


def _read_trusted(path: Path) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as err:
        say_once(f"{path.absolute()} is ignored: {err.strerror}")
        return b""
    try:
        if why := why_not_trusted_file(os.fstat(descriptor)):
            say_once(f"{path.absolute()} is ignored: it {why}")
            return b""
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)
