"""Objects of any origin, one a sample."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
    """The bytes of each object below a URL or directory, in order of their paths.

    Args:
        url_or_path: A directory, ``s3://``, ``gs://``, ``az://``, ``http(s)://`` or ``sampleset://NAME/PATH``.
        decode: Applied to the bytes of each object; its result is the sample. None: the bytes are.
        pattern: Which objects; ``*`` stops at ``/``, ``**`` does not: ``train/**/*.jpg``.
        config: Settings; defaults to those in force in the process.
        listing_age: Seconds; a listing of the root that is no older will do. ``float("inf")``: the first one for ever.
            Default: as the settings say, which is to list now.

    Raises:
        SourceError: The origin cannot be listed, or nothing in it matches; the message says what to change.

    **Threads and processes**: may be used in many threads, before and after a fork, and pickled to a spawned worker.
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
        """Return all objects below a root, listed in this process and read there until ``_use_node``; errors as of the class."""
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
            name: Its path, relative to the root or absolute, or its URL.

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
        """Return the samples that hold a part of an object, in order: its blocks, if the root is listed in blocks.

        Args:
            name: As for ``index_of``.
            offset: First byte of the part.
            length: Number of bytes, at least 1.

        Raises:
            ObjectNotFoundError: The dataset has no such object.
            ValueError: The object has no such bytes, or the dataset has only some objects (``pattern``).
        """
        entries, block = self._entries_of(name, offset, length)
        return entries[offset // block : (offset + length - 1) // block + 1]

    def read_part(self, name: str | os.PathLike[str], offset: int, length: int) -> bytes:
        """Return a part of an object; arguments and errors as of ``parts_of``, and those of reading."""
        entries, block = self._entries_of(name, offset, length)
        first, last = offset // block, (offset + length - 1) // block
        data = b"".join(self._origin.read(object_id) for object_id in entries[first : last + 1])
        start = offset - first * block
        return data[start : start + length]

    def prefeed_access(self, node: NodeClient, config: Config) -> AccessMap:
        """Return which object each sample needs."""
        return AccessMap(dataset=self._origin.on_node(node, config), ids=self._ids)

    def prefeed_borrow(self, indices: Sequence[int], until: ExitStack) -> list[memoryview] | None:
        """Return the bytes of samples where the node has them, valid until the stack is closed.

        Returns:
            None if they are not all there, or samples are made of them: then they are read one by one.
        """
        if type(self) is not Objects or self.decode is not None:
            return None
        return self._origin.borrow([self._object_id(index) for index in indices], until)

    def prefeed_stage(self) -> Any:
        """Return what samples are made with, for the caches of stages."""
        return self.url, self.decode

    def prefeed_state(self) -> Any:
        """Return what tells this dataset from others: the objects that match as well."""
        return self.prefeed_stage(), self.pattern, self._origin.settle().directory.name

    def prefeed_sample(self, index: int) -> tuple[str, bytes]:
        """Return the path of a sample's object, and its entry key."""
        object_id = self._object_id(index)
        return self._origin.manifest.path(object_id), self._origin.settle().key(object_id)

    def _path_of(self, name: str | os.PathLike[str]) -> str:
        """Return the path below the root of an object that is named by its path or URL."""
        path = os.fspath(name)
        if path.startswith("/") or "://" in path:
            path = canonical_url(path).removeprefix(f"{canonical_url(unwrapped(self.url)).rstrip('/')}/")
        return path

    def _entries_of(self, name: str | os.PathLike[str], offset: int, length: int) -> tuple[range, int]:
        """Return the ids of an object, and how many bytes all of them but the last have; errors as of ``parts_of``."""
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
    """Return the expression of a glob in which ``*`` and ``?`` stop at ``/`` and ``**`` does not."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(special.get(part) or re.escape(part) for part in parts), re.DOTALL)
