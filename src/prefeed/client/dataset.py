"""A dataset of the node, as its readers see it: a manifest, a number on the server, settings."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from prefeed.client.node import NodeClient, access_now
from prefeed.config import Config
from prefeed.errors import PrefeedError, StoreFormatError
from prefeed.places import lack_of_space
from prefeed.sources.catalogue import Catalogue, name_of_learned, name_of_list
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.urls import for_pickle, veiled
from prefeed.types import ListingProgress
from prefeed.wire.endpoint import ensure_private_dir, put_in_transit
from prefeed.wire.messages import DatasetOpened


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDataset:
    """What a reader needs to know; picklable, and small: the manifest travels as the name of its directory.

    Attributes:
        number: Names the dataset on the server that opened it.
        url: Root as the user gave it, or what stands for it where that has credentials in it (``sources.urls.veiled``).
        manifest: Its listing, or the catalogue of files opened by path.
        runtime_dir: Directory in which the server listens; empty where none does.
        instance: Which server: a number of one means nothing to another.
        config: Settings that were in force when it was opened.
        num_samples: Samples whose files are learned; 0 where they are known.
        made_with: How its store was reached when it was made; None where there is no store.
    """

    number: int
    url: str
    manifest: Manifest | Catalogue
    runtime_dir: str = ""
    instance: str
    config: Config
    num_samples: int = 0
    made_with: StoreAccess | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _unpickled, (values | {"url": for_pickle(self.url)},)


def _unpickled(values: dict[str, Any]) -> NodeDataset:
    return NodeDataset(**values | {"url": veiled(values["url"])})


def reopen_on(node: NodeClient, dataset: NodeDataset) -> NodeDataset:
    """Return the same dataset as this server knows it, when it is not the one that opened it.

    Raises:
        StoreFormatError: Its catalogue was made again: the same id may mean another file.
    """
    if dataset.instance == node.connection.instance:
        return dataset
    directory = str(dataset.manifest.directory)
    opened = node.open_dataset(
        dataset.url, manifest_dir=directory, num_samples=dataset.num_samples, made_with=dataset.made_with
    )
    if dataset.manifest.grows:
        Catalogue.open(Path(opened.manifest_dir), dataset.manifest.uid)
        if opened.uid not in ("", dataset.manifest.uid):
            raise StoreFormatError(f"{opened.manifest_dir} is a different catalogue on the server")
    return replace(
        dataset,
        number=opened.dataset,
        runtime_dir=os.fspath(node.connection.runtime_dir),
        instance=node.connection.instance,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDataset:
    """A dataset, and of when its listing is.

    Attributes:
        dataset: See ``NodeDataset``.
        listed_at: When the listing began, in seconds since 1970.
        is_settled: False when only the paths are of then; ``settle_dataset`` asks for the rest, before anything is read.
    """

    dataset: NodeDataset
    listed_at: float
    is_settled: bool


def open_dataset_by_names(
    node: NodeClient,
    url: str,
    config: Config,
    *,
    listing_age: float = 0.0,
    listing: ListingProgress | None = None,
    made_with: StoreAccess | None = None,
) -> OpenedDataset:
    """Return the dataset of a URL, listed by the server; where the paths are known, perhaps before sizes and versions are.

    Args:
        node: Where it is opened.
        url: Root; it may hold credentials.
        config: Settings.
        listing_age: Seconds; a listing that began no longer ago will do.
        listing: Told how far a listing has come.
        made_with: How its store is reached.

    Raises:
        SourceError: The origin cannot be listed.
        ServerUnavailableError: The server went away.
    """
    opened = node.open_dataset(
        url, listing_age=listing_age, ranks=_local_ranks(), by_names=True, listing=listing, made_with=made_with
    )
    dataset = _node_dataset(node, opened, Manifest.open(Path(opened.manifest_dir)), url, config)
    dataset = replace(dataset, made_with=made_with)
    return OpenedDataset(dataset=dataset, listed_at=opened.listed_at, is_settled=opened.is_settled)


def open_node_dataset(node: NodeClient, url: str, config: Config) -> NodeDataset:
    """Return the dataset of a URL as it is listed now; errors as above."""
    opened = node.open_dataset(url)
    return _node_dataset(node, opened, Manifest.open(Path(opened.manifest_dir)), url, config)


def settle_dataset(node: NodeClient, url: str, manifest: Manifest, config: Config) -> NodeDataset:
    """Return the dataset with the paths of a manifest, and with sizes and versions of now.

    Raises:
        PrefeedError: The manifest is there no more.
        ServerUnavailableError: The server went away.
    """
    opened = node.open_dataset(url, manifest_dir=str(manifest.directory), settle=True)
    return _node_dataset(node, opened, Manifest.open(Path(opened.manifest_dir)), url, config)


_LOCAL_RANKS: Final = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
"""How many ranks of this job are on this node, as torchrun, Open MPI, MPICH and Slurm tell them."""


def _local_ranks() -> int:
    found = next((os.environ[name] for name in _LOCAL_RANKS if os.environ.get(name)), "")
    return int(found) if found.isascii() and found.isdigit() and found != "0" else _started_ranks()


def _started_ranks() -> int:
    """Return how many ranks ``torch.multiprocessing`` has started here, which sets no variables: this one and its siblings."""
    distributed: Any = sys.modules.get("torch.distributed")
    if multiprocessing.parent_process() is None or distributed is None or not distributed.is_available():
        return 1
    siblings = _children(os.getppid()) if distributed.is_initialized() else 0
    return max(1, min(siblings, distributed.get_world_size())) if siblings else 1


def _children(pid: int) -> int:
    """Return how many children a process has, but for the one that ``multiprocessing`` starts to tidy up; 0: unknown."""
    count = 0
    with contextlib.suppress(OSError):
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in file.read_text().split():
                count += b"resource_tracker" not in Path(f"/proc/{child}/cmdline").read_bytes()
    return count


def open_manifest_dataset(
    node: NodeClient, url: str, manifest: Manifest, config: Config, made_with: StoreAccess | None
) -> NodeDataset:
    """Return the dataset of a manifest that was made before; nothing is listed. It may come from another home.

    Args:
        node: Where it is opened.
        url: Root; it may hold credentials.
        manifest: Its listing.
        config: Settings.
        made_with: How its store was reached then.

    Raises:
        PrefeedError: It is there no more, or the home is full.
        ServerUnavailableError: The server went away.
    """
    try:
        directory = ManifestLibrary(config.home).adopt(manifest)
    except OSError as err:
        if why := lack_of_space(err, config.home):
            raise PrefeedError(f"cannot write the listing of {manifest.url}: {why}") from err
        raise
    opened = node.open_dataset(url, manifest_dir=str(directory), made_with=made_with)
    return replace(_node_dataset(node, opened, manifest, url, config), made_with=made_with)


def open_listed_dataset(node: NodeClient, paths: Sequence[str], config: Config) -> NodeDataset:
    """Return the dataset of these files, absolute paths, in this order: object id i is ``paths[i]``."""
    return _open_catalogue(node, name_of_list(paths), paths, config, num_samples=0)


def open_dataset_beside(node: NodeClient, config: Config) -> NodeDataset:
    """Return the dataset of files that are read outside of all loaders; it begins empty, and is one for the node."""
    return _open_catalogue(node, name_of_list(()), (), config, num_samples=0)


def open_learned_dataset(node: NodeClient, fingerprint: str, num_samples: int, config: Config) -> NodeDataset:
    """Return the dataset of files that become known as samples open them.

    Args:
        node: Where it is opened.
        fingerprint: Hex digits that tell datasets apart, the same in every process and run.
        num_samples: Samples of the dataset.
        config: Settings.
    """
    return _open_catalogue(node, name_of_learned(fingerprint), (), config, num_samples=num_samples)


def _open_catalogue(
    node: NodeClient, name: str, paths: Sequence[str], config: Config, *, num_samples: int
) -> NodeDataset:
    ensure_private_dir(node.connection.runtime_dir)
    paths_file = put_in_transit(node.connection.runtime_dir, [b"\0".join(os.fsencode(path) for path in paths)])
    try:
        opened = node.open_catalogue(name, paths_file, num_samples=num_samples)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):  # the server may have taken it
            os.unlink(paths_file)
        raise
    return replace(
        _node_dataset(node, opened, Catalogue.open(Path(opened.manifest_dir), opened.uid), "/", config),
        num_samples=num_samples,
    )


def locate_object(node: NodeClient, url: str, config: Config) -> tuple[NodeDataset, int] | None:
    """Return the dataset, open on the node, that holds the object of this URL, and its id; None if there is none."""
    located = node.locate(url)
    if located.dataset < 0:
        return None
    opened = DatasetOpened(0, located.dataset, located.manifest_dir)
    manifest = Manifest.open(Path(opened.manifest_dir))
    found = _node_dataset(node, opened, manifest, manifest.url, config)
    return replace(found, made_with=access_now(manifest.url, config)), located.object_id


_used: dict[Path, Config] = {}
"""Settings of nodes by their homes; see ``used_nodes``."""


def used_nodes(home: Path) -> list[Config]:
    """Return the settings with which this process opened datasets on the servers of a home and of the sample sets in it."""
    return [config for config in _used.values() if config.home == home or home in config.home.parents]


def _node_dataset(
    node: NodeClient, opened: DatasetOpened, manifest: Manifest | Catalogue, url: str, config: Config
) -> NodeDataset:
    connection = node.connection
    _used[config.home] = config
    return NodeDataset(
        number=opened.dataset,
        url=veiled(url),
        manifest=manifest,
        runtime_dir=os.fspath(connection.runtime_dir),
        instance=connection.instance,
        config=config,
    )
