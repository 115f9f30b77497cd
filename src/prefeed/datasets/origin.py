"""A root and its manifest, read through the node's cache where there is one: what every dataset here stands on."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from prefeed.client.active import active_reader
from prefeed.client.dataset import NodeDataset, open_node_dataset
from prefeed.client.direct import read_origin
from prefeed.client.node import NodeClient
from prefeed.client.readers import Readers
from prefeed.config import Config
from prefeed.errors import AccessDeniedError, ConfigError, PrefeedError, SourceError
from prefeed.sampleset.names import is_named, resolve
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, is_of_store, listing_mark, open_source, pack_url
from prefeed.types import Buffer, ListingProgress

readers = Readers()


class Origin:
    """A root and its manifest, read through the node's cache where there is one.

    Attributes:
        url: Canonical URL of the root; of a sample set, where its data is.
        config: Settings of the node that caches it.
        node_config: The same when the root was named by a sample set, whose node every loader is to use; else None.
        manifest: Its listing.
    """

    def __init__(self, url_or_path: str | os.PathLike[str], config: Config, *, is_pack: bool = False) -> None:
        """List the root, or take the listing that the node has; of a pack ``pack+`` may be left out.

        Raises:
            SourceError: The origin cannot be listed.
            SampleSetNotFoundError: There is no such sample set.
        """
        is_set = is_named(url_or_path)
        if is_set:
            url_or_path, config = resolve(os.fspath(url_or_path), config)
        if is_pack:
            url_or_path = pack_url(url_or_path)
        self.node_config = config if is_set else None
        self.url = canonical_url(url_or_path)
        self._given = (
            self.url if self.url.startswith("/") else os.fspath(url_or_path)
        )  # may hold credentials: for sources, never for messages
        self.config = config
        self._local = _PerProcess()
        self._dataset: NodeDataset | None = None
        if config.enabled:
            try:
                with NodeClient.connect(config) as node, _listing(self.url, config) as listing:
                    self._dataset = open_node_dataset(node, os.fspath(url_or_path), config, listing=listing)
            except (SourceError, ConfigError) as err:
                if not isinstance(err, AccessDeniedError) or is_of_store(self.url):
                    raise  # a store was asked with this process's credentials; of files it has rights of its own
                print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)  # noqa: T201
            except (PrefeedError, OSError) as err:
                print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)  # noqa: T201
        listed = self._list_here(url_or_path) if self._dataset is None else self._dataset.manifest
        assert isinstance(listed, Manifest)
        self.manifest = listed

    def read(self, object_id: int) -> bytes:
        """Return the object's bytes: from the loader's reader, the process's own, or the origin."""
        reader = active_reader(self.manifest.directory)
        data: Buffer
        if reader is not None:
            data = reader.read(object_id)
        elif self._dataset is not None:
            data = readers.read(self._dataset, object_id)
        else:
            data = read_origin(self._local.source(self._given, self.config), self.manifest.path(object_id), self.config)
        return data if isinstance(data, bytes) else bytes(data)

    def on_node(self, node: NodeClient, config: Config) -> NodeDataset:
        """Return the dataset as the node knows it now."""
        return open_node_dataset(node, self._given, config)

    def _list_here(self, url_or_path: str | os.PathLike[str]) -> Manifest:
        try:
            return self._list_below(self.config.home, url_or_path)
        except OSError as err:
            if isinstance(err, PrefeedError):
                raise
            return self._list_below(_temporary_home(), url_or_path)  # the home cannot be written

    def _list_below(self, home: Path, url_or_path: str | os.PathLike[str]) -> Manifest:
        source = open_source(url_or_path, self.config)
        with _listing(self.url, self.config) as listing:
            return ManifestLibrary(home).open(
                os.fspath(url_or_path), source_factory=lambda _: source, progress=listing, mark=listing_mark(source)
            )


@functools.cache
def _temporary_home() -> Path:
    """Return a directory for manifests that lasts as long as this process and those that it starts."""
    directory = tempfile.mkdtemp(prefix="prefeed-manifests-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


class _PerProcess:
    """The source of this process; a forked child and an unpickled copy open their own."""

    def __init__(self) -> None:
        self._pid = 0
        self._source: Source | None = None
        self._lock = threading.Lock()

    def source(self, url: str, config: Config) -> Source:
        with self._lock:
            if self._source is None or self._pid != os.getpid():
                self._pid, self._source = os.getpid(), open_source(url, config)
            return self._source

    def __reduce__(self) -> tuple[Any, ...]:
        return (_PerProcess, ())


class _listing:  # noqa: N801 - used as a function
    """Shows on a terminal how far a listing has come; silent elsewhere."""

    def __init__(self, url: str, config: Config) -> None:
        console = Console(stderr=True)
        shown = config.progress and console.is_terminal
        columns = (TextColumn("listing {task.description}: {task.completed:,.0f} objects"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True) if shown else None
        self._url = url

    def __enter__(self) -> ListingProgress:
        if self._progress is None:
            return lambda objects, size: None
        progress = self._progress
        progress.start()
        task = progress.add_task(self._url, total=None)
        return lambda objects, size: progress.update(task, completed=objects)

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
