"""Where a user's settings and sockets lie, on a machine that others use too."""

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
"""Where data go, where they come from, and who is told of it: no file that came with somebody's code may say so."""

NO_HOME: Final = Path("/dev/null/no-home-directory")
"""Stands for the home of a user without a home directory: no user, not even root, can make or read anything in it."""

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


def home_directory() -> str:
    """Return the user's home directory; empty when neither ``HOME`` nor the system's list of users says which."""
    given = os.environ.get("HOME", "")
    if os.path.isabs(given):
        return given
    try:
        listed = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # as in a container that runs as a user of its own choice
        return ""
    return listed if os.path.isabs(listed) else ""


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path, absolute, in which ``~`` at its start stands for a home directory.

    Raises:
        ConfigError: That home directory is not known.
    """
    text = os.fspath(path)
    name, slash, rest = text.partition("/")
    if not name.startswith("~"):
        return Path(text).absolute()
    home = home_directory() if name == "~" else os.path.expanduser(name)
    if not os.path.isabs(home):
        raise ConfigError(
            f"{text!r}: {name} stands for a home directory that is not known here; write the path in full"
        )
    return Path(home + slash + rest)


def _user_directory(variable: str, below_home: str) -> Path:
    """Return one of the XDG base directories, or where it lies in the home directory; one that is relative does not count."""
    given = os.environ.get(variable, "")
    if os.path.isabs(given):
        return Path(given)
    home = home_directory()
    return Path(home, below_home) if home else NO_HOME


def user_file() -> Path:
    """Return the path of the user's own settings."""
    return _user_directory("XDG_CONFIG_HOME", ".config") / "prefeed" / "config.toml"


def default_home() -> Path:
    """Return where manifests, records and credentials lie unless the settings say otherwise; below ``NO_HOME``: nowhere."""
    return _user_directory("XDG_CACHE_HOME", ".cache") / "prefeed"


def is_nowhere(home: Path) -> bool:
    """Return whether a home is that of a user without a home directory."""
    return NO_HOME in home.parents


def lack_of_space(err: BaseException | None, home: Path) -> str:
    """Describe how to correct an error of writing to a full home; empty for other errors."""
    if not isinstance(err, OSError) or err.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ""
    return f"{os.strerror(err.errno)}: free space on the file system of {home}, or set PREFEED_HOME to a directory on another one"


def read_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return what a TOML file says; nothing where there is none, or others than this user and root could have written it.

    Raises:
        ConfigError: It is no TOML, or has a setting that is not known.
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
    """Raise ``ConfigError`` for a name that is no setting; it says which one was meant, if it is like one.

    Args:
        names: To look at.
        known: Names of settings.
        where: Begins the message.
    """
    unknown = sorted(set(names) - set(known))
    if unknown:
        meant = near(unknown[0], known)
        hint = f"did you mean {meant!r}? " if meant else ""
        raise ConfigError(f"{where}unknown setting {unknown[0]!r}; {hint}the settings are {', '.join(known)}")


def near(name: str, known: Collection[str]) -> str:
    """Return the known name that is most like this one; empty when none is."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.75)), "")


def _with_quotes(text: str, known: Collection[str]) -> str:
    """Return how a text without quotes would have to be written, the usual mistake in such a file; empty when it is none."""
    for line in text.splitlines():
        name, equals, value = (part.strip() for part in line.partition("#")[0].partition("="))
        if equals and name in known and value:
            try:
                tomllib.loads(line)
            except tomllib.TOMLDecodeError:
                return "" if value[0] in "\"'[{" else f'; put the value into quotes: {name} = "{value}"'
    return ""


def project_settings(path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the settings of a file that may have come with a cloned repository: not those that are the user's to say.

    Raises:
        ConfigError: It is no TOML, or has a setting that is not known.
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
    """Return the content of a file; nothing if it does not exist, or if other users than this one and root may write to it."""
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
