"""Base of the datasets: a root and its manifest, read through the node's cache or, without a server, directly.

``Origin`` lists and reads the root, and ``OriginDataset`` is the base class of the datasets.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import io
import logging
import multiprocessing
import operator
import os
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, SupportsIndex

from prefeed.client.dataset import NodeDataset, open_dataset_by_names, open_manifest_dataset, settle_dataset
from prefeed.client.node import NodeClient, access_now, open_as_made
from prefeed.client.readers import active_reader, process_readers
from prefeed.config import Config, parse_setting
from prefeed.core.requests import Again
from prefeed.errors import AccessDeniedError, ConfigError, CredentialsError, PrefeedError, SourceError
from prefeed.map_style import MapStyle
from prefeed.sampleset.names import is_named, resolve
from prefeed.sources.answers import read_origin
from prefeed.sources.blocks import object_of
from prefeed.sources.library import Listed, ManifestLibrary, described_age
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.sources.urls import (
    canonical_url,
    for_pickle,
    is_of_store,
    listing_mark,
    open_source,
    pack_url,
    veiled,
)
from prefeed.system.removing import remove_tree
from prefeed.types import Buffer, ListingProgress

_log = logging.getLogger("prefeed")


def sample_index(index: SupportsIndex, length: int) -> int:
    """Return the index of a sample as a number from 0 to ``length`` - 1. Negative ones count from the end.

    Raises:
        IndexError: The index is out of range.
        TypeError: The index is not an integer.
    """
    try:
        number = operator.index(index)
    except TypeError as err:
        raise TypeError(
            f"the index of a sample must be an integer from 0 to {length - 1}, not {type(index).__name__} {index!r}; for several "
            "samples, use torch.utils.data.Subset(dataset, range(start, stop))"
        ) from err
    if not -length <= number < length:
        raise IndexError(f"sample {number} of {length}")
    return number % length


class Origin:
    """A root and its manifest, read through the node's cache or directly.

    Attributes:
        url: Canonical URL of the root; for a sample set, that of its data.
        config: Settings of the node that caches the root.
        node_config: Equal to ``config`` for a sample set, whose node all loaders must use; otherwise None.
        manifest: Listing of the root.
        listed_at: Time when the listing began, in seconds since 1970.
        listing_age_seconds: Age of the listing when this instance was created.
    """

    listed_at: float
    manifest: Manifest

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        config: Config,
        *,
        listing_age: float | None = None,
        is_pack: bool = False,
        without_node: bool = False,
    ) -> None:
        """List the root. The node shares one listing among concurrent requests.

        Args:
            url_or_path: The root. For a pack, ``pack+`` is optional.
            config: Settings.
            listing_age: Maximum age of an existing listing, in seconds; None for the setting.
            is_pack: True if the root is a pack.
            without_node: True to list and read in this process until ``use_node``, because the server may not have started yet.

        Raises:
            SourceError: The origin cannot be listed.
            SampleSetNotFoundError: No such sample set exists.
        """
        is_set = is_named(url_or_path)
        if is_set:
            url_or_path, config = resolve(os.fspath(url_or_path), config)
        if is_pack:
            url_or_path = pack_url(url_or_path)
        self.node_config: Config | None = config if is_set else None
        self.url: str = canonical_url(url_or_path)
        self._root = self.url if self.url.startswith("/") else veiled(os.fspath(url_or_path))
        self.config = config
        self._access = None
        with suppress(CredentialsError):  # Opening the store raises this error again.
            self._access = access_now(self._root, config)
        self._local = _ProcessSource()
        self._dataset: NodeDataset | None = None
        self._retry = Again()
        self._may_use_node = not without_node
        self._is_settled = True
        age = config.listing_age if listing_age is None else parse_setting("listing_age", listing_age)
        began = time.monotonic()
        if config.enabled and not without_node:
            try:
                with NodeClient.connect(config) as node, _show_listing(self.url) as listing:
                    opened = open_dataset_by_names(
                        node, os.fspath(url_or_path), config, listing_age=age, listing=listing,
                        made_with=self._access,
                    )  # fmt: skip
                    self._require_same_rights(opened.dataset)
                    self._dataset, self.listed_at = opened.dataset, opened.listed_at
                    self._is_settled = opened.is_settled
            except (SourceError, ConfigError) as err:
                if not isinstance(err, AccessDeniedError) or is_of_store(self.url):
                    raise  # The server used this process's credentials. Only for files can its permissions differ.
                print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)  # noqa: T201
            except (PrefeedError, OSError) as err:
                print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)  # noqa: T201
        if self._dataset is None:
            if not without_node:
                self._retry.failed(began=began, now=time.monotonic())
            listed = self._list_locally(url_or_path, age)
            self.manifest, self.listed_at = listed.manifest, listed.began_at
        else:
            assert not self._dataset.manifest.grows
            self.manifest = self._dataset.manifest
        self.manifest.left_out.warn(self.url)
        self.listing_age_seconds: float = max(0.0, time.time() - self.listed_at)
        if age:
            _log.info("prefeed: %s was listed %s ago", self.url, described_age(self.listing_age_seconds))

    def _require_same_rights(self, dataset: NodeDataset) -> None:
        """Raise AccessDeniedError if the server's listing lacks files that this process can read."""
        assert not dataset.manifest.grows
        for path in dataset.manifest.left_out.denied if self.url.startswith("/") else ():
            name = os.path.join(os.fsencode(self.url), path)
            if os.access(name, os.R_OK | (os.X_OK if os.path.isdir(name) else 0), effective_ids=True):
                shown = os.fsdecode(name)
                raise AccessDeniedError(
                    f"{shown!r} may not be read by the node server, and by this process", path=shown
                )

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_root": for_pickle(self._root)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._root = veiled(self._root)

    def read(self, object_id: int) -> bytes:
        """Return an object's bytes from the loader's reader, the process's own reader, or the origin."""
        if not self._is_settled:
            self.settle()
        reader = active_reader(self.manifest.directory)
        data: Buffer
        if reader is not None:
            data = reader.read(object_id)
        elif self._dataset is not None or (self._may_use_node and self._try_node()):
            assert self._dataset is not None
            data = process_readers.read(self._dataset, object_id)
        else:
            source = self._local.source(lambda: open_as_made(self._root, self.config, self._access))
            listed = self.manifest.listed(object_id)
            data = read_origin(source, self.manifest.path(object_id), self.config, listed=listed)
        return data if isinstance(data, bytes) else bytes(data)

    def use_node(self) -> None:
        """Allow reads through the node's cache."""
        self._may_use_node = True

    def _try_node(self) -> bool:
        """Connect to the node again after a failure, if a retry is due; return True on success.

        Workers of a loader do not start a server, because many would do so at once. The loader starts one before its next epoch.
        """
        began = time.monotonic()
        if not self.config.enabled or not self._retry.is_due(began):
            return False
        is_worker = multiprocessing.parent_process() is not None
        try:
            with NodeClient.connect(self.config, autostart=False if is_worker else None) as node:
                self._dataset = open_manifest_dataset(node, self._root, self.manifest, self.config, self._access)
        except (PrefeedError, OSError):
            self._retry.failed(began=began, now=time.monotonic())
            return False
        self._retry.succeeded()
        return True

    def settle(self) -> Manifest:
        """Return the listing with sizes and versions, which may be unknown at first for local files.

        **Blocking**: in the first call, until the server or this process has statted all files.
        """
        if self._is_settled:
            return self.manifest
        assert self._dataset is not None
        try:
            with NodeClient.connect(self.config) as node:
                self._dataset = settle_dataset(node, self._root, self.manifest, self.config)
            assert not self._dataset.manifest.grows
            self.manifest = self._dataset.manifest
        except (PrefeedError, OSError) as err:
            print(f"prefeed: reading {self.url} without the cache: {err}", file=sys.stderr)  # noqa: T201
            mark = listing_mark(open_source(self._root, self.config))
            library = ManifestLibrary(self.config.home)
            self.manifest = library.settle(self.manifest, mark=mark, began_at=self.listed_at).manifest
            self._dataset = None
        self._is_settled = True
        return self.manifest

    def location(self, object_id: int) -> str:
        """Return the full path or URL of an object. In a pack, this is the pack's URL and the path in the pack."""
        return f"{self.url.rstrip('/')}/{object_of(self.manifest.path(object_id))}"

    def on_node(self, node: NodeClient, config: Config) -> NodeDataset:
        """Open this listing on the node, without listing the root again."""
        return open_manifest_dataset(node, self._root, self.settle(), config, self._access)

    def describe(self, samples: str) -> str:
        """Return the root, the samples and the age of the listing, for ``repr``."""
        return f"{self.url}: {samples}, listed {described_age(time.time() - self.listed_at)} ago"

    def _list_locally(self, url_or_path: str | os.PathLike[str], age: float) -> Listed:
        try:
            return self._list_into(self.config.home, url_or_path, age)
        except OSError as err:
            if isinstance(err, PrefeedError):
                raise
            return self._list_into(_temporary_home(), url_or_path, age)  # The home is not writable.

    def _list_into(self, home: Path, url_or_path: str | os.PathLike[str], age: float) -> Listed:
        source = open_as_made(os.fspath(url_or_path), self.config, self._access)
        with _show_listing(self.url) as listing:
            return ManifestLibrary(home).open_listed(
                os.fspath(url_or_path),
                listing_age=age,
                source_factory=lambda _: source,
                progress=listing,
                mark=listing_mark(source),
                retry_deadline=self.config.limits.retry_seconds,
            )


