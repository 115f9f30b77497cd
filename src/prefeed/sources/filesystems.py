"""Which file this is, whatever path leads to it: part of the version of every file.

Two containers may have different files of one size and time at one path, and one server after the other may be started
in each of them. So a version also says which file system a file is on, and which of its files it is.

Some file systems have no name but the number of their mount, which changes when they are mounted again: most kinds of FUSE.
There the time of a file's last change of status (``ctime``) takes the place of that number if it has a fraction of a second,
because then it comes from a clock that no program sets: two files that differ do not share it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from prefeed.sources.mounts import NETWORK_TYPES, sources_of_devices
from prefeed.system.machine import boot_id, is_loopback, mount_number

_NAMED: Final = frozenset({"ceph", "fuse.glusterfs", "fuse.juicefs", "gpfs", "lustre", "nfs", "nfs4", "wekafs"})
"""Types that are mounted by the name of what they hold, and number files alike on every node."""

_BY_HOST: Final = frozenset({"nfs", "nfs4"})
"""Of these, types whose name begins with a host: that of a tunnel on this machine says nothing of who is at its other end."""

_NAMED_HERE: Final = frozenset({"cifs", "fuse.rclone", "fuse.sshfs", "smb3"})
"""Types whose mount source is a name of their content, which this machine resolves."""

_HOST: Final = re.compile(r"(?://|.*@)?([^/:]*)")
"""Of such a name: ``//host/share``, ``user@host:path``; also the remote of rclone, ``remote:path``."""

_UNNUMBERED: Final = frozenset({"9p", "cifs", "fuse", "smb3", "smbfs", "vboxsf", "vmhgfs"})
"""Types, beside ``fuse.*``, that may give a file another number when the kernel had forgotten it."""


_SECOND: Final = 10**9
_BITS: Final = 2**64 - 1

Mounted = tuple[str, str, str]
"""Type, source and mount point of a file system."""


class FileSystem(NamedTuple):
    """Identity of a file system.

    Attributes:
        name: Unique name.
        is_numbered: Whether inodes identify its files.
        lasting: Name that survives a remount, and that another file system may have too; "" if there is none.
    """

    name: str
    is_numbered: bool
    lasting: str = ""


