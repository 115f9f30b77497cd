"""``prefeed.open``: an object of any origin as a binary file, read in blocks through the node's cache."""

from __future__ import annotations

import builtins
import io
import os
from typing import Final

from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import blocks_of
from prefeed.config import Config, settings_of
from prefeed.errors import ConfigError
from prefeed.sampleset.names import is_named, resolve
from prefeed.sources.mounts import Roots, is_local
from prefeed.sources.urls import canonical_url, is_of_store, split_object

_MODES: Final = ("rb", "br")


class LocalFile(io.BufferedReader):
    """A file of a local disk, as Python opens it, with what a ``BlockFile`` has beyond that."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self.fileno()).st_size

    def read_range(self, offset: int, size: int) -> bytes:
        """Return bytes of any place, fewer at the end; the position stays.

        Raises:
            ValueError: The file is closed, or a number is negative.
        """
        if offset < 0 or size < 0:
            raise ValueError(f"no range begins at {offset} and has {size} bytes")
        return os.pread(self.fileno(), min(size, max(0, self.size - offset)), offset)


def open(
    url_or_path: str | os.PathLike[str],
    mode: str = "rb",
    *,
    readahead: bool | None = None,
    config: Config | None = None,
) -> BlockFile | LocalFile:
    """Return an object as a binary file: seekable, read-only, cached in blocks by the node, whatever its size.

    A file on a local disk that is below no root is opened as Python does, because it is as quick as the cache.

    Args:
        url_or_path: A file, ``s3://``, ``gs://``, ``az://``, ``http(s)://`` or ``sampleset://NAME/PATH``. Names of objects are taken
            as they are, except that those of web servers are percent-encoded. A query, such as that of a presigned URL, is sent and
            shown nowhere; parameters that sign are no part of the object's identity.
        mode: ``rb``.
        readahead: True: all of it is read in order, and is read ahead from the first read on. False: nothing is read ahead.
            None: as the reads show.
        config: Settings; defaults to those in force in the process.

    Raises:
        ObjectNotFoundError: There is no such object.
        ObjectChangedError: Raised by reads: the object is of another version by now; ``errno`` is ``ESTALE``.
        SourceError: The origin's own error.
        ConfigError: Another mode, or the URL of a web server with a fragment.
    """
    if mode not in _MODES:
        raise ConfigError(f"mode {mode!r} is not possible: prefeed only reads; write 'rb'")
    settings = settings_of(config)
    named = is_named(url_or_path)
    url, settings = resolve(os.fspath(url_or_path), settings)
    if is_read_directly(url, settings, is_in_set=named):
        return LocalFile(builtins.open(canonical_url(url), "rb", buffering=0))
    root, path = split_object(url)
    blocks = blocks_of(settings)
    return BlockFile(blocks.open(root, path), blocks, readahead=readahead)


def is_read_directly(url: str, config: Config, *, is_in_set: bool = False) -> bool:
    """Return True for a file that the cache would not make quicker: it is on a local disk, and below no root.

    Args:
        url: URL or path of an object.
        config: Settings.
        is_in_set: It was named by a sample set.
    """
    if "://" in url and is_of_store(url):
        return False
    path = canonical_url(url)
    return is_local(path) if is_in_set else not Roots.of(config).covers(path)
