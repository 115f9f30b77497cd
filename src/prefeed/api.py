"""Functions of the top package: ``read`` reads one object, ``statistics`` returns the counts of the node server."""

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
    """Read one object.

    The object is read through the node's cache if a dataset that contains it is open on the node, or was warmed. All other objects,
    and files that have changed since the dataset was listed, are read from their origin.

    The process stays connected to the server until it ends, as with loaders.

    Raises:
        SourceError: The origin does not have the object, or refuses it.
        UnknownSchemeError: No source reads this URL.
        SampleSetNotFoundError: The sample set does not exist.
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
    """Return the counts of the node server since its start; all 0 if no server runs.

    If this process has read from sample sets, the counts of their servers are summed. Epochs of this process's loaders without a
    plan come last, because no server counts them. Their reads are included in the counts by origin.

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
