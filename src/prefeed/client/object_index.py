"""Finds the dataset of an object by the object's URL.

The first read below a root sends the server one request. The reply names a dataset, and this process maps its listing. Later reads
below that root search the listing and send no message. The index forgets a root that was listed again. It forgets all roots when the
environment changes, because the environment can name another object store. Start at ``ObjectIndex.find``; ``api.read`` calls it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.client.dataset import NodeDataset, locate_object
from prefeed.client.node import NodeClient
from prefeed.config import Config, environment
from prefeed.core.requests import Again
from prefeed.errors import ServerError
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import CURRENT, current_generation, version_hash
from prefeed.system.paths import path_below

_MOST_ROOTS: Final = 64
"""Maximum number of roots per home. A mapped listing keeps a descriptor."""


@dataclass(frozen=True, slots=True)
class _Root:
    """Dataset of a root, with path and version of the file that names the newest listing."""

    dataset: NodeDataset
    current: str
    version: tuple[int, int]


class ObjectIndex:
    """Index of the datasets of node servers, by root.

    **Threads and processes**: any thread, without a lock. A forked child keeps the roots of its parent.
    **Blocking**: at most the 30 s of a request for an object that is below no known root.
    """

    def __init__(self, node: Callable[[Config], AbstractContextManager[NodeClient]]) -> None:
        """Create an empty index.

        Args:
            node: Yields a client of a home's server on an idle connection; starts the server if necessary.
        """
        self._node = node
        self._environment: dict[bytes, bytes] = {}
        self._roots: dict[Path, dict[str, _Root]] = {}  # by home
        self._again: dict[Path, Again] = {}

    def find(self, url: str, config: Config) -> tuple[NodeDataset, int] | None:
        """Return the dataset of an object and the object's id.

        Args:
            url: Canonical URL of the object.
            config: Settings of the node.

        Returns:
            None if no dataset has the object, if no server replies, or if the object is a file that has changed since its listing.
        """
        if (now := environment()) != self._environment:
            self._environment = now
            self.clear()
        roots = self._roots.setdefault(config.home, {})
        found = _look_up(url, roots) or self._request(url, config, roots)
        return None if found is None or _has_changed(url, *found) else found

    def clear(self) -> None:
        """Forget all roots, and close their listings."""
        self._roots, self._again = {}, {}

    def _request(self, url: str, config: Config, roots: dict[str, _Root]) -> tuple[NodeDataset, int] | None:
        """Request the dataset from the server. After failures, wait longer and longer before the next request."""
        again, began = self._again.setdefault(config.home, Again()), time.monotonic()
        if not again.is_due(began):
            return None
        try:
            with self._node(config) as node:
                found = locate_object(node, url, config)
        except ServerError:
            again.failed(began=began, now=time.monotonic())
            return None
        again.succeeded()
        if found is not None:
            _keep(found[0], roots)
        return found


def _look_up(url: str, roots: dict[str, _Root]) -> tuple[NodeDataset, int] | None:
    above = url
    while above not in ("", "/"):
        above = above.rpartition("/")[0] or "/"
        root = roots.get(above)
        if root is None:
            continue
        if _version_of(root.current) != root.version:
            roots.pop(above, None)
            continue
        manifest = root.dataset.manifest
        assert not manifest.grows
        object_id = manifest.index_of(path_below(url, above))
        if object_id is not None:
            return root.dataset, object_id
    return None


def _keep(dataset: NodeDataset, roots: dict[str, _Root]) -> None:
    """Add a dataset to the index unless a newer listing of its root exists, because that would go unnoticed."""
    directory = dataset.manifest.directory
    current = str(directory.parent / CURRENT)
    version = _version_of(current)
    if version is None or current_generation(directory.parent) != directory:
        return
    roots.pop(dataset.manifest.url, None)
    roots[dataset.manifest.url] = _Root(dataset, current, version)
    for root in list(roots)[:-_MOST_ROOTS]:
        roots.pop(root, None)


def _version_of(current: str) -> tuple[int, int] | None:
    try:
        status = os.stat(current)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _has_changed(url: str, dataset: NodeDataset, object_id: int) -> bool:
    """Return whether a file differs from its listing. Objects of stores are not compared."""
    manifest = dataset.manifest
    assert not manifest.grows
    if not url.startswith("/") or not manifest.is_settled:
        return False
    try:
        status = os.stat(url)
    except OSError:  # the read of the origin raises it
        return True
    return version_hash(version_of(status, url)) != manifest.version_hash(object_id)
