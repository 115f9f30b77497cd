"""Fill the tiers of a node with a data set or one object, for ``prefeed warm``. Start with ``warm_up``."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.client.blocks import Blocks
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import EmptyListingError, JobSpecError, ServerUnavailableError
from prefeed.jobs.places import JobLocation
from prefeed.jobs.rmr import relative_paths
from prefeed.sources.manifest import Manifest
from prefeed.sources.urls import split_object
from prefeed.types import ListingProgress, WarmResult
from prefeed.wire.endpoint import ensure_private_dir, put_in_transit

SEQUENCE, RANDOM = "sequence", "random"
STRATEGIES: Final = (SEQUENCE, RANDOM)

_MAX_SERVERS: Final = 3
"""Number of servers that a warm-up tries, if one after another dies."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupOptions:
    """Objects to fetch, and their order.

    Attributes:
        paths: Objects and directories; empty for all objects.
        strategy: ``sequence`` for the order of ``file``, ``paths`` or names; ``random`` for one drawn from ``seed``.
        seed: Seed of the random order, which must be the same on all nodes that share the work.
        partitions: Number of nodes that share the work. Each fetches every ``partitions``-th object of the order.
        partition: Number of this node, from 0.
        file: File with the paths of objects, one per line, instead of ``paths``; None without a file.
        threads: Maximum number of concurrent objects; None to adapt to the origin.
    """

    paths: tuple[str, ...] = ()
    strategy: str = SEQUENCE
    seed: int = 0
    partitions: int = 1
    partition: int = 0
    file: Path | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmEvents:
    """Callbacks of a warm-up, called in the caller's thread."""

    listing: ListingProgress = lambda _objects, _bytes: None
    progress: Callable[[WarmResult], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


def warm_up(place: JobLocation, options: WarmupOptions, events: WarmEvents | None = None) -> WarmResult:
    """Fetch objects into the node's tiers until all are cached or the tiers are full.

    If the server dies, another one is started, and the warm-up resumes with the missing objects.

    **Blocking**: until the warm-up has ended.

    Raises:
        JobSpecError: The options are invalid, or a path is not below the root.
        SourceError: The origin cannot be listed, or has no object at a path.
        ServerUnavailableError: No server can be reached or started, or several died.
    """
    _check_options(options)
    settings = place.settings
    listing_age = settings.listing_age
    events = events or WarmEvents()
    for is_last in (*[False] * (_MAX_SERVERS - 1), True):
        try:
            with NodeClient.connect(settings) as client:
                opened = client.open_dataset(place.url, listing_age=listing_age, listing=events.listing)
                listing_age = math.inf  # After a restart, use the same listing.
                manifest = Manifest.open(opened.manifest_dir)
                manifest.left_out.warn(manifest.url)
                return _warm(client, opened.dataset, fetch_order(manifest, options), options, events)
        except ServerUnavailableError:
            if is_last:
                raise
            events.note("the node server died: the warm-up resumes with another one")
    raise AssertionError


def warm_object(url: str, config: Config, events: WarmEvents | None = None) -> WarmResult:
    """Fetch one object into the node's tiers, in the blocks that ``prefeed.open`` reads.

    The URL may have a query, for example that of a presigned URL. **Blocking**: until all blocks are fetched.

    Raises:
        SourceError: The origin has no such object, or refuses access.
        ServerUnavailableError: No server can be reached or started.
    """
    blocks = Blocks(config)
    try:
        opened = blocks.open(*split_object(url))
        with NodeClient.connect(config) as client:
            dataset = blocks.dataset(opened)
            if dataset is None:
                raise ServerUnavailableError(
                    f"{opened.location} cannot be warmed: the cache is not enabled, or no server answers"
                )
            ids = np.arange(opened.num_blocks, dtype=np.int64)
            return _warm(client, dataset.number, ids, WarmupOptions(), events or WarmEvents())
    finally:
        blocks.close()


def _warm(client: NodeClient, dataset: int, ids: Ids, options: WarmupOptions, events: WarmEvents) -> WarmResult:
    ensure_private_dir(client.connection.runtime_dir)
    name = put_in_transit(client.connection.runtime_dir, [np.ascontiguousarray(ids).data], suffix=".i64")
    try:
        return client.warm_in_order(dataset, name, max_in_flight=options.threads or 0, progress=events.progress)
    finally:
        with contextlib.suppress(FileNotFoundError):  # The server has already removed the file.
            os.unlink(name)


def fetch_order(manifest: Manifest, options: WarmupOptions) -> Ids:
    """Return the ids of the objects to fetch, in order and without duplicates, shape (num_objects,).

    Raises:
        JobSpecError: A path or a line is not below the root, or the file cannot be read.
        EmptyListingError: A path does not exist.
    """
    if options.file is not None:
        ids = _read_list(manifest, options.file)
    elif options.paths:
        ids = _expand_paths(manifest, options.paths)
    else:
        ids = np.arange(manifest.num_objects, dtype=np.int64)
    if options.strategy == RANDOM:
        ids = np.random.default_rng(options.seed).permutation(ids)
    return ids[options.partition :: options.partitions]


def _expand_paths(manifest: Manifest, paths: Sequence[str]) -> Ids:
    parts = []
    for path in paths:
        [relative] = relative_paths(manifest.url, [path])
        found, itself = manifest.paths_below(relative), manifest.index_of(relative)
        ids = [*([] if itself is None else [itself]), *found]
        if not ids:
            raise EmptyListingError(
                f"{manifest.url} has nothing at {relative!r}; if it is new there, list the origin again with PREFEED_LISTING_AGE=0"
            )
        parts.append(np.asarray(ids, dtype=np.int64))
    return _unique(np.concatenate(parts))


def _read_list(manifest: Manifest, file: Path) -> Ids:
    try:
        lines = os.fsdecode(file.read_bytes()).split("\n")
    except OSError as err:
        raise JobSpecError(f"{file} cannot be read: {err.strerror}") from err
    ids: list[int] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        [relative] = relative_paths(manifest.url, [line.removeprefix("./")])
        found = manifest.index_of(relative)
        if found is None:
            raise EmptyListingError(
                f"{file}, line {number}: {manifest.url} has no {relative!r}; if it is new there, list the origin again with PREFEED_LISTING_AGE=0"
            )
        ids.append(found)
    return _unique(np.asarray(ids, dtype=np.int64))


def _unique(ids: Ids) -> Ids:
    _, first = np.unique(ids, return_index=True)
    return ids[np.sort(first)]


def _check_options(options: WarmupOptions) -> None:
    if options.strategy not in STRATEGIES:
        raise JobSpecError(f"a warm-up has the strategy {' or '.join(STRATEGIES)}, not {options.strategy!r}")
    if options.partitions < 1 or not 0 <= options.partition < options.partitions:
        raise JobSpecError(
            f"partition {options.partition} is out of range: {options.partitions} partitions have the numbers 0 to "
            f"{options.partitions - 1}"
        )
    if options.threads is not None and options.threads < 1:
        raise JobSpecError(f"--threads must be at least 1: {options.threads}")
    if options.file is not None and options.paths:
        raise JobSpecError("give either paths or a file of paths")
