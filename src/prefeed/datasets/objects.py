"""``Objects``: a dataset whose samples are the objects of any origin."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from prefeed.client.access import AccessMap
from prefeed.client.node import NodeClient
from prefeed.config import Config, settings_of
from prefeed.datasets.origin import Origin, OriginDataset, name_object, sample_index
from prefeed.errors import ObjectNotFoundError
from prefeed.sources.blocks import object_of
from prefeed.sources.manifest import Manifest
from prefeed.sources.urls import canonical_url, unwrapped


class Objects(OriginDataset):
    """Bytes of each object below a URL or directory, in the order of their paths.

    Args:
        url_or_path: A directory, ``s3://``, ``gs://``, ``az://``, ``http(s)://`` or ``sampleset://NAME/PATH``.
        decode: Function that computes the sample from the bytes of an object; None to return the bytes.
        pattern: Glob of the objects, such as ``train/**/*.jpg``. ``*`` does not match ``/``, and ``**`` does.
        config: Settings; defaults to those in force in the process.
        listing_age: Maximum age of an existing listing of the root, in seconds. ``float("inf")`` reuses the first listing forever.
            Defaults to the setting, whose default lists now.

    Raises:
        SourceError: The origin cannot be listed, or no object matches.

    **Threads and processes**: can be used in many threads, before and after a fork, and pickled to a spawned worker.
    """

    def __init__(
        self,
        url_or_path: str | os.PathLike[str],
        decode: Callable[[bytes], Any] | None = None,
        pattern: str = "**",
        *,
        config: Config | None = None,
        listing_age: float | None = None,
    ) -> None:
        self.decode = decode
        self.pattern = pattern
        self._origin = Origin(url_or_path, settings_of(config), listing_age=listing_age)
        self._ids = _match(self._origin.manifest, pattern, self._origin.url)

    @classmethod
    def _without_node(cls, url_or_path: str | os.PathLike[str], config: Config) -> Objects:
        """Create a dataset that lists and reads the origin in this process until ``_use_node``. Raises as the class."""
        made = cls.__new__(cls)
        made.decode, made.pattern, made._ids = None, "**", None
        made._origin = Origin(url_or_path, config, without_node=True)
        return made

    @property
    def url(self) -> str:
        """Canonical URL of the root."""
        return self._origin.url

    def __len__(self) -> int:
        return self._origin.manifest.num_objects if self._ids is None else len(self._ids)

    def __getitem__(self, index: int) -> Any:
        object_id = self._object_id(index)
        data = self._origin.read(object_id)
        if self.decode is None:
            return data
        try:
            return self.decode(data)
        except Exception as err:
            name_object(err, self._origin.location(object_id))
            raise

    def path(self, index: int) -> str:
        """Return the path of a sample's object, relative to the root."""
        return object_of(self._origin.manifest.path(self._object_id(index)))

    def index_of(self, name: str | os.PathLike[str]) -> int:
        """Return the index of an object's sample.

        Args:
            name: URL of the object, or its path, relative to the root or absolute.

        Raises:
            ObjectNotFoundError: The dataset has no such object.
        """
        found = self._origin.manifest.index_of(self._path_of(name))
        if found is not None and self._ids is not None:
            place = int(np.searchsorted(self._ids, found))
            found = place if place < len(self._ids) and self._ids[place] == found else None
        if found is None:
            raise self._not_found(name)
        return found

    def parts_of(self, name: str | os.PathLike[str], offset: int, length: int) -> range:
        """Return the samples that contain a part of an object, in order. For a root listed in blocks, these are blocks.

        Args:
            name: As in ``index_of``.
            offset: First byte of the part.
            length: Number of bytes, at least 1.

        Raises:
            ObjectNotFoundError: The dataset has no such object.
            ValueError: The part is out of range, or the dataset has a ``pattern``.
        """
        entries, block = self._entries_of(name, offset, length)
        return entries[offset // block : (offset + length - 1) // block + 1]

    def read_part(self, name: str | os.PathLike[str], offset: int, length: int) -> bytes:
        """Return the bytes of a part of an object. Arguments and errors are those of ``parts_of``."""
        entries, block = self._entries_of(name, offset, length)
        first, last = offset // block, (offset + length - 1) // block
        data = b"".join(self._origin.read(object_id) for object_id in entries[first : last + 1])
        start = offset - first * block
        return data[start : start + length]

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return the object of each sample."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_stage(self) -> dict[str, Any]:
        """Return the inputs of a sample's computation, for stage caches."""
        return {"url": self.url, "decode": self.decode}

    def prefeed_state(self) -> dict[str, Any]:
        """Return the identity of this dataset, including its pattern and listing."""
        return {**super().prefeed_state(), "pattern": self.pattern}

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path and the entry key of a sample's object."""
        object_id = self._object_id(index)
        return self._origin.manifest.path(object_id), self._origin.settle().key(object_id)

    def _path_of(self, name: str | os.PathLike[str]) -> str:
        """Convert the path or URL of an object to a path below the root."""
        path = os.fspath(name)
        if path.startswith("/") or "://" in path:
            path = canonical_url(path).removeprefix(f"{canonical_url(unwrapped(self.url)).rstrip('/')}/")
        return path

    def _entries_of(self, name: str | os.PathLike[str], offset: int, length: int) -> tuple[range, int]:
        """Return the ids of an object's blocks, and the size of a block. Raises as ``parts_of``."""
        if self._ids is not None:
            raise ValueError(f"parts are those of all objects below a root, not of the pattern {self.pattern!r}")
        manifest = self._origin.settle()
        entries = manifest.entries_at(self._path_of(name))
        if not entries:
            raise self._not_found(name)
        sizes = manifest.sizes[entries.start : entries.stop]
        if offset < 0 or length < 1 or offset + length > int(sizes.sum()):
            raise ValueError(
                f"bytes {offset} to {offset + length - 1} are not in {os.fspath(name)!r}, which has {int(sizes.sum())} bytes"
            )
        return entries, int(sizes[0])

    def _not_found(self, name: str | os.PathLike[str]) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"no object {os.fspath(name)!r} is among the {len(self)} of {self.url}: list it again if it is new"
        )

    def _object_id(self, index: int) -> int:
        index = sample_index(index, len(self))
        return index if self._ids is None else int(self._ids[index])


def _match(manifest: Manifest, pattern: str, url: str) -> npt.NDArray[np.int64] | None:
    if pattern == "**":
        return None
    matches = _glob_regex(pattern).fullmatch
    ids = [i for i in range(manifest.num_objects) if matches(object_of(manifest.path(i)))]
    if not ids:
        raise ObjectNotFoundError(f"none of the {manifest.num_objects} objects below {url} matches {pattern!r}")
    return np.array(ids, dtype=np.int64)


def _glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob in which ``**`` matches ``/``, and ``*`` and ``?`` do not."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(special.get(part) or re.escape(part) for part in parts), re.DOTALL)
