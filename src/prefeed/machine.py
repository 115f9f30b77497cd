"""Which machine this is, and which of its processes: what tells a node from the others that share its home."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OWN_TYPES: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""Types of file systems that one kernel at a time has mounted."""

_NAME_DIGITS: Final = 12
_START_FIELD: Final = 19
"""Of what ``/proc/<pid>/stat`` says behind the name: when the process began."""


@cache
def boot_name() -> str:
    """Return twelve hex digits for this boot of this kernel: all its containers have them, no other node and no later boot.

    Where the kernel has no boot id, as in some sandboxes, they are of the host name.
    """
    return hashlib.sha256(boot_id().encode()).hexdigest()[:_NAME_DIGITS]


def boot_id() -> str:
    """Return what tells this boot of this kernel from all others; where the kernel has no boot id, the host name."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"host {host_name()}"


def host_name() -> str:
    """Return the name of the machine or container, for people; others may have the same."""
    return socket.gethostname()


def boot_time() -> float:
    """Return when the kernel was booted, in seconds since 1970; before everything when it does not say."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("btime ")))
    except (OSError, StopIteration, ValueError):
        return float("-inf")


def read_text(path: Path) -> str | None:
    """Return the text of one of the kernel's files; None where there is none, or it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


@cache
def process_namespace() -> str:
    """Return what process ids of this process count within: containers of one kernel have one each."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def process_mark() -> str:
    """Return what names this process in the names of files: no other that runs has it, on any node."""
    return f"{boot_name()}-{''.join(filter(str.isdigit, process_namespace()))}-{os.getpid()}"


def is_gone(mark: str) -> bool:
    """Return whether the process of a mark has ended, as far as that can be told here: never of another node's."""
    here, _, pid = mark.rpartition("-")
    return here == process_mark().rpartition("-")[0] and pid.isdigit() and not os.path.exists(f"/proc/{pid}")


def is_on_own_disk(path: Path) -> bool:
    """Return whether a path, or the nearest one above that exists, is on a file system that this kernel alone has mounted.

    Then locks exclude all who can reach it, and what is unlinked stays for those who have it open. False when in doubt.
    """
    there = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
    return filesystem_of(there) in _OWN_TYPES


def try_flock(descriptor: int) -> bool:
    """Return whether there is nothing to wait for: the lock is held, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system that a path is on; None when the kernel does not say."""
    device = os.stat(path).st_dev
    try:
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    return filesystem_of_device(mountinfo, os.major(device), os.minor(device))


def filesystem_of_device(mountinfo: str, major: int, minor: int) -> str | None:
    """Return the type of the file system with this device number from the text of ``/proc/<pid>/mountinfo``."""
    for line in mountinfo.splitlines():
        mounted, _, described = line.partition(" - ")
        parts = mounted.split()
        if len(parts) > 2 and parts[2] == f"{major}:{minor}" and described:
            return described.split()[0]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, told apart from others that have its number elsewhere, or get it later.

    Attributes:
        pid: Its number; 0: nobody.
        started: When it began, in ticks since the boot.
        boot: See ``boot_name``.
        namespace: See ``process_namespace``.
        host: See ``host_name``.
    """

    pid: int = 0
    started: int = 0
    boot: str = ""
    namespace: str = ""
    host: str = ""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this number here and now; one that is nobody's if there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return cls()
        if stat[0] in ("Z", "X"):
            return cls()
        return cls(
            pid=pid, started=int(stat[_START_FIELD]), boot=boot_name(), namespace=process_namespace(), host=host_name()
        )

    @property
    def is_here(self) -> bool:
        """Whether its number means something in this process; of one elsewhere ``/proc`` says nothing."""
        return (self.boot, self.namespace) == (boot_name(), process_namespace())

    @property
    def is_alive(self) -> bool:
        """Whether it runs, for one that is here."""
        now = Process.of(self.pid) if self.pid and self.is_here else Process()
        return bool(now.pid) and now.started == self.started

    @property
    def place(self) -> str:
        """The node that it is of, for messages."""
        return self.host or "another node"
