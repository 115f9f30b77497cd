"""Paths of a user's settings, home and sockets on a shared machine, and the files with settings.

Only settings that this user or root has written are trusted. ``prefeed.toml`` in the working directory cannot set ``USER_SETTINGS``,
because it may come with a cloned repository. Start with ``read_settings``.
"""

from __future__ import annotations

import difflib
import errno
import functools
import logging
import os
import pwd
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from prefeed.errors import ConfigError
from prefeed.system.trust import why_not_trusted_file

USER_SETTINGS: Final = ("home", "memory_dir", "pool", "metrics")
"""Settings of destinations and sources of data, which a file in a cloned repository must not set."""

NO_HOME: Final = Path("/dev/null/no-home-directory")
"""Home of a user without a home directory. No user, not even root, can create or read files below it."""

_log = logging.getLogger("prefeed")
_said: set[str] = set()


def say_once(text: str) -> None:
    """Log a warning once per process."""
    if text not in _said:
        _said.add(text)
        _log.warning("prefeed: %s", text)


@functools.lru_cache
def runtime_dirs(given: str, home: Path, node_id: str, user: int) -> tuple[Path, ...]:
    """List the directories in which a server may listen, the preferred one first.

    Args:
        given: ``XDG_RUNTIME_DIR``, used if it is an absolute path.
        home: Home of the server, which contains the last directory.
        node_id: Identifier of the home on this node.
        user: Number of the user who owns the directories.
    """
    bases = [given] if given.startswith("/") else []
    bases += [f"/run/user/{user}", "/tmp", "/dev/shm", f"{home}/run"]
    return tuple(dict.fromkeys(Path(base) / f"prefeed-{user}" / node_id for base in bases))


def home_directory() -> str:
    """Return the user's home directory; empty if neither ``HOME`` nor the user database has one."""
    given = os.environ.get("HOME", "")
    if os.path.isabs(given):
        return given
    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # For example in a container with an arbitrary user number.
        return ""
    return listed if os.path.isabs(listed) else ""


def expanded(path: str | os.PathLike[str]) -> Path:
    """Make a path absolute and expand ``~`` at its start.

    Raises:
        ConfigError: The home directory is unknown.
    """
    text = os.fspath(path)
    name, slash, rest = text.partition("/")
    if not name.startswith("~"):
        return Path(text).absolute()
    home = home_directory() if name == "~" else os.path.expanduser(name)
    if not os.path.isabs(home):
        raise ConfigError(f"{text!r}: the home directory of {name} is unknown; write an absolute path")
    return Path(home + slash + rest)


def _user_directory(variable: str, below_home: str) -> Path:
    """Return an XDG base directory, by default below the home directory. Relative values are ignored."""
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return Path(given)
    home = home_directory()
    return Path(home, below_home) if home else NO_HOME


def user_file() -> Path:
    """Return the path of the user's settings."""
    return _user_directory("XDG_CONFIG_HOME", ".config") / "prefeed" / "config.toml"


def default_home() -> Path:
    """Return the default directory of manifests, records and credentials; below ``NO_HOME`` if there is no home directory."""
    return _user_directory("XDG_CACHE_HOME", ".cache") / "prefeed"


def is_nowhere(home: Path) -> bool:
    """Return True if a home is below ``NO_HOME``."""
    return NO_HOME in home.parents


def lack_of_space(err: BaseException | None, home: Path) -> str:
    """Describe how to correct an error of writing to a full home; empty for other errors."""
    if not isinstance(err, OSError) or err.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    return f"{os.strerror(err.errno)}: free space on the file system of {home}, or set PREFEED_HOME to a directory on another one"


def read_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read settings from a TOML file.

    Returns:
        An empty dict if the file does not exist, or users other than this one and root can write to it.

    Raises:
        ConfigError: The file is not TOML, or contains an unknown setting.
    """
    text = ""
    try:
        text = read_trusted(path).decode()
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
        raise ConfigError(f"cannot read {path}: {err}{_with_quotes(text, known)}") from err
    require_known(table, known, f"{path}: ")
    return table


def require_known(names: Collection[str], known: Collection[str], where: str = "") -> None:
    """Raise ``ConfigError`` for an unknown setting, and suggest the most similar one.

    Args:
        names: Names to check.
        known: Names of all settings.
        where: Prefix of the message.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        meant = near(unknown[0], known)
        hint = f"did you mean {meant!r}? " if meant else ""
        raise ConfigError(f"{where}unknown setting {unknown[0]!r}; {hint}the settings are {', '.join(known)}")


def near(name: str, known: Collection[str]) -> str:
    """Return the most similar known name; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), "")


def _with_quotes(text: str, known: Collection[str]) -> str:
    """Return a hint if a value in the file lacks quotes, the most common mistake; otherwise an empty string."""
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if equals and name in known and value:
            try:
                tomllib.loads(line)
            except tomllib.TOMLDecodeError:
                return "" if value[0] in "\"'[{" else f'; put the value into quotes: {name} = "{value}"'
    return ""


def project_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Read settings from a file that may belong to a cloned repository, without ``USER_SETTINGS``.

    Raises:
        ConfigError: The file is not TOML, or contains an unknown setting.
    """
    table = read_settings(path, known)
    with_directory = ("disk",) if ":" in str(table.get("disk", "")) else ()
    refused = [name for name in (*USER_SETTINGS, *with_directory) if table.pop(name, None) is not None]
    if refused:
        say_once(
            f"{path.absolute()} names {', '.join(refused)}, which is ignored there: a file like it comes with any cloned repository; "
            f"set {'it' if len(refused) == 1 else 'them'} in {user_file()}, by "
            f"PREFEED_{refused[0].upper()} or in a call"
        )
    return table


def read_trusted(path: Path) -> bytes:
    """Read a file; return nothing if it does not exist, or if users other than this one and root can write to it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # O_NONBLOCK, to not wait for a pipe.
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
