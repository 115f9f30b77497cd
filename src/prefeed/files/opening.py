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
    """Buffered local file with the additional methods of ``BlockFile``."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return os.fstat(self.fileno()).st_size

    def read_range(self, offset: int, size: int) -> bytes:
        """Return a range of bytes, which is shorter at the end of the file. The position is unchanged.

        Raises:
            ValueError: The file is closed, or an argument is negative.
        """
        if offset < 0 or size < 0:
            raise ValueError(f"offset and size must not be negative: {offset}, {size}")
        return os.pread(self.fileno(), min(size, max(0, self.size - offset)), offset)


def open(
    url_or_path: str | os.PathLike[str],
    mode: str = "rb",
    *,
    readahead: bool | None = None,
    config: Config | None = None,
) -> BlockFile | LocalFile:
    """Open an object of any size as a read-only, seekable binary file, cached in blocks by the node.

    A file on a local disk that is below no root is opened directly, because the cache would not be faster.

    Args:
        url_or_path: A file, ``s3://``, ``gs://``, ``az://``, ``http(s)://`` or ``sampleset://NAME/PATH``. Names of objects are used
            verbatim, except that those of web servers are percent-encoded. A query, such as that of a presigned URL, is sent and
            never printed. Signing parameters are not part of the object's identity.
        mode: ``rb``.
        readahead: True to prefetch the whole object from the first read on. False for no prefetching. None to detect sequential reads.
        config: Settings; defaults to those in force in the process.

    Raises:
        ObjectNotFoundError: The object does not exist.
        ObjectChangedError: Raised by reads if the object has changed since it was opened. ``errno`` is ``ESTALE``.
        SourceError: The origin refused the request or did not respond.
        ConfigError: The mode is not ``rb``, or the URL of a web server has a fragment.
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
    """Return True for a file on a local disk below no root, because the cache would not be faster.

    Args:
        url: URL or path of an object.
        config: Settings.
        is_in_set: True if the object was given as part of a sample set, so that roots do not matter.
    """
    if "://" in url and is_of_store(url):
        return False
    path = canonical_url(url)
    return is_local(path) if is_in_set else not Roots.of(config).covers(path)
