"""All manifests of one home, one directory a URL."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.config import Config
from prefeed.errors import ManifestDamagedError, SourceError, StoreFormatError, ThrottledError
from prefeed.sources.answers import patiently
from prefeed.sources.known_directories import directories_if_unchanged, files_now, is_trusted
from prefeed.sources.listing import ENCODING
from prefeed.sources.manifest import COLUMNS, CURRENT, Manifest, current_generation
from prefeed.sources.manifest_writer import (
    SHARED_SECONDS,
    Columns,
    adopt_generation,
    bring_into_force,
    build_manifest,
    is_in_use,
    note_time,
    remove_replaced,
    with_files_of_now,
    write_names,
)
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.sources.views import NAMESPACE_DIGITS
from prefeed.system.files import make_private
from prefeed.system.locks import file_lock
from prefeed.system.machine import is_on_own_disk
from prefeed.system.removing import remove_tree
from prefeed.types import ListingProgress, ObjectInfo

_log = logging.getLogger("prefeed")

_DIRECTORY: Final = "manifests"
_OF_URL: Final = re.compile(r"[0-9a-f]{16}(-[0-9a-f]{8,24})?")
"""Nothing else there is ours: a home may be a directory in which its user has things of his own."""

_UNUSED_SECONDS: Final = 30 * 24 * 3600
_PATIENCE_SECONDS: Final = 900.0
"""So long a listing of ten million objects may take; who waits longer lists by himself."""

_LOOK_AGAIN_SECONDS: Final = 0.02

_LOOK_THROUGH_SECONDS: Final = 60.0
"""A process that opens many objects of a root makes a manifest of each, and does not look through all of them each time."""

_MOST_LOOKED_THROUGH: Final = 4096
_looked_through: Final[dict[Path, float]] = {}
"""When this process last looked through a directory for manifests to remove, on a clock that only goes forward."""

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
        """True when the listing began at most that many seconds before ``now``; one from the future is of unknown age."""
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
        """Return the manifest in force if its listing began at most that many seconds ago; None: there is no such one."""
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
        retry_deadline: float | None = None,
    ) -> Listed:
        """Return the manifest of a URL, of a listing that began after this call, or at most ``listing_age`` before it.

        Objects that did not change keep their entry keys; changed ones have new keys. A listing that finds what the
        one before found is the same manifest, with another time.

        Args:
            url: Root to list; credentials in it are used and not kept.
            config: Settings of the source.
            listing_age: Seconds; ``inf``: any listing will do.
            source_factory: Given in place of ``config``: makes the source itself.
            progress: Called during the listing.
            mark: What tells the origin from others that have this URL: each has listings of its own.
            retry_deadline: Seconds for which an origin is asked again that asks for fewer requests; None: of the settings,
                and without them it is not.

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
        with self._locked(directory):
            renewed = _try_listed(directory)
            if renewed is not None and asked_at <= renewed.began_at <= self._clock():
                return renewed  # Another one listed it while this one waited.
            settled = None if renewed is None else self._settled(renewed.manifest)
            if settled is not None:
                return settled
            source = source_factory(url) if source_factory else open_source(url, config or Config())
            if retry_deadline is None:
                retry_deadline = config.limits.retry_seconds if config is not None else 0.0

            def list_now() -> Listed:
                began_at = self._clock()
                return Listed(build_manifest(source, directory, progress=progress, began_at=began_at), began_at)

            try:
                return patiently(list_now, deadline_seconds=retry_deadline, errors=ThrottledError)
            except SourceError as err:
                advice = _way_out(self._last(url, mark), self._clock())
                if not advice:
                    raise
                raise type(err)(err.message + advice, **err.details) from err
            finally:
                source.close()

    def _last(self, url: str, mark: str) -> Listed | None:
        """Return what was listed last; of a directory that is gone, what this mount namespace had there."""
        directory = self.directory_of(url, mark)
        if len(mark) != NAMESPACE_DIGITS:
            return _try_listed(directory)
        listed = [found for path in self._root.glob(f"{directory.name}*") if (found := _try_listed(path)) is not None]
        return max(listed, key=lambda one: one.began_at, default=None)

    def find_by_names(
        self, source: Source, *, progress: ListingProgress | None = None, mark: str = ""
    ) -> Listed | None:
        """Return a manifest whose names are those of now, and whose sizes and versions are still to be asked for.

        It is the one in force if its directories say that the names are the same now; see ``known_directories``. Else, of a
        local directory, only names are listed now. None: all of it has to be listed.

        Raises:
            SourceError: The listing failed.
        """
        began_at = self._clock()
        directory = self.directory_of(source.url, mark)
        found = _try_listed(directory)
        if found is not None and directories_if_unchanged(found.manifest) is not None:
            return Listed(found.manifest, began_at, is_settled=False)
        if not (isinstance(source, PosixSource) and source.is_own_view and is_trusted(source.url)):
            return None
        try:
            self._make_home(directory)
            return Listed(
                write_names(source, directory, progress=progress, began_at=began_at), began_at, is_settled=False
            )
        except SourceError as err:
            advice = _way_out(self._last(source.url, mark), self._clock())
            if not advice:
                raise
            raise type(err)(err.message + advice, **err.details) from err

    def settle(self, manifest: Manifest, *, mark: str = "", began_at: float = 0.0) -> Listed:
        """Return the manifest with the same paths in which each file has the size and time that it has now.

        What is no file any more stays as it was listed. It comes into force if the one in force is no newer, all files are
        there, and it is of the origin of this mark: in another mount namespace the same paths may lead to other files.

        Args:
            manifest: Whose files are asked.
            mark: See ``open``.
            began_at: When its names were listed, or were found to be those of then; 0: that is not known.

        Raises:
            SourceError: A file that is known only by its name cannot be asked.
        """
        with self._locked(manifest.directory.parent):
            is_own = manifest.directory.parent == self.directory_of(manifest.url, mark)
            return self._with_files_of_now(manifest, began_at, may_be_in_force=is_own and began_at > 0)[0]

    def _settled(self, manifest: Manifest) -> Listed | None:
        """Return the manifest as a listing now would find it, if the names are the same; None: list it."""
        began_at = self._clock()
        if directories_if_unchanged(manifest) is None:
            return None
        settled, is_whole = self._with_files_of_now(manifest, began_at)
        return settled if is_whole else None

    def _with_files_of_now(
        self, manifest: Manifest, began_at: float, *, may_be_in_force: bool = True
    ) -> tuple[Listed, bool]:
        """Return the manifest with what its files are now, and whether all of them are there; then it is in force, if it may."""
        table = files_now(manifest)
        renewed = with_files_of_now(manifest, table)
        is_whole = bool((table.sizes >= 0).all())
        directory = manifest.directory.parent
        is_newer = not began_at < _time_of(directory) <= self._clock()  # a time to come is none
        if may_be_in_force and is_whole and is_newer:
            if _is_in_force(renewed):
                note_time(directory / CURRENT, began_at)
            else:
                bring_into_force(renewed, began_at=began_at)
        return Listed(renewed, began_at), is_whole

    def write_part(self, url: str, infos: Sequence[ObjectInfo], *, origin_mark: str, mark: str) -> Manifest:
        """Return a manifest of some objects of a root, which the caller has asked for; the one in force stays.

        Args:
            url: Canonical URL of the root.
            infos: The objects, in order of their paths.
            origin_mark: The source's own mark, a part of entry keys.
            mark: See ``open``.

        Raises:
            OSError: It cannot be written.
        """
        directory = self.directory_of(url, mark)
        self._make_home(directory)
        columns = Columns(url, mark=origin_mark)
        columns.extend(infos)
        manifest = columns.write_part(directory)
        now = time.monotonic()
        if now >= _looked_through.get(directory, -math.inf) + _LOOK_THROUGH_SECONDS:
            if len(_looked_through) >= _MOST_LOOKED_THROUGH:
                _looked_through.clear()
            _looked_through[directory] = now
            remove_replaced(directory, keep={manifest.uid})
        return manifest

    def adopt(self, manifest: Manifest) -> Path:
        """Return the directory of this generation in this library.

        One of another library, or one that was forgotten meanwhile, is written there, and not brought into force.

        Raises:
            OSError: It cannot be written.
        """
        of_url = manifest.directory.parent.name
        directory = self._root / of_url if self.is_of(Path(of_url), manifest.url) else self.directory_of(manifest.url)
        if manifest.directory.parent == directory and (manifest.directory / COLUMNS).exists():
            return manifest.directory
        self._make_home(directory)
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
            with self._locked(directory):
                if is_on_own_disk(directory):
                    remove_tree(directory, ignore_errors=True)
                else:
                    (directory / CURRENT).unlink(missing_ok=True)
        return bool(found)

    @contextmanager
    def _locked(self, directory: Path) -> Iterator[None]:
        """Hold the directory's lock, so that an origin is listed once and not by all who want it; the kernel frees it.

        Nothing else depends on it: generations have unique names until they are whole. So where the file system has no locks,
        or a node that is gone keeps one, the origin is still listed.
        """
        self._make_home(directory)
        lock = directory.with_name(directory.name + ".lock")
        with file_lock(lock, within_seconds=_PATIENCE_SECONDS):
            yield

    def _make_home(self, directory: Path) -> None:
        """Create the directory of a URL's listings, with access for this user only."""
        make_private(directory)

    def _directories_of(self, url: str) -> tuple[Path, ...]:
        unmarked = self.directory_of(url)
        return tuple(path for path in (unmarked, *self._root.glob(f"{unmarked.name}-*")) if path.is_dir())

    def remove_unused(self) -> None:
        """Remove what ``forget`` has left, and listings that were replaced, when no server of any node has them in use.

        And those of one of several origins of a URL that no process had in use for 30 days: each start of the machine and each
        container makes some, of what it has at a path.
        """
        with contextlib.suppress(OSError), os.scandir(self._root) as entries:
            for entry in list(entries):
                if _OF_URL.fullmatch(entry.name) is None or not entry.is_dir(follow_symlinks=False):
                    continue
                if "-" in entry.name and _is_unused(Path(entry.path)):
                    remove_tree(entry.path, ignore_errors=True)
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
    """Return the manifest in force; None if there is none that can be read. One that is damaged is said, once."""
    try:
        return Manifest.open(directory)
    except ManifestDamagedError as err:
        _say_damaged(directory, err)
    except (StoreFormatError, OSError):
        pass
    return None


