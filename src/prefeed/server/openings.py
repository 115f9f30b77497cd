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
from prefeed.server.datasets import Dataset
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.path_list import open_path_list
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import ListingProgress

_REPORT_SECONDS = 0.1
"""Pause between two reports of one listing."""

_Key = tuple[str, str, bool]


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
        add_dataset: Callable[[Manifest, Source], Dataset],
    ) -> None:
        self._config = config
        self._clock = clock
        self._call_soon = call_soon
        self._add_dataset = add_dataset
        self._library = ManifestLibrary(config.home)
        self._openings: dict[_Key, _Opening] = {}

    def open(self, url: str, waiter: Waiter, *, refresh: bool = False, paths_file: Path | None = None) -> None:
        """Open the dataset of a URL, or of the paths listed in a file, which is removed."""
        key = ("", str(paths_file), False) if paths_file else (canonical_url(url), "", refresh)
        opening = self._openings.get(key)
        if opening is None:
            opening = self._openings[key] = _Opening()
            args = (key, url, refresh, paths_file)
            threading.Thread(target=self._run, args=args, name="prefeed-listing", daemon=True).start()
        opening.waiters.append(waiter)

    def reopen(self, directory: Path, url: str) -> Dataset:
        """Return the dataset of a manifest that another server made for a client.

        Raises:
            PrefeedError: It lies elsewhere than this home's manifests do.
            StoreFormatError: It is no manifest.
        """
        if not directory.is_relative_to(self._config.home):
            raise PrefeedError(f"the manifest must lie below {self._config.home}, not in {directory}")
        manifest = Manifest.open(directory)
        return self._add_dataset(manifest, open_source(url or manifest.url, self._config))

    def _run(self, key: _Key, url: str, refresh: bool, paths_file: Path | None) -> None:
        next_report = 0.0

        def progress(objects: int, size: int) -> None:
            nonlocal next_report
            if self._clock() >= next_report:
                next_report = self._clock() + _REPORT_SECONDS
                self._call_soon(lambda: self._tell(key, objects, size))

        try:
            if paths_file:
                manifest = open_path_list(self._config.home, _take_paths(paths_file), progress=progress)
                source = open_source(manifest.url, self._config)
            else:
                manifest = self._library.open(
                    url, refresh=refresh, source_factory=lambda root: open_source(root, self._config), progress=progress
                )
                source = open_source(url, self._config)
        except PrefeedError as err:
            refusal = err
            self._call_soon(lambda: self._failed(key, refusal))
        except Exception as err:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            other = PrefeedError(
                f"cannot make the manifest of {key[0]} below {self._config.home}: {type(err).__name__}: {err}"
            )
            self._call_soon(lambda: self._failed(key, other))
        else:
            self._call_soon(lambda: self._opened(key, manifest, source))

    def _tell(self, key: _Key, objects: int, size: int) -> None:
        for waiter in self._openings[key].waiters:
            waiter.listing(objects, size)

    def _opened(self, key: _Key, manifest: Manifest, source: Source) -> None:
        dataset = self._add_dataset(manifest, source)
        for waiter in self._openings.pop(key).waiters:
            waiter.opened(dataset)

    def _failed(self, key: _Key, error: PrefeedError) -> None:
        for waiter in self._openings.pop(key).waiters:
            waiter.failed(error)


def _take_paths(paths_file: Path) -> list[str]:
    """Return the NUL-separated paths of a file, and remove it."""
    paths = [os.fsdecode(name) for name in paths_file.read_bytes().split(b"\0") if name]
    with contextlib.suppress(FileNotFoundError):
        paths_file.unlink()
    return paths
