"""All manifests of one home, one directory a URL."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import SourceError, StoreFormatError
from prefeed.machine import is_on_own_disk, try_flock
from prefeed.sources.known_directories import directories_if_unchanged, known_stamps, note_stamps, stamps_now
from prefeed.sources.manifest import CURRENT, ENCODING, HEADER, Manifest, current_generation
from prefeed.sources.manifest_writer import (
    SHARED_SECONDS,
    adopt_generation,
    build_manifest,
    is_in_use,
    remove_replaced,
    with_files_of_now,
)
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.sources.views import NAMESPACE_DIGITS
from prefeed.types import ListingProgress

_DIRECTORY: Final = "manifests"
_OF_URL: Final = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{8,24})?")
"""Nothing else there is ours: a home may be a directory in which its user has things of his own."""

_UNUSED_SECONDS: Final = 30 * 24 * 3600
_PATIENCE_SECONDS: Final = 900.0
"""So long a listing of ten million objects may take; who waits longer lists by himself."""

_LOOK_AGAIN_SECONDS: Final = 0.02

SourceFactory = Callable[[str], Source]
"""Returns the source of a URL; called only when a listing is needed."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A manifest, and when the listing that it is of began, in seconds since 1970.

    ``is_settled`` is False where only the names are of then: ``ManifestLibrary.settle`` asks for sizes and times.
    """

    manifest: Manifest
    began_at: float
    is_settled: bool = True

    def is_as_young(self, age_seconds: float, now: float) -> bool:
        """True when the listing began at most so many seconds before ``now``; one from the future is of unknown age."""
        return age_seconds == math.inf or 0 <= now - self.began_at <= age_seconds


class ManifestLibrary:
    """Finds, builds, renews and forgets manifests.

    **Ownership.** The only writer below ``<home>/manifests``. **Threads and processes.** Any number at once: those who
    ask while another lists wait, and share the listing after that one.
    """

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Keep manifests below ``home``, which need not exist yet; ``clock`` tells seconds since 1970."""
        self._root = home / _DIRECTORY
        self._clock = clock

    def directory_of(self, url: str, mark: str = "") -> Path:
        """Return the directory of the manifests of a URL, and of the origin of this ``mark`` behind it."""
        name = xxh3_64_hexdigest(canonical_url(url).encode(*ENCODING))
        return self._root / (f"{name}-{mark}" if mark else name)

    def find(self, url: str, listing_age: float, *, mark: str = "") -> Listed | None:
        """Return the manifest in force if its listing began at most so many seconds ago; None: there is no such one."""
        found = self._last(url, mark)
        return found if found is not None and found.is_as_young(listing_age, self._clock()) else None

    def open(
        self,
        url: str,
        config: Config | None = None,
        *,
        listing_age: float = 0.0,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
        mark: str = "",
    ) -> Manifest:
        """Return the manifest of a URL as it is now; see ``open_listed``."""
        return self.open_listed(
            url, config, listing_age=listing_age, source_factory=source_factory, progress=progress, mark=mark
        ).manifest  # fmt: skip

    def open_listed(
        self,
        url: str,
        config: Config | None = None,
        *,
        listing_age: float = 0.0,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
        mark: str = "",
    ) -> Listed:
        """Return the manifest of a URL, of a listing that began after this call, or at most ``listing_age`` before it.

        Objects that did not change keep their entry keys; changed ones have new keys. A listing that finds what the
        one before found is the same manifest, with another time.

        Args:
            url: Root to list; credentials in it are used and not kept.
            config: Settings of the source.
            listing_age: Seconds; ``inf``: any listing will do.
            source_factory: Given in place of ``config``: makes the source itself.
            progress: Called while the listing goes on.
            mark: What tells the origin from others that have this URL: each has listings of its own.

        Raises:
            SourceError: The listing failed; a manifest that was there before is still there.
        """
        asked_at = self._clock()
        found = self.find(url, listing_age, mark=mark) if listing_age else None
        if found is not None:
            return found
        if source_factory is None and config is None:
            raise ValueError("to list an origin, give either its settings or a source_factory")
        directory = self.directory_of(url, mark)
        with _locked(directory):
            renewed = _try_listed(directory)
            if renewed is not None and asked_at <= renewed.began_at <= self._clock():
                return renewed  # Another one listed it while this one waited.
            settled = None if renewed is None else self._settled(renewed.manifest)
            if settled is not None:
                return settled
            source = source_factory(url) if source_factory else open_source(url, config or Config())
            try:
                began_at = self._clock()
                manifest = build_manifest(source, directory, progress=progress, began_at=began_at)
                _note_time(directory, began_at)
                return Listed(manifest, began_at)
            except SourceError as err:
                raise _with_way_out(err, self._last(url, mark), self._clock()) from err
            finally:
                source.close()

    def _last(self, url: str, mark: str) -> Listed | None:
        """Return what was listed last; of a directory that is gone, what this mount namespace had there."""
        directory = self.directory_of(url, mark)
        if len(mark) != NAMESPACE_DIGITS:
            return _try_listed(directory)
        listed = [found for path in self._root.glob(f"{directory.name}*") if (found := _try_listed(path)) is not None]
        return max(listed, key=lambda one: one.began_at, default=None)

    def find_by_names(self, url: str, *, mark: str = "") -> Listed | None:
        """Return the manifest in force if its directories say that the names are the same now; see ``known_directories``."""
        began_at = self._clock()
        found = _try_listed(self.directory_of(url, mark))
        if found is None or directories_if_unchanged(found.manifest) is None:
            return None
        return Listed(found.manifest, began_at, is_settled=False)

    def settle(self, manifest: Manifest, *, mark: str = "") -> Listed:
        """Return the manifest with the same paths in which each file has the size and time that it has now.

        What is no file any more stays as it was listed. It comes into force if the one given is in force, and is of the
        origin of this mark: in another mount namespace the same paths may lead to other files.
        """
        with _locked(manifest.directory.parent):
            is_own = manifest.directory.parent == self.directory_of(manifest.url, mark)
            return self._with_times_of_now(manifest, may_be_in_force=is_own)[0]

    def _settled(self, manifest: Manifest) -> Listed | None:
        """Return the manifest as a listing now would find it, if the names are the same; None: list it."""
        if directories_if_unchanged(manifest) is None:
            return None
        settled, num_gone = self._with_times_of_now(manifest)
        return None if num_gone else settled

    def _with_times_of_now(self, manifest: Manifest, *, may_be_in_force: bool = True) -> tuple[Listed, int]:
        began_at = self._clock()
        sizes, stamps = stamps_now(manifest)
        known = known_stamps(manifest)
        gone = sizes < 0
        is_other = (sizes.view(np.uint64) != manifest.sizes) | (
            True if known is None else (stamps != known).any(axis=0)
        )
        changed = np.flatnonzero(is_other & ~gone)
        directory = manifest.directory.parent
        is_in_force = may_be_in_force and current_generation(directory) == manifest.directory
        renewed = manifest
        if len(changed):
            renewed, changed_stamps = with_files_of_now(manifest, changed, in_force=is_in_force)
            if known is not None:
                stamps = np.where(gone, known, stamps)
                stamps[:, changed] = changed_stamps
                note_stamps(renewed, stamps, like=manifest)
        if is_in_force and not gone.any():
            _note_time(directory, began_at)
        return Listed(renewed, began_at), int(gone.sum())

    def adopt(self, manifest: Manifest) -> Path:
        """Return the directory of this generation in this library.

        One of another library, or one that was forgotten meanwhile, is written there, and not brought into force.

        Raises:
            OSError: It cannot be written.
        """
        of_url = manifest.directory.parent.name
        directory = self._root / of_url if self.is_of(Path(of_url), manifest.url) else self.directory_of(manifest.url)
        if manifest.directory.parent == directory and (manifest.directory / HEADER).exists():
            return manifest.directory
        return adopt_generation(manifest, directory)

    def list(self) -> list[Manifest]:
        """Return every readable manifest, in order of URL."""
        try:
            directories = [path for path in self._root.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return []
        manifests = [_try_open(directory) for directory in directories]
        return sorted((m for m in manifests if m is not None), key=lambda manifest: manifest.url)

    def is_of(self, directory: Path, url: str, mark: str | None = None) -> bool:
        """Return True when this is the name of a directory of the URL's manifests, of the origin of the mark, or of any."""
        name = self.directory_of(url, mark or "").name
        return directory.name == name or (mark is None and directory.name.startswith(f"{name}-"))

    def newest(self, url: str) -> Manifest | None:
        """Return the manifest of a URL that was listed last, whichever origin it lists; None without one."""
        found = [listed for directory in self._directories_of(url) if (listed := _try_listed(directory)) is not None]
        return max(found, key=lambda listed: listed.began_at).manifest if found else None

    def forget(self, url: str) -> bool:
        """Who opens a URL from now on lists it, whichever origin it has behind it; return False if it was not listed.

        Those who have a manifest open keep it.

        On a file system that nodes may share the files stay for ``remove_unused``: what is unlinked is lost to other nodes.
        """
        found = [directory for directory in self._directories_of(url) if (directory / CURRENT).exists()]
        for directory in found:
            with _locked(directory):
                if is_on_own_disk(directory):
                    shutil.rmtree(directory, ignore_errors=True)
                else:
                    (directory / CURRENT).unlink(missing_ok=True)
        return bool(found)

    def _directories_of(self, url: str) -> tuple[Path, ...]:
        unmarked = self.directory_of(url)
        return tuple(path for path in (unmarked, *self._root.glob(f"{unmarked.name}-*")) if path.is_dir())

    def remove_unused(self) -> None:
        """Remove what ``forget`` has left, and listings that were replaced, when no server of any node has them in use.

        And those of one of several origins of a URL that nobody had in use for 30 days: each start of the machine and each
        container makes some, of what it has at a path.
        """
        with contextlib.suppress(OSError), os.scandir(self._root) as entries:
            for entry in list(entries):
                if _OF_URL.fullmatch(entry.name) is None or not entry.is_dir(follow_symlinks=False):
                    continue
                if "-" in entry.name and _is_unused(Path(entry.path)):
                    shutil.rmtree(entry.path, ignore_errors=True)
                    Path(entry.path + ".lock").unlink(missing_ok=True)
                else:
                    # A loader may be without a server for a moment, and name its listing to the one that starts now.
                    remove_replaced(Path(entry.path), at_least_seconds=SHARED_SECONDS)


def _is_unused(directory: Path) -> bool:
    """Return whether no process has a listing here open, and no server has said for 30 days that it has."""
    try:
        with os.scandir(directory) as entries:
            found = list(entries)
        youngest = max([directory.stat().st_mtime, *(entry.stat().st_mtime for entry in found)])
    except OSError:
        return False
    generations = [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    return time.time() - youngest > _UNUSED_SECONDS and not any(map(is_in_use, generations))


def _try_open(directory: Path) -> Manifest | None:
    try:
        return Manifest.open(directory)
    except (StoreFormatError, OSError):
        return None


def _note_time(directory: Path, began_at: float) -> None:
    """The manifest in force is of a listing that began then."""
    os.utime(directory / CURRENT, ns=(int(began_at * 1e9), int(began_at * 1e9)))


def _try_listed(directory: Path) -> Listed | None:
    try:
        began_at = (directory / CURRENT).stat().st_mtime_ns / 1e9
    except OSError:
        return None
    manifest = _try_open(directory)
    return None if manifest is None else Listed(manifest, began_at)


def _with_way_out(err: SourceError, old: Listed | None, now: float) -> SourceError:
    """Return the error, with the way to read on from the old listing, if there is one."""
    if old is None:
        return err
    advice = (
        f"; its listing of {described_age(now - old.began_at)} ago is still there: to read what that names, set "
        "listing_age=inf (PREFEED_LISTING_AGE=inf)"
    )
    return type(err)(err.message + advice, **err.details)


def described_age(seconds: float) -> str:
    """Return an age for people: ``12 s``, ``5 min``, ``3 h``, ``2 days``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the directory's lock, so that an origin is listed once and not by all who want it; the kernel frees it.

    Nothing else depends on it: generations have unique names until they are whole. So where the file system has no locks,
    or a node that is gone keeps one, the origin is listed all the same.
    """
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory.with_name(directory.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not try_flock(descriptor) and time.monotonic() < deadline:
            select.select([], [], [], _LOOK_AGAIN_SECONDS)
        yield
    finally:
        os.close(descriptor)
