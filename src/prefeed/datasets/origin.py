"""A root and its manifest, read through the node's cache where there is one: what every dataset here stands on."""

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
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
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
    """Return which sample is meant, 0 to ``length`` - 1; negative numbers count from the end.

    Raises:
        IndexError: There is no such sample.
        TypeError: It is no whole number.
    """
    try:
        number = operator.index(index)
    except TypeError as err:
        raise TypeError(
            f"a sample is asked for by its number, 0 to {length - 1}, not by {type(index).__name__} {index!r}; for several "
            "use torch.utils.data.Subset(dataset, range(start, stop))"
        ) from err
    if not -length <= number < length:
        raise IndexError(f"sample {number} of {length}")
    return number % length


class Origin:
    """A root and its manifest, read through the node's cache where there is one.

    Attributes:
        url: Canonical URL of the root; of a sample set, where its data is.
        config: Settings of the node that caches it.
        node_config: The same when the root was named by a sample set, whose node every loader is to use; else None.
        manifest: Its listing.
        listed_at: When that began, in seconds since 1970.
        listing_age_seconds: How old it was when this was made.
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
        """List the root, which the node does once for all who ask at the same time.

        Args:
            url_or_path: The root; of a pack ``pack+`` may be left out.
            config: Settings.
            listing_age: Seconds; a listing that began no longer ago will do. None: as the settings say.
            is_pack: The root is a pack.
            without_node: List it in this process, and read it there until ``use_node``: the server may not have started yet.

        Raises:
            SourceError: The origin cannot be listed.
            SampleSetNotFoundError: There is no such sample set.
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
        with suppress(CredentialsError):  # said by who asks the store
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
                    raise  # a store was asked with this process's credentials; of files it has rights of its own
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
        """Raise ``AccessDeniedError`` if the server left out files that this process may read: it would miss samples."""
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
        """Return the object's bytes: from the loader's reader, the process's own, or the origin."""
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
        """Read through the node's cache from now on, where there is one."""
        self._may_use_node = True

    def borrow(self, object_ids: Sequence[int], until: ExitStack) -> list[memoryview] | None:
        """Return the objects' bytes where the loader's reader has them; as ``ObjectReader.borrow``."""
        if not self._is_settled:
            self.settle()
        reader = active_reader(self.manifest.directory)
        return None if reader is None else reader.borrow(object_ids, until)

    def _try_node(self) -> bool:
        """Return whether the node that could not be had before can be had now; then it is used from now on.

        Of a loader's workers none starts a server: many would at once, and the loader does so when its next epoch begins.
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
        """Return the listing, with sizes and versions that the files had after this was made: its paths may be known before.

        **Blocking**: until the server, or without one this process, has asked all files; once.
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
        """Return the full path or URL of an object; of one in a pack, the URL of the pack and its path there."""
        return f"{self.url.rstrip('/')}/{object_of(self.manifest.path(object_id))}"

    def on_node(self, node: NodeClient, config: Config) -> NodeDataset:
        """Return the dataset of this listing as the node knows it now; nothing is listed."""
        return open_manifest_dataset(node, self._root, self.settle(), config, self._access)

    def describe(self, samples: str) -> str:
        """Return root, number of samples and age of the listing, for ``repr``."""
        return f"{self.url}: {samples}, listed {described_age(time.time() - self.listed_at)} ago"

    def _list_locally(self, url_or_path: str | os.PathLike[str], age: float) -> Listed:
        try:
            return self._list_into(self.config.home, url_or_path, age)
        except OSError as err:
            if isinstance(err, PrefeedError):
                raise
            return self._list_into(_temporary_home(), url_or_path, age)  # the home cannot be written

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
    """Bytes of one object as a binary file; messages of decoders show its name.

    Attributes:
        name: Full path or URL of the object.
    """

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name

    def __repr__(self) -> str:
        return f"<prefeed object {self.name!r}>"


def name_object(err: Exception, name: str) -> None:
    """Add the name of the object to an error that decoding has raised; type, arguments and attributes stay as they are."""
    note = f"raised while prefeed's dataset decoded {name}"
    if note not in getattr(err, "__notes__", ()):  # some libraries raise one error again and again
        err.add_note(note)


class OriginDataset(MapStyle[Any], ABC):
    """A dataset of the objects of one origin: what its loaders and their caches ask, and what it says of its listing."""

    _origin: Origin

    @property
    def listed_at(self) -> float:
        """When the listing that this was made from began, in seconds since 1970."""
        return self._origin.listed_at

    @property
    def listing_age_seconds(self) -> float:
        """How old that listing was when this was made."""
        return self._origin.listing_age_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._origin.describe(f'{len(self)} samples')}>"

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def prefeed_stage(self) -> Any:
        """Return what samples are made with, for the caches of stages."""

    def prefeed_settings(self) -> Config | None:
        """Return the settings of the node that every loader of this dataset uses; None: those in force."""
        return self._origin.node_config

    def _use_node(self) -> None:
        """Read through the node's cache from now on, where there is one."""
        self._origin.use_node()

    def prefeed_state(self) -> Any:
        """Return what tells this dataset from others: what samples are made with, and which listing."""
        return self.prefeed_stage(), self._origin.settle().directory.name


@functools.cache
def _temporary_home() -> Path:
    """Return a directory for manifests that lasts as long as this process and those that it starts."""
    directory = tempfile.mkdtemp(prefix="prefeed-manifests-")
    atexit.register(remove_tree, directory, ignore_errors=True)
    return Path(directory)


class _ProcessSource:
    """The source of this process; a forked child and an unpickled copy open their own."""

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
    """Inside it, a terminal shows how far the listing of a URL has come; nothing elsewhere."""
    if sys.stderr is None or not sys.stderr.isatty():
        return nullcontext(_ignore_progress)
    shown = importlib.import_module("prefeed.datasets.progress")  # what draws it takes 25 ms of processor time
    progress: AbstractContextManager[ListingProgress] = shown.ListingOnTerminal(url)
    return progress


def _ignore_progress(objects: int, size: int) -> None:
    """Nothing is shown of a listing."""
