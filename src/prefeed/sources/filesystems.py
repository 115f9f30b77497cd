"""Which file this is, whatever path leads to it: part of the version of every file.

Two containers may have different files of one size and time at one path, and one server after the other may be started
in each of them. So a version also says which file system a file is on, and which of its files it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_intdigest

from prefeed.sources.mounts import sources_of_devices
from prefeed.system.machine import boot_id, is_loopback, mount_number

_NAMED: Final = frozenset({"ceph", "fuse.glusterfs", "fuse.juicefs", "gpfs", "lustre", "nfs", "nfs4", "wekafs"})
"""Types that are mounted by the name of what they hold, and number files alike on every node."""

_BY_HOST: Final = frozenset({"nfs", "nfs4"})
"""Of these, types whose name begins with a host: that of a tunnel on this machine says nothing of who is at its other end."""

_UNNUMBERED: Final = frozenset({"9p", "cifs", "fuse", "smb3", "smbfs", "vboxsf", "vmhgfs"})
"""Types, beside ``fuse.*``, that may give a file another number when the kernel had forgotten it."""


class FileSystems:
    """Names the file systems that one process sees, by their device numbers.

    **Threads and processes**: any thread; a forked child keeps what was found.
    """

    def __init__(self, *, opened: Callable[[str, int], int] | None = None) -> None:
        """Name those that this process sees, or, if paths are opened otherwise, those that another one sees."""
        self._opened = opened
        self._devices: Mapping[str, tuple[str, str]] = {}
        self._names: dict[int, tuple[str, bool]] = {}
        self._numbers: dict[int, tuple[int, bool]] = {}

    def learn(self, devices: Mapping[str, tuple[str, str]] | None = None) -> None:
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
        name, is_numbered = self._names.get(status.st_dev) or self._look(status.st_dev, where)
        return f"{name}#{status.st_ino}" if is_numbered else name

    def number(self, device: int, where: str | int) -> tuple[int, bool]:
        """Return 64 bits for a file system, and whether numbers of its files say which file it is; see ``identify``."""
        found = self._numbers.get(device)
        if found is None:
            name, is_numbered = self._names.get(device) or self._look(device, where)
            digest = xxh3_64_intdigest(os.fsencode(f"{name}#" if is_numbered else name))
            found = self._numbers[device] = digest, is_numbered
        return found

    def _look(self, device: int, where: str | int) -> tuple[str, bool]:
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
        kind, source = self._devices.get(number, ("", ""))
        if kind in _NAMED and source and not (kind in _BY_HOST and is_loopback(source.partition(":/")[0])):
            cluster = f"/{self._number(where):x}" if kind == "ceph" else ""  # one of several that its monitors have
            found = f"{kind}:{source}{cluster}", True
        elif _is_unnumbered(kind):
            found = f"{boot_id()}/{_mount_of(where)}", False
        else:
            disk = _disk_sequence(number) if os.major(device) else ""
            found = f"{boot_id()}/{device}-{self._file_system_id(device, where)}{disk}", True
        names[device] = found
        return found

    def _file_system_id(self, device: int, where: str | int) -> str:
        """Return the number that tells the file system from one that had its device before it."""
        number = self._number(where)
        return f"{number:x}" if number or os.major(device) else _mount_of(where)

    def _number(self, where: str | int) -> int:
        try:
            return os.statvfs(where).f_fsid
        except OSError:
            return 0


OWN: Final = FileSystems()
"""Of this process."""


def mounted_devices() -> dict[str, tuple[str, str]]:
    """Return type and source, by device, of the file systems that this process sees and that their device does not tell."""
    return {
        device: (kind, source)
        for device, (kind, source) in sources_of_devices().items()
        if kind in _NAMED or _is_unnumbered(kind)
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
