"""Filling the tiers of a node with a data set, in an order; ``prefeed warm``."""

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
from prefeed.jobs.places import Place
from prefeed.jobs.rmr import relative_paths
from prefeed.sources.manifest import Manifest
from prefeed.sources.urls import split_object
from prefeed.types import ListingProgress, WarmResult
from prefeed.wire.endpoint import ensure_private_dir, put_in_transit

SEQUENCE, RANDOM = "sequence", "random"
STRATEGIES: Final = (SEQUENCE, RANDOM)

_MAX_SERVERS: Final = 3
"""Servers that may die under one warm-up before it is given up."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupOptions:
    """What to fetch, and in which order.

    Attributes:
        paths: Objects, and directories of them; none: everything.
        strategy: ``sequence``: in the order of ``file``, ``paths`` or names; ``random``: in one drawn from ``seed``.
        seed: Of the random order: the same on every node gives the parts that fit together.
        partitions: Nodes that share the work; of the order each takes every so manieth.
        partition: Which of them this is, from 0.
        file: A file with the paths of objects, one a line, in place of ``paths``; None: there is none.
        threads: Most objects under way at a time; None: as many as the origin takes.
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
    """Who is told, in the caller's thread."""

    listing: ListingProgress = lambda _objects, _bytes: None
    progress: Callable[[WarmResult], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


def warm_up(place: Place, options: WarmupOptions, events: WarmEvents | None = None) -> WarmResult:
    """The node has in its tiers what was asked for, as far as there is room; what was there stays and counts.

    A server that dies is started again, and the warm-up resumes with objects that are not there yet.

    **Blocking**: until it is done.

    Raises:
        JobSpecError: Options that cannot be, or a path that is not there.
        SourceError: The origin cannot be listed.
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
                listing_age = math.inf  # another server uses the listing of this one
                manifest = Manifest.open(opened.manifest_dir)
                manifest.left_out.warn(manifest.url)
                return _warm(client, opened.dataset, fetch_order(manifest, options), options, events)
        except ServerUnavailableError:
            if is_last:
                raise
            events.note("the node server is gone: the warm-up resumes with another one")
    raise AssertionError


def warm_object(url: str, config: Config, events: WarmEvents | None = None) -> WarmResult:
    """Fetch one object, in blocks as ``prefeed.open`` reads it; its URL may have a query, as a presigned one has.

    **Blocking**: until it is done.

    Raises:
        SourceError: The origin has no such object, or refuses it.
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
        with contextlib.suppress(FileNotFoundError):  # the server has taken it
            os.unlink(name)


def fetch_order(manifest: Manifest, options: WarmupOptions) -> Ids:
    """Return the objects to fetch, in order: ids, shape (num_objects,), each once.

    Raises:
        JobSpecError: A path or a line is not below the root.
        EmptyListingError: There is nothing at a path.
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
            f"there is no partition {options.partition} of {options.partitions}: partitions are counted from 0, the last of "
            f"{options.partitions} is {options.partitions - 1}"
        )
    if options.threads is not None and options.threads < 1:
        raise JobSpecError(f"--threads must be at least 1: {options.threads}")
    if options.file is not None and options.paths:
        raise JobSpecError("give either paths or a file of paths")
