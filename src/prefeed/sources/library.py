"""All manifests of one home, one directory a URL."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import StoreFormatError
from prefeed.machine import is_on_own_disk
from prefeed.sources.manifest import CURRENT, ENCODING, Manifest
from prefeed.sources.manifest_writer import SHARED_SECONDS, build_manifest, remove_replaced
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import ListingProgress

_DIRECTORY: Final = "manifests"
_PATIENCE_SECONDS: Final = 900.0
"""So long a listing of ten million objects may take; who waits longer lists by himself."""

_LOOK_AGAIN_SECONDS: Final = 0.02

SourceFactory = Callable[[str], Source]
"""Returns the source of a URL; called only when a listing is needed."""


class ManifestLibrary:
    """Finds, builds, renews and forgets manifests.

    **Ownership.** The only writer below ``<home>/manifests``. **Threads and processes.** Any number at once:
    who needs a listing that another is making waits for it and uses it.
    """

    def __init__(self, home: Path) -> None:
        """Keep manifests below ``home``, which need not exist yet."""
        self._root = home / _DIRECTORY

    def directory_of(self, url: str) -> Path:
        """Return the directory of a URL's manifests."""
        return self._root / xxh3_64_hexdigest(canonical_url(url).encode(*ENCODING))

    def open(
        self,
        url: str,
        config: Config | None = None,
        *,
        refresh: bool = False,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
    ) -> Manifest:
        """Return the manifest of a URL, listing the origin if there is none, if it is damaged, or on ``refresh``.

        Objects that did not change keep their entry keys; changed ones have new keys.

        Args:
            url: Root to list; credentials in it are used and not kept.
            config: Settings of the source.
            refresh: List again although there is a manifest.
            source_factory: Given in place of ``config``: makes the source itself.
            progress: Called while the listing goes on.

        Raises:
            SourceError: The listing failed; a manifest that was there before is still there.
        """
        directory = self.directory_of(url)
        found = _try_open(directory)
        if found is not None and not refresh:
            return found
        before = _stamp(directory)
        with _locked(directory):
            if _stamp(directory) != before:  # Another one listed it while this one waited.
                renewed = _try_open(directory)
                if renewed is not None:
                    return renewed
            if source_factory is None and config is None:
                raise ValueError("to list an origin, give either its settings or a source_factory")
            source = source_factory(url) if source_factory else open_source(url, config or Config())
            try:
                return build_manifest(source, directory, progress=progress)
            finally:
                source.close()

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


def _stamp(directory: Path) -> tuple[int, int] | None:
    """Return what changes whenever a manifest comes into force in a directory."""
    try:
        status = (directory / CURRENT).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino


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