class ObjectFile(io.BytesIO):
    """Binary file with the bytes of one object. Decoders show its ``name`` (full path or URL) in their messages."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __repr__(self) -> str:
        return f"<prefeed object {self.name!r}>"


def name_object(err: Exception, name: str) -> None:
    """Add the name of the object to an error from decoding as a note, which leaves type and arguments unchanged."""
    note = f"raised while prefeed's dataset decoded {name}"
    if note not in getattr(err, "__notes__", ()):  # Some libraries raise one instance repeatedly.
        err.add_note(note)


class OriginDataset(MapStyle[Any], ABC):
    """Base class of datasets of one origin, with the methods that loaders and stage caches call."""

    _origin: Origin

    @property
    def listed_at(self) -> float:
        """Time when the dataset's listing began, in seconds since 1970."""
        return self._origin.listed_at

    @property
    def listing_age_seconds(self) -> float:
        """Age of the listing when the dataset was created, in seconds."""
        return self._origin.listing_age_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin.describe(f'{len(self)} samples')}>"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def prefeed_stage(self) -> dict[str, Any]:
        """Return the inputs of a sample's computation by name, for stage caches."""

    def prefeed_settings(self) -> Config | None:
        """Return the settings of the node that all loaders of this dataset use; None for those in force."""
        return self._origin.node_config

    def _use_node(self) -> None:
        """Allow reads through the node's cache."""
        self._origin.use_node()

    def prefeed_state(self) -> dict[str, Any]:
        """Return the identity of this dataset: ``prefeed_stage`` and its listing."""
        return {**self.prefeed_stage(), "listing": self._origin.settle().directory.name}


@functools.cache
def _temporary_home() -> Path:
    """Create a directory for manifests that is removed when this process exits."""
    directory = tempfile.mkdtemp(prefix="prefeed-manifests-")
    atexit.register(remove_tree, directory, ignore_errors=True)
    return Path(directory)


class _ProcessSource:
    """Source that each process opens once. A forked child and an unpickled copy open their own."""

    def __init__(self) -> None:
        self._pid = 0
        self._source: Source | None = None
        self._lock = threading.Lock()

    def source(self, open_it: Callable[[], Source]) -> Source:
        with self._lock:
            if self._source is None or self._pid != os.getpid():
                self._pid, self._source = os.getpid(), open_it()
            return self._source

    def __reduce__(self) -> tuple[Any, ...]:
        return (_ProcessSource, ())


def _show_listing(url: str) -> AbstractContextManager[ListingProgress]:
    """Show the progress of a listing if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(_ignore_progress)
    shown = importlib.import_module("prefeed.datasets.progress")  # Importing rich takes 25 ms.
    progress: AbstractContextManager[ListingProgress] = shown.ListingOnTerminal(url)
    return progress


def _ignore_progress(objects: int, size: int) -> None:
    """Ignore the progress of a listing."""
