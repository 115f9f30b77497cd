"""Which paths lie on storage worth a cache: below directories that were named, or on network file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from prefeed.config import Config
from prefeed.system.paths import is_in, is_in_resolved

MOUNTINFO: Final = "/proc/self/mountinfo"

NETWORK_TYPES: Final = frozenset(
    {
        "9p", "acfs", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "cubefs", "cvfs", "dvs", "gfs2", "glusterfs",
        "gpfs", "juicefs", "lustre", "lustre_lite", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs",
        "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "vmhgfs", "wekafs",
    }
)  # fmt: skip
"""Types, as the kernel names them, whose files are on another machine or reached through one; and ``fuse.*``."""

LOCAL_FUSE: Final = frozenset(
    {
        "appimagelauncherfs", "bindfs", "cryfs", "encfs", "exfat", "exfat-fuse", "ext2", "ext4", "fuse-overlayfs",
        "gocryptfs", "lxcfs", "mergerfs", "ntfs", "ntfs-3g", "overlayfs", "portal", "securefs", "snapfuse", "squashfuse",
        "squashfuse_ll", "unionfs", "unionfs-fuse", "vmware-vmblock", "zfs-fuse",
    }
)  # fmt: skip
"""``fuse.<name>`` whose files are on this machine's own disks, or in its memory."""

