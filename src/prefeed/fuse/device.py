"""FUSE mounts and their devices. Root mounts by ``mount(2)``, other users by ``fusermount3``."""

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
    """A mount: mount point, file system type, source, and device number, which is unique while the mount exists."""

    point: str
    kind: str
    source: str
    device: str


def missing() -> str | None:
    """Return the first missing requirement of FUSE with its remedy; None if all known requirements are met."""
    if not os.path.exists(DEVICE):
        return f"there is no {DEVICE}: load the kernel's fuse module, or give the container --device {DEVICE}"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"this user may not open {DEVICE}: chmod 666 {DEVICE}, as it is on most systems"
    if os.geteuid() != 0 and shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed, and only root mounts without it: apt-get install fuse3"
    return None


def mounted_at(point: str | os.PathLike[str]) -> Mounted | None:
    """Return the topmost mount at exactly this absolute path, or None.

    Reads ``mountinfo``, because a ``stat`` would wait for a FUSE server that may be dead.
    """
    wanted = os.fspath(point)
    found = None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        words = line.split()
        if _plain(words[4]) == wanted:
            rest = words[words.index("-") + 1 :]
            found = Mounted(wanted, rest[0], _plain(rest[1]), words[2])
    return found


def mount_directly(point: str, *, subtype: str, shown: str, others: bool, read_bytes: int = READ_BYTES) -> int:
    """Mount read-only as root, and return the device on which the kernel sends its requests.

    Args:
        point: An existing directory.
        subtype: The file system type is ``fuse.<subtype>``.
        shown: Source of the mount, as shown by ``mount``.
        others: Whether other users may read the mount, as far as its modes allow.
        read_bytes: Maximum size of a read request, in bytes.

    Raises:
        OSError: The kernel refused the mount.
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
    """A mount by the set-uid program ``fusermount3``, which needs no privilege.

    **Ownership.** The caller closes the mount. ``fusermount3`` runs until then. It unmounts lazily once no process has ``link`` open, also
    after this process was killed.

    Attributes:
        device: Device on which the kernel sends its requests.
        link: Descriptor that keeps the mount. A forked child closes its copy.
    """

    def __init__(
        self, point: str, *, subtype: str, shown: str, others: bool = False, read_bytes: int = READ_BYTES
    ) -> None:
        """Mount read-only at an existing directory. The arguments are those of ``mount_directly``.

        Raises:
            OSError: The mount was refused. ``fusermount3`` has printed the reason.
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
        """Unmount. Requests in progress fail with ``ENOTCONN``."""
        os.close(self.device)
        self.release()

    def release(self) -> None:
        """Unmount and keep the device open, so that open files can still be read."""
        self._socket.close()
        self._program.wait()


def unmount(point: str, *, lazily: bool = False) -> None:
    """Unmount a file system.

    Args:
        point: Mount point.
        lazily: Unmount also while files are open. They stay open, and paths no longer resolve.

    Raises:
        OSError: ``EBUSY`` if the mount is in use; otherwise the error of the kernel or of ``fusermount3``.
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
    """Unmount lazily, if this mount still exists at its mount point. Raises nothing."""
    if mounted_at(mounted.point) == mounted:
        with contextlib.suppress(OSError):
            unmount(mounted.point, lazily=True)


def clone_device(device: int) -> int:
    """Open a second device of the same mount. Its pending requests fail when it is closed.

    Raises:
        OSError: The kernel does not support this (before 4.2).
    """
    clone = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(clone, _CLONE, struct.pack("=I", device))
    except OSError:
        os.close(clone)
        raise
    return clone


def register_backing(device: int, file: int) -> int:
    """Register an open file for passthrough, so that the kernel reads it. Return the number for the reply to ``OPEN``.

    Raises:
        OSError: ``EPERM`` without CAP_SYS_ADMIN; ``EOPNOTSUPP`` or ``EINVAL`` if the kernel or the file does not support it.
    """
    number: int = fcntl.ioctl(device, _BACKING_OPEN, bytearray(_BACKING.pack(file, 0, 0)))
    return number


def unregister_backing(device: int, number: int) -> None:
    """Unregister a passthrough file. Files that are open stay open."""
    fcntl.ioctl(device, _BACKING_CLOSE, struct.pack("=I", number))


def _error(point: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), point)


_ESCAPES: Final[Mapping[str, str]] = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def _plain(word: str) -> str:
    """Unescape a word of ``mountinfo``."""
    for escape, character in _ESCAPES.items():
        word = word.replace(escape, character)
    return word
