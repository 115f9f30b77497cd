"""Which processes have a store open, and in which PID namespace its readers are.

LMDB holds a lock for as long as a process has a store open, and the kernel ends it with the process. LMDB knows readers by their process ids, and the living from the dead by locks at offsets that are process ids. Both mean
something in one PID namespace only: in each container there is a process 1. Hence a store's table is used by the
processes of one namespace, whose name lies beside it::

    namespace-<boot id>-<number>    empty
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from pathlib import Path
from typing import Final

from prefeed.store.layout import PAGE_BYTES, data_path, lock_path, namespace_paths
from prefeed.store.tree import end_of_data
from prefeed.system.byte_locks import are_locked
from prefeed.system.locks import directory_lock
from prefeed.system.machine import BOOT_ID


class Holders:
    """Those who have a store open, wherever its files are by now.

    LMDB keeps a shared lock of the first byte of lock.mdb while an environment is open (0.9.x, 2026-11).

    **Ownership**: made by ``of``; ``close`` lets go of the file. This process must not have the store open at that
    moment: closing any descriptor of a file ends all locks that the process has on it.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def of(cls, directory: Path) -> Holders | None:
        """Return the holders of the store in a directory; None when there is no store."""
        try:
            return cls(os.open(lock_path(directory), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
        except OSError:
            return None

    def are_there(self) -> bool:
        """Return True while a process other than this one has the store open."""
        return are_locked(self._file, 0, by_processes=True)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


def is_open_elsewhere(directory: Path) -> bool:
    """Return True while another process has the store in a directory open; this one must not have."""
    holders = Holders.of(directory)
    if holders is None:
        return False
    try:
        return holders.are_there()
    finally:
        holders.close()


def try_trim(directory: Path) -> bool:
    """Cut a store to what its values take, so that who opens it next may write no more than he is told.

    Does not wait: another process that has the directory, or the store, may be stopped.

    Returns:
        False, and nothing was done, while another process has either, or when it cannot be looked into.
    """
    with contextlib.suppress(OSError), directory_lock(directory, within_seconds=0):
        return not is_open_elsewhere(directory) and _trim(data_path(directory))
    return not directory.exists()


def _trim(data: Path) -> bool:
    """Cut a data file that no process has open, which holds still: its meta pages can be read without LMDB."""
    try:
        with data.open("rb+") as file:
            end = end_of_data(file.read(2 * PAGE_BYTES))
            size = os.fstat(file.fileno()).st_size
            if 0 < end < size:
                os.ftruncate(file.fileno(), end)
    except FileNotFoundError:
        return True
    return end > 0 or size == 0


_OWN: Final = "/proc/self/ns/pid"
_UNKNOWN: Final = "unknown"
_log = logging.getLogger("prefeed")


def pid_namespace() -> str:
    """Return the name of this process's PID namespace; empty when that cannot be told: ``/proc`` is not its own.

    A namespace that has no processes any more may give its name to another. That does no harm: no process is left that
    LMDB could take for another.
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
    """Return True when this process may use the table of a store: it is of its namespace, or no process has it open.

    LMDB makes the table again for who opens a store that no process has open. Call it with the directory locked, and not when
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
            "prefeed: the cache in %s is in use in another PID namespace: this process makes its samples "
            "itself; let containers share one (--pid, shareProcessNamespace), or give each a session of its own",
            directory,
        )  # fmt: skip


@functools.cache
def _boot_id() -> str:
    return BOOT_ID.read_text().strip()