_LOCAL_PLACES: Final = ("pack+file://", "blocks+file://")
_AUTOMOUNTER: Final = "autofs"
_SYSTEM: Final = ("/proc", "/sys", "/dev")
_MAX_DIRECTORIES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A line of mountinfo: where it is mounted, its type, its place in the tree of mounts, and the part of the file system that is there."""

    point: str
    type: str
    number: str
    parent: str
    file_system: tuple[str, str] = ("", "")
    part: str = "/"

    @property
    def is_network(self) -> bool:
        """True when its files may be on another machine. Never the root: that holds the programs, not the data."""
        if self.point == "/" or _is_below(self.point, _SYSTEM):
            return False
        if self.type == "fuse":
            return True
        kind, _, name = self.type.partition(".")
        return name not in LOCAL_FUSE if kind == "fuse" else self.type in NETWORK_TYPES


def visible_mounts(mountinfo: str | None = None) -> list[Mount]:
    """Return the mounts that paths lead to: the last one at each place, and none below a place mounted over since."""
    mounts = list(_parsed(_own_mountinfo() if mountinfo is None else mountinfo))
    numbers = {mount.number for mount in mounts}
    children: dict[str, list[Mount]] = {}
    for mount in mounts:
        is_root = mount.parent not in numbers or mount.parent == mount.number
        children.setdefault("" if is_root else mount.parent, []).append(mount)
    found: dict[str, Mount] = {}
    waiting = [""]
    while waiting:  # from the root down: one that is mounted over another comes after it
        number = waiting.pop(0)
        siblings = {mount.point: mount for mount in children.get(number, [])}
        for mount in siblings.values():
            # A sibling further up takes every path that would come by here.
            if not number or siblings.keys().isdisjoint(_above(mount.point)):
                found[mount.point] = mount
                waiting.append(mount.number)
    return list(found.values())


def is_local(root: str, mountinfo: str | None = None) -> bool:
    """Return whether a root is a directory of this machine's own; by its name alone: no storage is asked.

    Args:
        root: Canonical URL.
        mountinfo: Text of ``/proc/self/mountinfo``; defaults to the process's own.
    """
    for start in _LOCAL_PLACES:
        root = unquote(root[len(start) :]) if root.startswith(start) else root
    nearest = _nearest(root, mountinfo)
    return root.startswith("/") and (nearest is None or not nearest.is_network)


def is_within(place: str, root: str, mountinfo: str | None = None) -> bool:
    """Return whether a place is another one, or lies below it, whatever links and mounts lead to each.

    Args:
        place: Absolute path, or a URL; it need not be there.
        root: The same.
        mountinfo: Text of ``/proc/self/mountinfo``; defaults to the process's own.
    """
    if is_in_resolved(place, root):
        return True
    if not (place.startswith("/") and root.startswith("/")):
        return False
    place, root = os.path.realpath(place), os.path.realpath(root)
    mounts = {mount.point: mount for mount in visible_mounts(mountinfo)}
    seen_as = _on_file_system(place, mounts)
    shown = [_on_file_system(root, mounts)]
    shown += [(mount.file_system, mount.part) for mount in mounts.values() if _is_below(mount.point, (root,))]
    # Exports of one server may share a device, and each calls its own root "/": what is mounted tells them apart.
    return any(seen_as[0] == file_system and is_in(seen_as[1], part) for file_system, part in shown)


def _on_file_system(path: str, mounts: Mapping[str, Mount]) -> tuple[tuple[str, str], str]:
    """Return the file system that a real path is on, and its path there."""
    nearest = next((mounts[place] for place in (path, *_above(path)) if place in mounts), None)
    if nearest is None:  # nothing is known: it is by itself
        return ("", path), path
    return nearest.file_system, os.path.normpath(
        f"/{nearest.part}/{path[len(nearest.point) :]}".replace("//", "/").replace("//", "/")
    )


def mount_type(directory: str, mountinfo: str | None = None) -> str:
    """Return the type of the file system that a directory is on, by its name alone; ``""`` when nothing tells."""
    nearest = _nearest(directory, mountinfo)
    return "" if nearest is None else nearest.type


def _nearest(path: str, mountinfo: str | None) -> Mount | None:
    if not path.startswith("/"):
        return None
    mounts = {mount.point: mount for mount in visible_mounts(mountinfo)}
    return next((mounts[place] for place in (path, *_above(path)) if place in mounts), None)


def sources_of_devices(mountinfo: str | None = None) -> dict[str, tuple[str, str, str]]:
    """Return type, name of what is mounted, and mount point of each file system that is mounted, by its device, ``8:1``.

    Of several mount points it is the last one that shows the file system's root, or the last one.
    """
    found: dict[str, tuple[str, str, str]] = {}
    lines = [line.split(" ") for line in (_own_mountinfo() if mountinfo is None else mountinfo).split("\n")]
    for fields in sorted((line for line in lines if "-" in line[5:-2]), key=lambda line: line[3] == "/"):
        at = fields.index("-", 5)
        found[fields[2]] = fields[at + 1], _unescaped(fields[at + 2]), _unescaped(fields[4])
    return found


def mounts_below(directory: str, mountinfo: str | None = None) -> list[tuple[str, str, str, str]]:
    """Return number, device, part of the file system and point of each mount below the directory, hidden ones too."""
    found = []
    for line in (_own_mountinfo() if mountinfo is None else mountinfo).split("\n"):
        fields = line.split(" ")
        if len(fields) > 4 and _is_below(point := _unescaped(fields[4]), (directory,)) and point != directory:
            found.append((fields[0], fields[2], fields[3], point))
    return found


def mounts_by_number(mountinfo: str | None = None) -> dict[int, Mount]:
    """Return all mounts that this process has, hidden ones too; none where ``/proc`` does not tell."""
    return {int(mount.number): mount for mount in _parsed(_own_mountinfo() if mountinfo is None else mountinfo)}


class Roots:
    """Tells which paths are for the cache.

    **Threads and processes**: any thread; may be pickled, what was found out about directories stays behind.
    """

    def __init__(self, mounts: Iterable[Mount], *, named: tuple[str, ...] = (), live: bool = False) -> None:
        self._mounts = {mount.point: mount for mount in mounts}
        self._named = named
        self._live = live
        self._covered: dict[str, bool] = {}

    @classmethod
    def of(cls, config: Config, mountinfo: str | None = None) -> Roots:
        """Return the roots that the setting names, whatever file system they are on, or else all network mounts.

        Args:
            config: Settings.
            mountinfo: Text of ``/proc/self/mountinfo``; defaults to the process's own.
        """
        if config.roots is not None:
            # As they were given and where they lead: most paths need no look at the file system at all.
            return cls((), named=tuple(dict.fromkeys((*config.roots, *map(os.path.realpath, config.roots)))))
        return cls(visible_mounts(mountinfo), live=mountinfo is None)

    def covers(self, path: str) -> bool:
        """Return True when the file is for the cache; never raises.

        Decided once a directory, by where it really is: one on a local disk that is a symbolic link to a network file
        system is covered. A link to a single file is not followed.

        Args:
            path: Absolute.
        """
        directory = path[: path.rfind("/") + 1]  # dirname() costs five times as much, and this stands in every open()
        covered = self._covered.get(directory)
        if covered is None:
            covered = self._decide(directory)
            if len(self._covered) >= _MAX_DIRECTORIES:
                self._covered.clear()
            self._covered[directory] = covered
        return covered

    def reaches(self, directory: str) -> bool:
        """Return True when files for the cache may lie somewhere below a directory; never raises."""
        if self.covers(directory.rstrip("/") + "/"):
            return True
        above = (directory.rstrip("/"),)
        return any(_is_below(place, above) for place in (*self._named, *self._mounts))

    def describe(self) -> str:
        """Return what is covered, for messages."""
        if self._named:
            return ", ".join(self._named)
        found = [f"{point} ({mount.type})" for point, mount in sorted(self._mounts.items()) if mount.is_network]
        return ", ".join(found) or "no network file system is mounted"

    @property
    def places(self) -> tuple[str, ...]:
        """Directories; nothing is covered that does not lie below one of them."""
        return self._named or tuple(point for point, mount in self._mounts.items() if mount.is_network)

    def __bool__(self) -> bool:
        return bool(self._named) or any(mount.is_network for mount in self._mounts.values())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_covered": {}}

    def _decide(self, directory: str) -> bool:
        if not self or not directory.startswith("/"):
            return False
        try:
            if ".." not in directory and self._holds(os.path.normpath(directory)):
                return True  # no look at the file system: that costs a round trip a directory
            return self._holds(os.path.realpath(directory))
        except (OSError, ValueError):
            return False

    def _holds(self, directory: str) -> bool:
        if self._named:
            return _is_below(directory, self._named)
        mount = self._mount_of(directory)
        if mount is not None and mount.type == _AUTOMOUNTER and self._live:
            os.access(f"{directory}/.", os.F_OK)  # makes it mount what belongs there
            self._mounts = {mount.point: mount for mount in visible_mounts()}
            mount = self._mount_of(directory)
        return mount is not None and mount.is_network and mount.type != _AUTOMOUNTER

    def _mount_of(self, directory: str) -> Mount | None:
        """Return the mount nearest above the directory."""
        for place in (directory, *_above(directory)):
            if place in self._mounts:
                return self._mounts[place]
        return None


def _own_mountinfo() -> str:
    try:
        return Path(MOUNTINFO).read_text(errors="surrogateescape")
    except OSError:
        return ""


def _parsed(mountinfo: str) -> Iterator[Mount]:
    """Yield the mounts of lines like ``36 35 98:0 /sub /mnt/point rw,noatime master:1 - nfs4 server:/x rw``."""
    for line in mountinfo.split("\n"):
        fields = line.split(" ")
        if "-" not in fields[5:-1]:
            continue  # not a line of this format
        type, *source = fields[fields.index("-", 5) + 1 :][:2]
        yield Mount(
            point=_unescaped(fields[4]), type=type, number=fields[0], parent=fields[1],
            file_system=(fields[2], "".join(source)), part=_unescaped(fields[3]),
        )  # fmt: skip


def _unescaped(text: str) -> str:
    r"""Return a path without mountinfo's escapes: ``\040`` is a blank."""
    raw = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), os.fsencode(text))
    return os.fsdecode(raw)


def _above(path: str) -> Iterator[str]:
    """Yield the directories above, nearest first, the root last."""
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(is_in(path, root) for root in roots)
