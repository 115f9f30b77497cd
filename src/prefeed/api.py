"""Reading one object, and looking at the counts: the functions of the top package."""

from __future__ import annotations

import os
from dataclasses import replace

from prefeed.client.dataset import used_nodes
from prefeed.client.node import NodeClient
from prefeed.client.readers import process_readers
from prefeed.client.untold import untold_epochs
from prefeed.config import Config, settings_of
from prefeed.core.node_sums import sum_statistics
from prefeed.core.origins import summed
from prefeed.errors import ServerUnavailableError
from prefeed.sampleset.names import resolve, resolve_roots
from prefeed.sources.answers import read_origin
from prefeed.sources.signed_urls import query_of
from prefeed.sources.urls import canonical_url, open_source, split_object
from prefeed.types import Statistics

__all__ = ["read", "statistics"]


def read(url: str | os.PathLike[str], *, config: Config | None = None) -> bytes:
    """Return the bytes of one object.

    It comes from the node's cache when a dataset that holds it is open on the node, or was warmed; the first read of
    such an object puts it there. Anything else is read from its origin. A file that has changed since the dataset listed it is read
    from its origin too.

    The process keeps its connection, as loaders do: it is a client of the server until it ends.

    Raises:
        SourceError: The origin has no such object, or refuses it.
        UnknownSchemeError: No source reads this URL.
        SampleSetNotFoundError: There is no such sample set.
    """
    url, settings = resolve(os.fspath(url), settings_of(config))
    canonical = canonical_url(url)
    is_signed = bool(query_of(url))
    if settings.enabled and not is_signed:
        found = process_readers.objects.find(canonical, settings)
        if found is not None:
            return process_readers.read(*found)
    root, name = split_object(url) if is_signed else canonical.rpartition("/")[::2]
    source = open_source(root or "/", settings)
    try:
        data = read_origin(source, name, settings)
    finally:
        source.close()
    return data if isinstance(data, bytes) else bytes(data)


def statistics(*, config: Config | None = None) -> Statistics:
    """Return the counts of the node's server since its start; all zero if none runs.

    If this process has read from sample sets, by loaders or otherwise, these are the counts of their servers: the sum if there are
    several. Epochs of this process's loaders that have no plan come last, because no server knows them. Their reads are in the
    sums by origin.

    Raises:
        SampleSetNotFoundError: ``PREFEED_ROOTS`` names a sample set that does not exist, and nothing was read yet.
    """
    process_readers.report()
    untold = untold_epochs()
    settings = settings_of(config)
    counts = sum_statistics([_statistics_of(node) for node in used_nodes(settings.home) or [resolve_roots(settings)]])
    reads = [epoch.reads for epoch in untold if epoch.reads is not None]
    return replace(
        counts,
        epochs=(*counts.epochs, *untold),
        direct_reads=counts.direct_reads + sum(one.files for one in reads),
        origins=summed(counts.origins, reads),
    )


def _statistics_of(config: Config) -> Statistics:
    try:
        with NodeClient.connect(config, autostart=False) as node:
            return node.statistics()
    except ServerUnavailableError:
        return Statistics()
