"""Identifies this node and its processes, and reads mounts, file system types and open files from the kernel."""

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
"""Prefixes of paths that mean another file in each process."""

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

_OWN_TYPES: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)
"""File systems that only one kernel at a time mounts."""

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
"""Index of the start time among the fields after the name in ``/proc/<pid>/stat``."""


@cache
def boot_name() -> str:
    """Return twelve hex digits that identify this boot of this kernel, equal in all its containers.

    Without a boot id, as in some sandboxes, they are derived from the host name.
    """
    return hashlib.sha256(boot_id().encode()).hexdigest()[:_NAME_DIGITS]


def boot_id() -> str:
    """Return the kernel's id of this boot, or the host name if the kernel has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return f"host {host_name()}"


def host_name() -> str:
    """Return the name of the machine or container for messages. It may not be unique."""
    return socket.gethostname()


def boot_time() -> float:
    """Return the time of the boot in seconds since 1970; minus infinity if unknown."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("btime ")))
    except (OSError, StopIteration, ValueError):
        return float("-inf")


def read_text(path: Path) -> str | None:
    """Read a file of the kernel. Return None if it does not exist or is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None


@cache
def process_namespace() -> str:
    """Return the id of the namespace of this process's process ids, which containers do not share."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def network_namespace() -> str:
    """Return the id of the namespace of loopback addresses and short host names."""
    try:
        return os.readlink("/proc/self/ns/net")
    except OSError:
        return ""


def process_mark() -> str:
    """Return an id of this process for file names, unique among running processes of all nodes."""
    return f"{boot_name()}-{''.join(filter(str.isdigit, process_namespace()))}-{os.getpid()}"


def has_ended(mark: str) -> bool:
    """Return whether the process of a mark has ended. False for processes of other nodes, which cannot be checked."""
    here, _, pid = mark.rpartition("-")
    return here == process_mark().rpartition("-")[0] and pid.isdigit() and not os.path.exists(f"/proc/{pid}")


def is_on_own_disk(path: Path) -> bool:
    """Return whether a path, or its nearest existing parent, is on a file system that only this kernel mounts.

    Then locks exclude all other users of the file, and an unlinked file stays readable for processes that have it open. False if unknown.
    """
    there = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
    return filesystem_of(there) in _OWN_TYPES


def filesystem_of(path: Path) -> str | None:
    """Return the type of the file system of a path; None if the kernel does not report it."""
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
    """Return the file system type of a mount from the text of ``/proc/<pid>/mountinfo``.

    The mount is found by its number, because the device of a file in a btrfs subvolume or an overlay is not that of the mount.
    """
    for line in mountinfo.splitlines():
        mounted, _, described = line.partition(" - ")
        if mounted.partition(" ")[0] == number and described:
            return described.split()[0]
    return None


def mount_number(where: str | int, *, unique: bool = False) -> int | None:
    """Return the number of the mount of a path or open file; None if the kernel does not report it.

    Two mounts of one file system differ in this number and not in ``st_dev``. It is the number in ``/proc/self/mountinfo``, which
    can be reused once the mount is removed and none of its files is open.

    Args:
        where: A path, of which a final link is followed, or a descriptor.
        unique: True for the number that is never reused (Linux 6.8). It differs from that in mountinfo.
    """
    mask = _STATX_MNT_ID_UNIQUE if unique else _STATX_MNT_ID  # Linux 5.8
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
    """Identity of a process that remains unique when its number is reused, or used on another node.

    Attributes:
        pid: Process id; 0 for no process.
        started: Start time in ticks since the boot.
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
        """Look up a running process by its id in this namespace. Return ``Process()`` if there is none."""
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
        """True if the process id is valid in this namespace, so that ``/proc`` can be read for it."""
        return (self.boot, self.namespace) == (boot_name(), process_namespace())

    @property
    def is_alive(self) -> bool:
        """True if the process runs. Only meaningful if ``is_here``."""
        now = Process.of(self.pid) if self.pid and self.is_here else Process()
        return bool(now.pid) and now.started == self.started

    @property
    def place(self) -> str:
        """Host name for messages."""
        return self.host or "another node"


def is_loopback(host: str) -> bool:
    """Return whether a host is an address or name of the machine or container itself."""
    name = host.strip("[]").rstrip(".").lower()
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_relative(host: str) -> bool:
    """Return whether a host may mean different servers in different containers of a machine.

    True for a loopback address and for a name without a dot, which each container network or Kubernetes namespace resolves itself.
    """
    name = host.strip("[]").rstrip(".")
    return is_loopback(host) or not ("." in name or ":" in name)


def open_files(pid: int, covers: Callable[[str], bool]) -> list[str]:
    """List the open files of a process below some directories, without access to storage.

    Args:
        pid: Process id. The list is empty for an ended process or one of another user.
        covers: Returns whether an absolute path is below the directories.
    """
    found = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # closed in the meantime
                name = os.readlink(f"/proc/{pid}/fd/{number}")
                if name.startswith("/") and covers(name):
                    found.append(name)
    return found
