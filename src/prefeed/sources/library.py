"""All manifests of one home, one directory a URL."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import StoreFormatError
from prefeed.sources.manifest import CURRENT, ENCODING, Manifest
from prefeed.sources.manifest_writer import build_manifest
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import ListingProgress

MANIFESTS: Final = "manifests"

SourceFactory = Callable[[str], Source]
"""Returns the source of a URL; called only when a listing is needed."""


class ManifestLibrary:
    """Finds, builds, renews and forgets manifests.

    **Ownership.** The only writer below ``<home>/manifests``. **Threads and processes.** Any number at once:
    who needs a listing that another is making waits for it and uses it.
    """

    def __init__(self, home: Path) -> None:
        """Keep manifests below ``home``, which need not exist yet."""
        self._root = home / MANIFESTS

    def directory_of(self, url: str, mark: str = "") -> Path:
        """Return the directory of the manifests of a URL, and of the origin of this ``mark`` behind it."""
        name = xxh3_64_hexdigest(canonical_url(url).encode(*ENCODING))
        return self._root / (f"{name}-{mark}" if mark else name)

    def open(
        self,
        url: str,
        config: Config | None = None,
        *,
        refresh: bool = False,
        source_factory: SourceFactory | None = None,
        progress: ListingProgress | None = None,
        mark: str = "",
    ) -> Manifest:
        """Return the manifest of a URL, listing the origin if there is none, if it is damaged, or on ``refresh``.

        Objects that did not change keep their entry keys; changed ones have new keys.

        Args:
            url: Root to list; credentials in it are used and not kept.
            config: Settings of the source.
            refresh: List again although there is a manifest.
            source_factory: Given in place of ``config``: makes the source itself.
            progress: Called while the listing goes on.
            mark: What tells the origin from others that have this URL: each has a listing of its own.

        Raises:
            SourceError: The listing failed; a manifest that was there before is still there.
        """
        directory = self.directory_of(url, mark)
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

    def newest(self, url: str) -> Manifest | None:
        """Return the manifest of a URL that came into force last, whichever origin it lists; None without one."""
        found = [(_stamp(directory) or (0, 0), directory) for directory in self._directories_of(url)]
        return _try_open(max(found)[1]) if found else None

    def forget(self, url: str) -> bool:
        """Remove a URL's manifests, whichever origin they list; return False if there were none. Those who have one open keep it."""
        found = self._directories_of(url)
        for directory in found:
            with _locked(directory):
                shutil.rmtree(directory, ignore_errors=True)
        return bool(found)

    def _directories_of(self, url: str) -> tuple[Path, ...]:
        unmarked = self.directory_of(url)
        return tuple(path for path in (unmarked, *self._root.glob(f"{unmarked.name}-*")) if path.is_dir())


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
    """Hold the directory's lock; the kernel frees it when the process dies."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory.with_name(directory.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
