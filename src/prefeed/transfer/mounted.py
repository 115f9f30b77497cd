"""Tracks the mounts that a sync meets, so that unmounted files are not treated as deleted.

Files can disappear without being deleted if a mount appears or disappears while the sync runs, if a mount of the last sync is now missing, or if
a mount is empty. ``MountTracker`` observes the mounts of one side. ``MountRecord`` stores them below the home as soon as they are met, one file
per pair of places, so that the next sync knows them even if this one is killed::

    <home>/mounts/<hash of both URLs>.json      0600: path below the source -> mount point; ``""`` is the source itself
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import JobError
from prefeed.sources.mounts import Mount, mounts_by_number
from prefeed.system.files import sync, write_private
from prefeed.system.machine import mount_number
from prefeed.system.paths import overlap_by_name
from prefeed.transfer.entries import parents_of

FORMAT: Final = 1
SOURCE, TARGET = "source", "target"
_DIRECTORY: Final = "mounts"
_AUTOMOUNTER: Final = "autofs"
_SUBMOUNTED: Final = frozenset({"nfs", "nfs4", "ceph", "cifs", "smb3", "afs"})
"""Types of file systems that mount the server's inner file systems by themselves, at the first access."""


class MountTracker:
    """Mounts of one side of a sync, since its start. **Threads**: the one that lists, then the one that deletes.

    Attributes:
        points: Mount points of directories on another mount than their parent, by path below the root. A link to a directory on another
            mount counts, too. ``""`` is the root.
        empty: Paths of ``points`` below which no file was listed; never the root.
        is_known: True if the kernel reports mount numbers.
    """

    def __init__(self, root: str) -> None:
        self.points: dict[str, str] = {}
        self.empty: set[str] = set()
        self._root = root
        self._before = mounts_by_number()
        self.is_known: bool = bool(self._before)
        self._places = [os.path.realpath(root)]
        self._identity = _identity_of(root)
        self._numbers: dict[str, int] = {}
        self._mounted_since: list[str] = []

    def record_mount(self, path: str, number: int | None) -> None:
        """Record that a directory is on another mount than its parent."""
        if number is None:
            self.is_known = False
            return
        mount = self._before.get(number)
        if mount is None:
            mounts = mounts_by_number()
            mount = mounts.get(number)
            if mounts and not _is_automatic(mount, mounts):
                self._mounted_since.append(mount.point if mount else self._locate(path))
        self._numbers[path] = number
        self.points[path] = mount.point if mount is not None else ""
        if path:
            self.empty.add(path)

    def record_file(self, path: str) -> None:
        """Record a listed file: its mounts are not ``empty``."""
        self.empty.difference_update(parents_of(path))

    def record_link(self, path: str) -> None:
        """Record a link to a directory, whose mounts count, too."""
        self._places.append(os.path.realpath(self._locate(path)))

    def changes(self) -> list[str]:
        """Return sentences about mounts that appeared or disappeared since the start."""
        now = mounts_by_number()
        sentences = [f"{point} was mounted while the sync ran" for point in self._mounted_since]
        for number, mount in self._before.items():
            there = now.get(number)
            if there is not None and (there.point, there.type) == (mount.point, mount.type):
                continue
            if number in self._numbers.values() or any(overlap_by_name(mount.point, one) for one in self._places):
                sentences.append(f"{mount.point} was mounted when the sync began, and is not any more")
        if not sentences and _identity_of(self._root) != self._identity:
            sentences.append(f"{self._root} was unmounted, mounted over or replaced while the sync ran")
        return sentences

    def _locate(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"


class MountRecord:
    """Mounts that the syncs of two places have met on both sides. Durable and private.

    Args:
        source: Canonical URL.
        target: Canonical URL.
        config: Settings.

    Attributes:
        file: Path of the record.
        before: Mount points of the previous syncs, by side and by path below the side's root.
    """

    def __init__(self, source: str, target: str, config: Config) -> None:
        pair = b"\0".join((os.fsencode(source), os.fsencode(target)))
        self.file: Path = config.home / _DIRECTORY / f"{xxh3_64_hexdigest(pair)}.json"
        self._names = {SOURCE: source, TARGET: target}
        self.before: dict[str, dict[str, str]] = self._read()
        self._now = dict(self.before)

    def add(self, side: str, path: str, point: str) -> None:
        """Record a mount point unless the path already has one. Durable when this method returns."""
        self.replace(side, {path: point, **self._now[side]})

    def replace(self, side: str, points: Mapping[str, str]) -> None:
        """Replace the mount points of a side. Durable when this method returns.

        Raises:
            JobError: The record is not writable.
        """
        # Do not record the root file system, which stays mounted.
        kept = {path: point for path, point in points.items() if path or point != "/"}
        if kept == self._now[side]:
            return
        now = {**self._now, side: kept}
        document = {"format": FORMAT, "places": self._names, "mounts": now}
        try:
            if not self.file.parent.is_dir():
                self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync(self.file.parent.parent)
            write_private(self.file, json.dumps(document, indent=1).encode())
        except OSError as err:
            raise JobError(
                f"{self.file} cannot be written: {err.strerror}; it records the mounts below the places, so that a later sync "
                "does not treat their files as deleted",
                path=str(self.file),
            ) from err
        self._now = now

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            document = json.loads(self.file.read_bytes())
            if document["format"] != FORMAT:
                raise ValueError(f"format {document['format']}")
            mounts = document["mounts"]
            return {side: {str(path): str(at) for path, at in mounts[side].items()} for side in (SOURCE, TARGET)}
        except FileNotFoundError:
            return {SOURCE: {}, TARGET: {}}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
            raise JobError(
                f"{self.file} is damaged: {err}. It records the mounts of the last sync; remove it if everything below {self._names[SOURCE]} and "
                f"{self._names[TARGET]} is mounted now",
                path=str(self.file),
            ) from err


def is_below(path: str, directories: Collection[str]) -> bool:
    """Return whether a path is below one of these directories, at any depth."""
    return bool(directories) and any(above in directories for above in parents_of(path))


def first_below(paths: Iterable[str], directories: Collection[str]) -> dict[str, str]:
    """Return, for each directory, the first of the paths below it."""
    found: dict[str, str] = {}
    if directories:
        for path in paths:
            for above in parents_of(path):
                if above in directories:
                    found.setdefault(above, path)
    return found


def _is_automatic(mount: Mount | None, mounts: Mapping[int, Mount]) -> bool:
    """Return whether the first access to a directory creates its mount, as with an automounter."""
    above = mounts.get(int(mount.parent)) if mount is not None else None
    if mount is None or above is None:
        return False
    return above.type == _AUTOMOUNTER or (above.type == mount.type and mount.type in _SUBMOUNTED)


def _identity_of(path: str) -> tuple[int, int, int | None] | None:
    try:
        status = os.stat(path)
        return status.st_dev, status.st_ino, mount_number(path)
    except OSError:
        return None
