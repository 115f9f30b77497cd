"""All manifests of one home, one directory a URL."""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
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
from prefeed.machine import is_on_own_disk
from prefeed.sources.known_directories import directories_if_unchanged, known_times, note_times, times_now
from prefeed.sources.manifest import CURRENT, ENCODING, HEADER, Manifest, current_generation
from prefeed.sources.manifest_writer import (
    SHARED_SECONDS,
    adopt_generation,
    build_manifest,
    remove_replaced,
    with_files_of_now,
)
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import ListingProgress

_DIRECTORY: Final = "manifests"
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

    def directory_of(self, url: str) -> Path:
        """Return the directory of a URL's manifests."""
        return self._root / xxh3_64_hexdigest(canonical_url(url).encode(*ENCODING))

    def find(self, url: str, listing_age: float) -> Listed | None:
        """Return the manifest in force if its listing began at most so many seconds ago; None: there is no such one."""
        found = _try_listed(self.directory_of(url))
        return found if found is not None and found.is_as_young(listing_age, self._clock()) else None

    def open(
        self,
        url: str,
        config: Config | None = None,
        *,
        listing_age: float = 0.0,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
    ) -> Manifest:
        """Return the manifest of a URL as it is now; see ``open_listed``."""
        return self.open_listed(
            url, config, listing_age=listing_age, source_factory=source_factory, progress=progress
        ).manifest  # fmt: skip

    def open_listed(
        self,
        url: str,
        config: Config | None = None,
        *,
        listing_age: float = 0.0,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
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

        Raises:
            SourceError: The listing failed; a manifest that was there before is still there.
        """
        asked_at = self._clock()
        found = self.find(url, listing_age) if listing_age else None
        if found is not None:
            return found
        if source_factory is None and config is None:
            raise ValueError("to list an origin, give either its settings or a source_factory")
        directory = self.directory_of(url)
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
                raise _with_way_out(err, _try_listed(directory), self._clock()) from err
            finally:
                source.close()

    def find_by_names(self, url: str) -> Listed | None:
        """Return the manifest in force if its directories say that the names are the same now; see ``known_directories``."""
        began_at = self._clock()
        found = _try_listed(self.directory_of(url))
        if found is None or directories_if_unchanged(found.manifest) is None:
            return None
        return Listed(found.manifest, began_at, is_settled=False)

    def settle(self, manifest: Manifest) -> Listed:
        """Return the manifest with the same paths in which each file has the size and time that it has now.

        What is no file any more stays as it was listed. It comes into force if the one given is in force.
        """
        with _locked(manifest.directory.parent):
            return self._with_times_of_now(manifest)[0]

    def _settled(self, manifest: Manifest) -> Listed | None:
        """Return the manifest as a listing now would find it, if the names are the same; None: list it."""
        if directories_if_unchanged(manifest) is None:
            return None
        settled, num_gone = self._with_times_of_now(manifest)
        return None if num_gone else settled

    def _with_times_of_now(self, manifest: Manifest) -> tuple[Listed, int]:
        began_at = self._clock()
        sizes, times = times_now(manifest)
        known = known_times(manifest)
        gone = sizes < 0
        is_other = (sizes.view(np.uint64) != manifest.sizes) | (True if known is None else times != known)
        changed = np.flatnonzero(is_other & ~gone)
        directory = manifest.directory.parent
        is_in_force = current_generation(directory) == manifest.directory
        renewed = manifest
        if len(changed):
            renewed = with_files_of_now(manifest, sizes, times, changed, in_force=is_in_force)
            if known is not None:
                note_times(renewed, np.where(gone, known, times), like=manifest)
        if is_in_force and not gone.any():
            _note_time(directory, began_at)
        return Listed(renewed, began_at), int(gone.sum())

    def adopt(self, manifest: Manifest) -> Path:
        """Return the directory of this generation in this library.

        One of another library, or one that was forgotten meanwhile, is written there, and not brought into force.

        Raises:
            OSError: It cannot be written.
        """
        directory = self.directory_of(manifest.url)
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

    def forget(self, url: str) -> bool:
        """Who opens a URL from now on lists it; return False if it was not listed. Those who have a manifest open keep it.

        On a file system that nodes may share the files stay for ``remove_unused``: what is unlinked is lost to other nodes.
        """
        directory = self.directory_of(url)
        if not (directory / CURRENT).exists():
            return False
        with _locked(directory):
            if is_on_own_disk(directory):
                shutil.rmtree(directory, ignore_errors=True)
            else:
                (directory / CURRENT).unlink(missing_ok=True)
        return True

    def remove_unused(self) -> None:
        """Remove what ``forget`` has left, and listings that were replaced, when no server of any node has them in use."""
        with contextlib.suppress(OSError), os.scandir(self._root) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    # A loader may be without a server for a moment, and name its listing to the one that starts now.
                    remove_replaced(Path(entry.path), at_least_seconds=SHARED_SECONDS)


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
        while not _try_lock(descriptor) and time.monotonic() < deadline:
            select.select([], [], [], _LOOK_AGAIN_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Return whether there is nothing to wait for: the lock is held, or there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
