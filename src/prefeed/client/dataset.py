"""A dataset of the node, as its readers see it: a manifest, a number on the server, settings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.sources.manifest import Manifest
from prefeed.types import ListingProgress
from prefeed.wire.endpoint import ensure_private_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDataset:
    """What a reader needs to know; picklable, and small: the manifest travels as the name of its directory.

    Attributes:
        number: Names the dataset on the server that opened it.
        manifest: Its listing.
        store_dir: Directory of the memory tier.
        instance: Which server: a number of one means nothing to another.
        config: Settings that were in force when it was opened.
    """

    number: int
    manifest: Manifest
    store_dir: str
    instance: str
    config: Config


def reopen_on(node: NodeClient, dataset: NodeDataset) -> NodeDataset:
    """Return the same dataset as this server knows it, when it is not the one that opened it."""
    if dataset.instance == node.connection.instance:
        return dataset
    opened = node.open_dataset("", manifest_dir=str(dataset.manifest.directory))
    return _node_dataset(node, opened.dataset, opened.manifest_dir, dataset.config)


def open_node_dataset(
    node: NodeClient, url: str, config: Config, *, refresh: bool = False, listing: ListingProgress | None = None
) -> NodeDataset:
    """Return the dataset of a URL, listed by the server if it never was.

    Raises:
        SourceError: The origin cannot be listed.
        ServerUnavailableError: The server went away.
    """
    opened = node.open_dataset(url, refresh=refresh, listing=listing)
    return _node_dataset(node, opened.dataset, opened.manifest_dir, config)


def open_listed_dataset(
    node: NodeClient, paths: Sequence[str], config: Config, *, listing: ListingProgress | None = None
) -> NodeDataset:
    """Return the dataset of these files, in this order: object id i is ``paths[i]``."""
    ensure_private_dir(config.runtime_dir)
    descriptor, name = tempfile.mkstemp(prefix="paths-", dir=config.runtime_dir)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b"\0".join(os.fsencode(path) for path in paths))
    opened = node.open_dataset("", paths_file=name, listing=listing)
    return _node_dataset(node, opened.dataset, opened.manifest_dir, config)


def _node_dataset(node: NodeClient, number: int, manifest_dir: str, config: Config) -> NodeDataset:
    manifest = Manifest.open(Path(manifest_dir))
    connection = node.connection
    return NodeDataset(
        number=number,
        manifest=manifest,
        store_dir=connection.store_dir,
        instance=connection.instance,
        config=config,
    )
