"""Mounts by FUSE, and the device between the kernel and who answers for one. As root by ``mount(2)``, else by ``fusermount3``."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from prefeed.fuse.wire import READ_BYTES

DEVICE: Final = "/dev/fuse"
PROGRAM: Final = "fusermount3"

_IN_CONTAINERS: Final = f"A container that mounts needs --device {DEVICE} and --cap-add SYS_ADMIN; a user without that right needs {PROGRAM} (package fuse3)"

_READ_ONLY: Final = 1
_NO_SUID: Final = 2
_NO_DEVICES: Final = 4
_DETACH: Final = 2
_NO_FOLLOW: Final = 8
_CLONE: Final = 0x8004E500
_BACKING_OPEN: Final = 0x4010E501
_BACKING_CLOSE: Final = 0x4004E502
_BACKING: Final = struct.Struct("=iIQ")

_libc = ctypes.CDLL(None, use_errno=True)


class Mounted(NamedTuple):
    """One mount: where it is, its type, what it says that it shows, and its device, which no other mount has meanwhile."""

    point: str
    kind: str
    source: str
    device: str


def missing() -> str | None:
    """Return what FUSE lacks here for this user, as a sentence that says what to do; None when nothing is known to be missing."""
    if not os.path.exists(DEVICE):
        return f"there is no {DEVICE}: load the kernel's fuse module, or give the container --device {DEVICE}"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE}: chmod 666 {DEVICE}, as it is on most systems"
    if os.geteuid() != 0 and shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed, and only root mounts without it: apt-get install fuse3"
    return None


def mounted_at(point: str | os.PathLike[str]) -> Mounted | None:
    """Return the topmost mount at exactly this absolute path; the kernel is asked, and not a server that may be gone."""
    wanted = os.fspath(point)
    found = None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        words = line.split()
        if _plain(words[4]) == wanted:
            rest = words[words.index("-") + 1 :]
            found = Mounted(wanted, rest[0], _plain(rest[1]), words[2])
    return found


def mount_directly(point: str, *, subtype: str, shown: str, others: bool, read_bytes: int = READ_BYTES) -> int:
    """Mount read-only as root, and return the device, by which the kernel asks.

    Args:
        point: An existing directory.
        subtype: The type is ``fuse.<subtype>``.
        shown: What is mounted, for people.
        others: Other users may read it as well, as its modes allow.
        read_bytes: Most bytes that the kernel asks for at once.

    Raises:
        OSError: The kernel refused.
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},max_read={read_bytes}"
    options += ",allow_other,default_permissions" if others else ""
    flags = _READ_ONLY | _NO_SUID | _NO_DEVICES
    name, kind = os.fsencode(shown), f"fuse.{subtype}".encode()
    if _libc.mount(name, os.fsencode(point), kind, flags, options.encode()):
        os.close(device)
        if ctypes.get_errno() == errno.EPERM:
            lacking = f"this process lacks the capability CAP_SYS_ADMIN. {_IN_CONTAINERS}"
            raise PermissionError(errno.EPERM, lacking, point)
        raise _error(point)
    return device


class ProgramMount:
    """A mount made and removed by the set-uid program ``fusermount3``, so that no special rights are needed.

    **Ownership.** Its maker closes it. ``fusermount3`` stays until then and unmounts, lazily, also when this
    process was killed, as soon as no process has the link any more.

    Attributes:
        device: By which the kernel asks.
        link: Descriptor that keeps the mount; a forked child closes its own.
    """

    def __init__(
        self, point: str, *, subtype: str, shown: str, others: bool = False, read_bytes: int = READ_BYTES
    ) -> None:
        """Mount read-only at an existing directory; arguments as for ``mount_directly``.

        Raises:
            OSError: The kernel or ``fusermount3`` refused; it has said why on standard error.
        """
        self._socket, theirs = socket.socketpair()
        self.link: int = self._socket.fileno()
        name = shown.replace("\\", "\\\\").replace(",", "\\,")
        options = f"ro,nosuid,nodev,auto_unmount,fsname={name},subtype={subtype},max_read={read_bytes}"
        options += ",allow_other,default_permissions" if others else ""
        with theirs:
            self._program = subprocess.Popen(
                [PROGRAM, "-o", options, "--", point],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        descriptors = array.array("i", [-1])
        _, messages, _, _ = self._socket.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize), socket.MSG_CMSG_CLOEXEC)
        if not messages:
            self._socket.close()
            raise OSError(f"{PROGRAM} ended with status {self._program.wait()}, see the log. {_IN_CONTAINERS}")
        descriptors.frombytes(messages[0][2])
        self.device: int = descriptors[1]

    def close(self) -> None:
        """Unmount; requests under way fail with ``ENOTCONN``."""
        os.close(self.device)
        self.release()

    def release(self) -> None:
        """Unmount, and leave the device open: files that are open are still answered for."""
        self._socket.close()
        self._program.wait()


def unmount(point: str, *, lazily: bool = False) -> None:
    """Take a mount away.

    Args:
        point: Where it is.
        lazily: Also while it is in use: open files stay open, and no path leads there any more.

    Raises:
        OSError: ``EBUSY``: it is in use; else what the kernel or ``fusermount3`` says.
    """
    if os.geteuid() == 0:
        if _libc.umount2(os.fsencode(point), _NO_FOLLOW | (_DETACH if lazily else 0)):
            raise _error(point)
        return
    command = [PROGRAM, "-u", *(["-z"] if lazily else []), "--", point]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        said = result.stderr.strip().rpartition("\n")[2]
        raise OSError(errno.EBUSY if "busy" in said.lower() else errno.EPERM, said or f"{PROGRAM} failed", point)


def detach(mounted: Mounted) -> None:
    """Take this mount away lazily, if it is still there and not another one; nothing is raised."""
    if mounted_at(mounted.point) == mounted:
        with contextlib.suppress(OSError):
            unmount(mounted.point, lazily=True)


def cloned(device: int) -> int:
    """Return a second device of the same mount, whose unanswered requests fail when it is closed.

    Raises:
        OSError: The kernel has none (before 4.2).
    """
    clone = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(clone, _CLONE, struct.pack("=I", device))
    except OSError:
        os.close(clone)
        raise
    return clone


def backing_opened(device: int, file: int) -> int:
    """Let the kernel read an open file by itself; return the number to give to those who open it.

    Raises:
        OSError: ``EPERM``: not without CAP_SYS_ADMIN; ``EOPNOTSUPP``, ``EINVAL``: not in this kernel, or not of this file.
    """
    number: int = fcntl.ioctl(device, _BACKING_OPEN, bytearray(_BACKING.pack(file, 0, 0)))
    return number


def backing_closed(device: int, number: int) -> None:
    """Have the number mean nothing any more; who has the file open keeps it."""
    fcntl.ioctl(device, _BACKING_CLOSE, struct.pack("=I", number))


def _error(point: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), point)


_ESCAPES: Final[Mapping[str, str]] = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def _plain(word: str) -> str:
    """Return a word of ``mountinfo`` as it was before it was escaped."""
    for escape, character in _ESCAPES.items():
        word = word.replace(escape, character)
    return word
