"""Reading one object, and looking at the counts: the functions of the top package."""

from __future__ import annotations

import os
from dataclasses import replace

from prefeed.client.dataset import NodeDataset, locate_object
from prefeed.client.node import NodeClient
from prefeed.client.readers import Readers
from prefeed.client.untold import untold_epochs
from prefeed.config import Config, settings_of
from prefeed.core.origins import summed
from prefeed.errors import ServerError, ServerUnavailableError
from prefeed.sampleset.names import resolve
from prefeed.sources.answers import read_origin
from prefeed.sources.signed_urls import query_of
from prefeed.sources.urls import canonical_url, open_source, split_object
from prefeed.types import Statistics

__all__ = ["read", "statistics"]

_readers = Readers()


def read(url: str | os.PathLike[str], *, config: Config | None = None) -> bytes:
    """Return the bytes of one object.

    It comes from the node's cache when a dataset that holds it is open on the node, or was warmed; the first read of
    such an object puts it there. Anything else is read from its origin.

    Raises:
        SourceError: The origin has no such object, or refuses it.
        UnknownSchemeError: No source reads this URL.
        SampleSetNotFoundError: There is no such sample set.
    """
    url, settings = resolve(os.fspath(url), settings_of(config))
    canonical = canonical_url(url)
    is_signed = bool(query_of(url))
    if settings.enabled and not is_signed:
        try:
            found = _locate(canonical, settings)
        except ServerError:
            found = None
        if found is not None:
            return _readers.read(*found)
    root, name = split_object(url) if is_signed else canonical.rpartition("/")[::2]
    source = open_source(root or "/", settings)
    try:
        data = read_origin(source, name, settings)
    finally:
        source.close()
    return data if isinstance(data, bytes) else bytes(data)


def statistics(*, config: Config | None = None) -> Statistics:
    """Return the counts of the node's server since its start; all zero when none runs.

    Epochs of this process's loaders that have no plan come last: the server does not know of them. How these were read is in the sums
    by origin.
    """
    untold = untold_epochs()
    try:
        with NodeClient.connect(settings_of(config), autostart=False) as node:
            counts = node.statistics()
    except ServerUnavailableError:
        counts = Statistics()
    reads = [epoch.reads for epoch in untold if epoch.reads is not None]
    return replace(
        counts,
        epochs=(*counts.epochs, *untold),
        direct_reads=counts.direct_reads + sum(one.files for one in reads),
        origins=summed(counts.origins, reads),
    )


def _locate(url: str, config: Config) -> tuple[NodeDataset, int] | None:
    with NodeClient.connect(config) as node:
        return locate_object(node, url, config)
