"""A dataset of the node, as its readers see it: a manifest, a number on the server, settings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.sources.manifest import Manifest
from prefeed.types import ListingProgress
from prefeed.wire.endpoint import ensure_private_dir
from prefeed.wire.messages import DatasetOpened


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDataset:
    """What a reader needs to know; picklable, and small: the manifest travels as the name of its directory.

    Attributes:
        number: Names the dataset on the server that opened it.
        url: Root as the user gave it; it may hold credentials, so it is not shown.
        manifest: Its listing.
        store_dir: Directory of the memory tier.
        instance: Which server: a number of one means nothing to another.
        config: Settings that were in force when it was opened.
    """

    number: int
    url: str = field(repr=False)
    manifest: Manifest
    store_dir: str
    instance: str
    config: Config


def reopen_on(node: NodeClient, dataset: NodeDataset) -> NodeDataset:
    """Return the same dataset as this server knows it, when it is not the one that opened it."""
    if dataset.instance == node.connection.instance:
        return dataset
    opened = node.open_dataset(dataset.url, manifest_dir=str(dataset.manifest.directory))
    return _node_dataset(node, opened, dataset.url, dataset.config)


def open_node_dataset(
    node: NodeClient, url: str, config: Config, *, refresh: bool = False, listing: ListingProgress | None = None
) -> NodeDataset:
    """Return the dataset of a URL, listed by the server if it never was.

    Raises:
        SourceError: The origin cannot be listed.
        ServerUnavailableError: The server went away.
    """
    opened = node.open_dataset(url, refresh=refresh, listing=listing)
    return _node_dataset(node, opened, url, config)


def open_listed_dataset(
    node: NodeClient, paths: Sequence[str], config: Config, *, listing: ListingProgress | None = None
) -> NodeDataset:
    """Return the dataset of these files, in this order: object id i is ``paths[i]``."""
    ensure_private_dir(config.runtime_dir)
    descriptor, name = tempfile.mkstemp(prefix="paths-", dir=config.runtime_dir)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"\0".join(os.fsencode(path) for path in paths))
    opened = node.open_dataset("", paths_file=name, listing=listing)
    return _node_dataset(node, opened, "/", config)


def locate_object(node: NodeClient, url: str, config: Config) -> tuple[NodeDataset, int] | None:
    """Return the dataset, open on the node, that holds the object of this URL, and its id; None if there is none."""
    located = node.locate(url)
    if located.dataset < 0:
        return None
    opened = DatasetOpened(0, located.dataset, located.manifest_dir)
    dataset = _node_dataset(node, opened, "", config)
    return replace(dataset, url=dataset.manifest.url), located.object_id


def _node_dataset(node: NodeClient, opened: DatasetOpened, url: str, config: Config) -> NodeDataset:
    connection = node.connection
    return NodeDataset(
        number=opened.dataset,
        url=url,
        manifest=Manifest.open(Path(opened.manifest_dir)),
        store_dir=connection.store_dir,
        instance=connection.instance,
        config=config,
    )