_said: set[tuple[str, int]] = set()


def _say_damaged(directory: Path, err: ManifestDamagedError) -> None:
    try:
        generation = current_generation(directory)
        which = str(generation), 0 if generation is None else os.stat(generation / COLUMNS).st_ino
    except (StoreFormatError, OSError):
        which = str(directory), 0
    if which not in _said:
        _said.add(which)
        _log.warning("prefeed: %s; the origin is listed again", str(err))


def _is_in_force(manifest: Manifest) -> bool:
    with contextlib.suppress(StoreFormatError):
        return current_generation(manifest.directory.parent) == manifest.directory
    return False


def _time_of(directory: Path) -> float:
    """Return when the listing in force began, in seconds since 1970; 0 without one."""
    try:
        return (directory / CURRENT).stat().st_mtime_ns / 1e9
    except OSError:
        return 0.0


def _try_listed(directory: Path) -> Listed | None:
    began_at = _time_of(directory)
    manifest = _try_open(directory) if began_at else None
    return None if manifest is None else Listed(manifest, began_at)


def _way_out(old: Listed | None, now: float) -> str:
    """Return how the old listing can still be read, for the end of an error; empty if there is none."""
    if old is None:
        return ""
    return (
        f"; its listing of {described_age(now - old.began_at)} ago is still there: to use it, set "
        "listing_age=inf (PREFEED_LISTING_AGE=inf)"
    )


def described_age(seconds: float) -> str:
    """Return an age for people: ``12 s``, ``5 min``, ``3 h``, ``2 days``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(0.0, seconds) / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"
