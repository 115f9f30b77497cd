"""``Packed``: a dataset of the samples of a pack."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, settings_of
from prefeed.datasets.origin import Origin, OriginDataset, name_object, sample_index
from prefeed.errors import EmptyListingError
from prefeed.packing.order import sample_of
from prefeed.sources.manifest import Manifest

Indices = npt.NDArray[np.int64]


class Packed(OriginDataset):
    """Files of a pack that ``prefeed pack`` created or indexed, with random access.

    Args:
        url_or_path: Directory or URL of the pack, or ``sampleset://NAME/PATH``. The ``pack+`` before its scheme is optional.
        decode: Function that computes the sample from the bytes of a file, or from the dict of a group.
        group: False if a sample is the bytes of one file. True if a sample is the files of one key, as in webdataset: a dict of
            their bytes by lower-case extension, with the key as ``"__key__"``. Files without an extension are then ignored.
        config: Settings; defaults to those in force in the process.
        listing_age: Maximum age of an existing listing of the root, in seconds. ``float("inf")`` reuses the first listing forever.
            Defaults to the setting, whose default lists now.

    Samples are in the order of their paths, and groups in the order of their first paths.

    Raises:
        SourceError: No finished pack exists there, or the pack cannot be read.

    **Threads and processes**: can be used in many threads, before and after a fork, and pickled to a spawned worker.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        decode: Callable[[Any], Any] | None = None,
        *,
        group: bool = False,
        config: Config | None = None,
        listing_age: float | None = None,
    ) -> None:
        self.decode = decode
        self.group = group
        self._origin = Origin(url_or_path, settings_of(config), listing_age=listing_age, is_pack=True)
        self._groups = _group_by_key(self._origin.manifest, self.url) if group else None

    @property
    def url(self) -> str:
        """Canonical URL of the pack."""
        return self._origin.url

    def __len__(self) -> int:
        return self._origin.manifest.num_objects if self._groups is None else len(self._groups[1]) - 1

    def __getitem__(self, index: int) -> Any:
        ids = self._object_ids(index)
        data = self._origin.read(ids[0]) if self._groups is None else self._read_group(ids)
        if self.decode is None:
            return data
        try:
            return self.decode(data)
        except Exception as err:
            name_object(err, self._origin.location(ids[0]))
            raise

    def path(self, index: int) -> str:
        """Return the original path of a sample's file, or the key of a group."""
        path = self._origin.manifest.path(self._object_ids(index)[0])
        return path if self._groups is None else _split_key(path)[0]

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the objects of each sample."""
        dataset = self._origin.on_node(node, config)
        if self._groups is None:
            return AccessMap(dataset=dataset)
        ids, starts = self._groups
        return AccessMap(dataset=dataset, ids=ids, starts=starts)

    def prefeed_stage(self) -> dict[str, Any]:
        """Return the inputs of a sample's computation, for stage caches."""
        return {"url": self.url, "decode": self.decode, "group": self.group}

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample, and its entry key or, for a group, the digest of its entry keys."""
        keys = [self._origin.settle().key(object_id) for object_id in self._object_ids(index)]
        return self.path(index), keys[0] if self._groups is None else xxh3_128(b"".join(keys)).digest()

    def _object_ids(self, index: int) -> list[int]:
        index = sample_index(index, len(self))
        if self._groups is None:
            return [index]
        ids, starts = self._groups
        return [int(i) for i in ids[starts[index] : starts[index + 1]]]

    def _read_group(self, ids: list[int]) -> dict[str, Any]:
        sample: dict[str, Any] = {}
        for object_id in ids:
            key, extension = _split_key(self._origin.manifest.path(object_id))
            sample["__key__"] = key
            sample[extension] = self._origin.read(object_id)
        return sample


def _split_key(path: str) -> tuple[str, str]:
    found = sample_of(path)
    assert found is not None  # it is a member of a group
    return found


def _group_by_key(manifest: Manifest, url: str) -> tuple[Indices, Indices]:
    """Return the object ids of all groups, shape (num_members,), and the starts of groups, shape (num_groups + 1,)."""
    groups: dict[str, list[int]] = {}
    for object_id in range(manifest.num_objects):
        found = sample_of(manifest.path(object_id))
        if found is not None:
            groups.setdefault(found[0], []).append(object_id)
    if not groups:
        raise EmptyListingError(
            f"none of the {manifest.num_objects} files of {url} has a key and an extension, such as a/0001.jpg, "
            "so they form no groups: read them with group=False",
            url=url,
        )
    members = list(groups.values())
    starts = np.cumsum([0, *map(len, members)], dtype=np.int64)
    return np.array([object_id for group in members for object_id in group], np.int64), starts
