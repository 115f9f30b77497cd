"""Manifests on their way: opened, or listed first, in threads of their own."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prefeed.clock import Clock
from prefeed.config import Config
from prefeed.errors import PrefeedError
from prefeed.server.datasets import Dataset, Opened
from prefeed.server.reach import Reach
from prefeed.sources.file_catalogues import directory_of, is_catalogue, open_catalogue
from prefeed.sources.learned import LearnedMapWriter
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, is_of_store, listing_mark, open_source
from prefeed.sources.views import View
from prefeed.types import ListingProgress

_REPORT_SECONDS = 0.1
"""Pause between two reports of one listing."""

_Open = Callable[[ListingProgress], Opened]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Who waits for a dataset: told how far the listing is, then the dataset or the error."""

    opened: Callable[[Dataset], None]
    failed: Callable[[PrefeedError], None]
    listing: ListingProgress


@dataclass(slots=True)
class _Opening:
    waiters: list[Waiter] = field(default_factory=list)


class Openings:
    """Opens datasets for clients; those who ask for the same one meanwhile wait for the same listing.

    **Threads**: the loop's thread calls everything; results come back to it through ``call_soon``.
    """

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None],
        find_dataset: Callable[[Path], Dataset | None],
        add_dataset: Callable[[Opened], Dataset],
    ) -> None:
        self._config = config
        self._clock = clock
        self._call_soon = call_soon
        self._find_dataset = find_dataset
        self._add_dataset = add_dataset
        self._library = ManifestLibrary(config.home)
        self._openings: dict[str, _Opening] = {}

    def source_of(self, url: str, reach: Reach) -> Source:
        """Return what reads a URL as the client that asks would.

        Raises:
            CredentialsError: It did not say who speaks, and the home's own file does not say it either.
        """
        source = open_source(url, self._config, access=reach.access, view=reach.view)
        source.mark  # noqa: B018 - whoever asks for it later does not expect an error
        return source

    def open_url(self, url: str, waiter: Waiter, reach: Reach, *, refresh: bool = False) -> None:
        """Open the dataset of a URL, listed first if it never was by one who sees the same origin behind it."""
        source = self.source_of(url, reach)
        view = None if is_of_store(source.url) else reach.view
        mark = listing_mark(source) if view is None else view.mark
        if view is not None and source.url not in view.listed:
            view.listed.add(source.url)
            refresh = True  # what was listed before may be that of another process, which had the numbers of this one

        def list_objects(progress: ListingProgress) -> Opened:
            manifest = self._library.open(
                url, refresh=refresh, source_factory=lambda _: source, progress=progress, mark=mark
            )
            with contextlib.suppress(OSError):
                os.utime(manifest.directory.parent)  # in use: see ``remove_unused``
            return Opened(manifest=manifest, source=source, view=view)

        self._begin(f"{'refresh' if refresh else 'open'} {canonical_url(url)} {mark}", list_objects, waiter)

    def open_catalogue(self, name: str, paths_file: Path, num_samples: int, waiter: Waiter, reach: Reach) -> None:
        """Open the catalogue of this name, which begins with the paths in a file; that is removed.

        Raises:
            PrefeedError: That is no name of a catalogue.
        """
        try:
            directory = directory_of(self._config.home, name, "" if reach.view is None else reach.view.mark)
        except PrefeedError:
            paths_file.unlink(missing_ok=True)
            raise

        def read_paths(_: ListingProgress) -> Opened:
            return self._open_catalogue(directory, _take_paths(paths_file), num_samples, reach.view)

        if not self._begin(directory.name, read_paths, waiter, directory=directory):
            paths_file.unlink(missing_ok=True)

    def reopen(self, directory: Path, url: str, num_samples: int, waiter: Waiter, reach: Reach) -> None:
        """Open a manifest or catalogue that a client had open on another server.

        Raises:
            PrefeedError: It lies elsewhere than this home's do.
        """
        if not directory.is_relative_to(self._config.home):
            raise PrefeedError(f"the manifest must lie below {self._config.home}, not in {directory}")
        if is_catalogue(self._config.home, directory):
            if reach.view is not None and not directory.name.endswith(reach.view.mark):
                raise PrefeedError(f"{directory.name} is of another mount namespace than this client's")
            self._begin(
                directory.name, lambda _: self._open_catalogue(directory, None, num_samples, reach.view), waiter,
                directory=directory,
            )  # fmt: skip
            return

        def reopen_manifest(_: ListingProgress) -> Opened:
            manifest = Manifest.open(directory)
            source = self.source_of(url or manifest.url, reach)
            return Opened(manifest=manifest, source=source, view=None if is_of_store(source.url) else reach.view)

        self._begin(str(directory), reopen_manifest, waiter)

    def _open_catalogue(self, directory: Path, paths: list[str] | None, num_samples: int, view: View | None) -> Opened:
        catalogue, mean_bytes = open_catalogue(directory, paths)
        learned = LearnedMapWriter.open_or_create(directory, num_samples) if num_samples else None
        source = PosixSource(catalogue.url, max_bytes=self._config.max_object, view=view)
        return Opened(manifest=catalogue, source=source, mean_bytes=mean_bytes, learned=learned, view=view)

    def _begin(self, name: str, open_it: _Open, waiter: Waiter, *, directory: Path | None = None) -> bool:
        """Open it in a thread; False when it is open, or being opened, already."""
        found = None if directory is None else self._find_dataset(directory)
        if found is not None:  # it is open for writing, and must not be opened a second time
            waiter.opened(found)
            return False
        opening = self._openings.get(name)
        if opening is not None:
            opening.waiters.append(waiter)
            return False
        self._openings[name] = _Opening([waiter])
        threading.Thread(target=self._run, args=(name, open_it), name="prefeed-listing", daemon=True).start()
        return True

    def _run(self, name: str, open_it: _Open) -> None:
        next_report = 0.0

        def progress(objects: int, size: int) -> None:
            nonlocal next_report
            if self._clock() >= next_report:
                next_report = self._clock() + _REPORT_SECONDS
                self._call_soon(lambda: self._tell(name, objects, size))

        try:
            opened = open_it(progress)
        except PrefeedError as err:
            refusal = err
            self._call_soon(lambda: self._failed(name, refusal))
        except Exception as err:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            other = PrefeedError(
                f"cannot make the manifest of {name} below {self._config.home}: {type(err).__name__}: {err}"
            )
            self._call_soon(lambda: self._failed(name, other))
        else:
            self._call_soon(lambda: self._opened(name, opened))

    def _tell(self, name: str, objects: int, size: int) -> None:
        for waiter in self._openings[name].waiters:
            waiter.listing(objects, size)

    def _opened(self, name: str, opened: Opened) -> None:
        dataset = self._add_dataset(opened)
        for waiter in self._openings.pop(name).waiters:
            waiter.opened(dataset)

    def _failed(self, name: str, error: PrefeedError) -> None:
        for waiter in self._openings.pop(name).waiters:
            waiter.failed(error)


def _take_paths(paths_file: Path) -> list[str]:
    """Return the NUL-separated paths of a file, and remove it."""
    try:
        return [os.fsdecode(name) for name in paths_file.read_bytes().split(b"\0") if name]
    finally:
        with contextlib.suppress(OSError):
            paths_file.unlink()