class SystemNumber(NamedTuple):
    """A ``FileSystem`` with digests of 64 bits as names; ``lasting`` is 0 if there is none."""

    digest: int
    is_numbered: bool
    lasting: int

    def of_file(self, ctime_ns: int) -> int:
        """Return the number of the file system in the version of a file."""
        return (self.lasting ^ ctime_ns) & _BITS if self.lasting and ctime_ns % _SECOND else self.digest

    def of_files(self, ctimes_ns: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return ``of_file`` for each time; shape (num_files,)."""
        found = np.full(len(ctimes_ns), self.digest, np.uint64)
        if self.lasting:
            has_fraction = ctimes_ns % _SECOND != 0
            found[has_fraction] = np.uint64(self.lasting) ^ ctimes_ns[has_fraction].view(np.uint64)
        return found


class FileSystems:
    """Names the file systems that one process sees, by their device numbers.

    **Threads and processes**: any thread; a forked child keeps what was found.
    """

    def __init__(self, *, opened: Callable[[str, int], int] | None = None) -> None:
        """Name those that this process sees, or, if paths are opened otherwise, those that another one sees."""
        self._opened = opened
        self._devices: Mapping[str, Mounted] = {}
        self._names: dict[int, FileSystem] = {}
        self._numbers: dict[int, SystemNumber] = {}

    def learn(self, devices: Mapping[str, Mounted] | None = None) -> None:
        """Look at each again: the kernel gives the number of a file system that was unmounted to the next one.

        Args:
            devices: What ``mounted_devices`` says in the process that sees them; None: this one.
        """
        self._devices = mounted_devices() if devices is None else devices
        self._names, self._numbers = {}, {}

    def look_again(self) -> None:
        """A file system may have been mounted since, in the place of another and with its number."""
        self.learn(None if self._opened is None else self._devices)

    def identify(self, status: os.stat_result, where: str | int) -> str:
        """Return which file this is: the same text only for the same file, as long as it has its number.

        Args:
            status: Of the file.
            where: Path or descriptor that leads to it.
        """
        system = self._names.get(status.st_dev) or self._look(status.st_dev, where)
        return f"{system.name}#{status.st_ino}" if system.is_numbered else system.name

    def number(self, device: int, where: str | int) -> SystemNumber:
        """Return 64 bits for a file system; see ``identify``."""
        found = self._numbers.get(device)
        if found is None:
            name, is_numbered, lasting = self._names.get(device) or self._look(device, where)
            digest = xxh3_64_intdigest(os.fsencode(f"{name}#" if is_numbered else name))
            lasting_digest = xxh3_64_intdigest(os.fsencode(lasting)) if lasting else 0
            found = self._numbers[device] = SystemNumber(digest, is_numbered, lasting_digest)
        return found

    def _look(self, device: int, where: str | int) -> FileSystem:
        if self._opened is not None and isinstance(where, str):
            descriptor = self._opened(where, os.O_PATH | os.O_CLOEXEC)
            try:
                return self._look(device, descriptor)
            finally:
                os.close(descriptor)
        names = self._names
        number = f"{os.major(device)}:{os.minor(device)}"
        if number not in self._devices and self._opened is None:
            self._devices = mounted_devices()
        kind, source, point = self._devices.get(number, ("", "", ""))
        if kind in _NAMED and source and not (kind in _BY_HOST and is_loopback(source.partition(":/")[0])):
            cluster = f"/{self._number(where):x}" if kind == "ceph" else ""  # one of several that its monitors have
            found = FileSystem(f"{kind}:{source}{cluster}", True)
        elif kind in _NAMED_HERE and not is_loopback(_HOST.findall(source)[0]):
            found = FileSystem(f"{boot_id()}/{kind}:{source}", False)
        elif _is_unnumbered(kind):
            found = FileSystem(
                f"{boot_id()}/{_mount_of(where)}", False, self._lasting_name(device, kind, source, point)
            )
        elif (own := self._number(where)) or os.major(device):  # tells it from one that had its device before it
            disk = _disk_sequence(number) if os.major(device) else ""
            found = FileSystem(f"{boot_id()}/{device}-{own:x}{disk}", True)
        else:
            lasting = self._lasting_name(device, kind, source, point)
            found = FileSystem(f"{boot_id()}/{device}-{_mount_of(where)}", True, lasting)
        names[device] = found
        return found

    def _lasting_name(self, device: int, kind: str, source: str, point: str) -> str:
        """Return a name by type, source and root directory; "" if that cannot be found."""
        try:
            root = self._stat(point)
        except OSError:
            return ""
        return f"{boot_id()}/{kind}:{source}/{root.st_ino}" if kind and root.st_dev == device else ""

    def _stat(self, path: str) -> os.stat_result:
        if self._opened is None:
            return os.stat(path)
        descriptor = self._opened(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    def _number(self, where: str | int) -> int:
        try:
            return os.statvfs(where).f_fsid
        except OSError:
            return 0


OWN: Final = FileSystems()
"""Of this process."""


def mounted_devices() -> dict[str, Mounted]:
    """Return the file systems, by device, that this process sees and that their device does not tell."""
    return {
        device: mounted
        for device, mounted in sources_of_devices().items()
        if mounted[0] in _NAMED or mounted[0] in NETWORK_TYPES or _is_unnumbered(mounted[0])
    }


def _disk_sequence(number: str) -> str:
    """Return what tells a disk from one that had its number before: each image on a loop device, each volume, has another."""
    for place in (f"/sys/dev/block/{number}", f"/sys/dev/block/{number}/.."):  # the second: of a partition
        with suppress(OSError):
            return f"@{Path(place, 'diskseq').read_text().strip()}"
    return ""


def _is_unnumbered(kind: str) -> bool:
    return kind in _UNNUMBERED or (kind.startswith("fuse.") and kind not in _NAMED)


def _mount_of(where: str | int) -> str:
    """Return the number of the mount; since Linux 6.8 no other ever has it."""
    for unique in (True, False):
        number = mount_number(where, unique=unique)
        if number is not None:
            return f"mount-{number}"
    return "mount"
