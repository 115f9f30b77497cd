"""Which machine this is, and which of its processes: what tells a node from the others that share its home."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import ipaddress
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PROCESS_PATHS: Final = ("/proc/", "/dev/fd/")
"""Paths below these lead each process to something else."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OWN_TYPES: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""Types of file systems that one kernel at a time has mounted."""

_STATX_MNT_ID: Final = 0x1000
_STATX_MNT_ID_UNIQUE: Final = 0x4000
_AT_FDCWD: Final = -100
_AT_EMPTY_PATH: Final = 0x1000
_STATX_MASK = struct.Struct("=I")
_STATX_MOUNT = struct.Struct("=Q")
_STATX_MOUNT_OFFSET: Final = 144

_libc: Final = ctypes.CDLL(None, use_errno=True)

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


def network_namespace() -> str:
    """Return what addresses of the machine itself, and short names, count within; each container may have its own."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def process_mark() -> str:
    """Return what names this process in the names of files: no other that runs has it, on any node."""
    return f"{boot_name()}-{''.join(filter(str.isdigit, process_namespace()))}-{os.getpid()}"


def has_ended(mark: str) -> bool:
    """Return whether the process of a mark has ended, as far as that can be told here: never of another node's."""
    here, _, pid = mark.rpartition("-")
    return here == process_mark().rpartition("-")[0] and pid.isdigit() and not os.path.exists(f"/proc/{pid}")


def is_on_own_disk(path: Path) -> bool:
    """Return whether a path, or the nearest one above that exists, is on a file system that this kernel alone has mounted.

    Then locks exclude all who can reach it, and what is unlinked stays for those who have it open. False when in doubt.
    """
    there = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
    return filesystem_of(there) in _OWN_TYPES


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system that a path is on; None when the kernel does not say."""
    held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        told = Path(f"/proc/self/fdinfo/{held}").read_text()
        mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return None
    finally:
        os.close(held)
    number = next((line.split()[1] for line in told.splitlines() if line.startswith("mnt_id:")), "")
    return filesystem_of_mount(mountinfo, number)


def filesystem_of_mount(mountinfo: str, number: str) -> str | None:
    """Return the type of the file system of the mount with this number from the text of ``/proc/<pid>/mountinfo``.

    Not by the device of a file: in a subvolume of btrfs, or a layer of overlayfs, it has one that nothing is mounted by.
    """
    for line in mountinfo.splitlines():
        mounted, _, described = line.partition(" - ")
        if mounted.partition(" ")[0] == number and described:
            return described.split()[0]
    return None


def mount_number(where: str | int, *, unique: bool = False) -> int | None:
    """Return the number of the mount by which a path or an open file is reached; None when the kernel does not say.

    Two mounts of one file system have two numbers: what ``st_dev`` cannot tell apart. It is that of
    ``/proc/self/mountinfo``, which another mount may get once this one is gone and nothing of it is open any more.

    Args:
        where: A path, whose last link is followed, or a descriptor.
        unique: The number that no other mount ever has, of Linux 6.8 and later; not that of mountinfo.
    """
    mask = _STATX_MNT_ID_UNIQUE if unique else _STATX_MNT_ID  # the latter since Linux 5.8
    path, directory = (b"", where) if isinstance(where, int) else (os.fsencode(where), _AT_FDCWD)
    found = ctypes.create_string_buffer(256)
    if not _libc.statx(directory, path, _AT_EMPTY_PATH, mask, found) and _STATX_MASK.unpack_from(found)[0] & mask:
        return int(_STATX_MOUNT.unpack_from(found, _STATX_MOUNT_OFFSET)[0])
    if isinstance(where, int) and not unique:
        with contextlib.suppress(OSError, StopIteration, ValueError):
            lines = Path(f"/proc/self/fdinfo/{where}").read_text().splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("mnt_id:")))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, told apart from others that have its number elsewhere, or get it later.

    Attributes:
        pid: Its number; 0: none.
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
        """Return the process that has this number here and now; one that stands for no process if there is none."""
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


def is_loopback(host: str) -> bool:
    """Return True when this is who asks: an address or a name of the machine, or the container, that it is used in."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_relative(host: str) -> bool:
    """Return True when containers on one machine may reach different servers by it.

    It is a loopback address, or a name without a dot: each network of containers has names of its own, and each namespace
    of Kubernetes its services.
    """
    name = host.strip("[]").rstrip(".")
    return is_loopback(host) or not ("." in name or ":" in name)


def open_files(pid: int, covers: Callable[[str], bool]) -> list[str]:
    """Return the files that a process has open below some directories, by the kernel's names; storage is asked nothing.

    Args:
        pid: Of the process; one that is gone, or another user's, has none.
        covers: Takes an absolute path; returns whether it is below the directories.
    """
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed meanwhile
                name = os.readlink(f"/proc/{pid}/fd/{number}")
                if name.startswith("/") and covers(name):
                    found.append(name)
    return found
