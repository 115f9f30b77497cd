"""Which PID namespace a process is in, and of which one the readers in LMDB's table are.

LMDB knows readers by their process ids, and the living from the dead by locks at offsets that are process ids. Both mean
something in one PID namespace only: in each container there is a process 1. Hence a store's table is used by the
processes of one namespace, whose name lies beside it::

    namespace-<boot id>-<number>    empty
"""

from __future__ import annotations

import functools
import logging
import os
from pathlib import Path
from typing import Final

from prefeed.store.holders import is_open_elsewhere
from prefeed.store.layout import namespace_paths
from prefeed.system.machine import BOOT_ID

_OWN: Final = "/proc/self/ns/pid"
_UNKNOWN: Final = "unknown"
_log = logging.getLogger("prefeed")


def pid_namespace() -> str:
    """Return the name of this process's PID namespace; empty when that cannot be told: ``/proc`` is not its own.

    A namespace that has no processes any more may give its name to another. That does no harm: nobody is left whom
    LMDB could take for somebody else.
    """
    try:
        kind, _, number = os.readlink(_OWN).partition(":")
        return f"{_boot_id()}-{number.strip('[]')}" if kind == "pid" else ""
    except OSError:
        return ""


def is_foreign(namespace: str) -> bool:
    """Return True unless it is certain that this process is in the namespace of that name."""
    return not namespace or namespace != pid_namespace()


def namespace_of(directory: Path) -> str:
    """Return the namespace of those who use the table of a store; empty when that was never said, or not to the end."""
    found = namespace_paths(directory)
    return found[0].name.partition("-")[2] if len(found) == 1 else ""


def record_namespace(directory: Path) -> None:
    """The table of the store is of this process's namespace from now on. Call it with the directory locked.

    Raises:
        OSError: It cannot be recorded.
    """
    before, own = namespace_paths(directory), directory / f"namespace-{pid_namespace() or _UNKNOWN}"
    own.touch(mode=0o600)
    for path in before:
        if path != own:
            path.unlink()


def is_of_other_machine(directory: Path) -> bool:
    """Return True when the store's table is used on another machine: locks of files are not seen there."""
    own, other = pid_namespace(), namespace_of(directory)
    return bool(own and other) and other != _UNKNOWN and own.rpartition("-")[0] != other.rpartition("-")[0]


def try_take_table(directory: Path) -> bool:
    """Return True when this process may use the table of a store: it is of its namespace, or nobody has it open.

    LMDB makes the table anew for who opens a store that nobody has open. Call it with the directory locked, and not when
    this process has the store open.
    """
    if not is_foreign(namespace_of(directory)):
        return True
    if not pid_namespace() or is_open_elsewhere(directory):
        return False
    record_namespace(directory)
    return True


_said: set[Path] = set()


def say_in_use_elsewhere(directory: Path) -> None:
    """Say, once a process and store, that processes of another namespace have a store of samples open."""
    if directory not in _said:
        _said.add(directory)
        _log.warning(
            "prefeed: the cache in %s is in use in another PID namespace (another container): this process makes its samples "
            "itself; let the containers share one (--pid, shareProcessNamespace), or give each a session of its own",
            directory,
        )  # fmt: skip


@functools.cache
def _boot_id() -> str:
    return BOOT_ID.read_text().strip()
