"""Adds the scheme ``prefeed:s3://bucket/shard.tar`` to WebDataset: cached reads and prefetching for unchanged pipelines.

WebDataset's own stages draw the order of the shards from separate random generators, so the order can be read ahead without a change
to the samples. If a pipeline has another stage before the opener, shards are not prefetched, because the stage may draw from a
generator that transforms use too. Start with ``register``.
"""

from __future__ import annotations

import io
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from itertools import chain, islice
from types import GeneratorType
from typing import Any, BinaryIO, Final

from prefeed.after_import import after_import
from prefeed.client.block_file import BlockFile
from prefeed.config import current
from prefeed.files.opening import open as open_object
from prefeed.files.shards import File, FilePrefetcher

_SCHEME: Final = "prefeed"
_GOPEN: Final = "webdataset.gopen"
_CACHE: Final = "webdataset.cache"
_BUFFER_BYTES: Final = 512 * 1024
_GLOBAL: Final = getattr(random.random, "__self__", None)
"""Generator of the module-level functions of ``random``."""


def register() -> None:
    """Add the scheme ``prefeed:`` to WebDataset, now or when it is imported. Idempotent."""
    after_import(_GOPEN, _add_scheme)
    after_import(_CACHE, _patch_opener)


def _add_scheme() -> None:
    sys.modules[_GOPEN].gopen_schemes.setdefault(_SCHEME, _gopen)


def _patch_opener() -> None:
    with suppress(ImportError):  # Import before workers are forked, so that they do not import it in each epoch.
        import_module("prefeed.sources.objectstore")
    opener = getattr(
        sys.modules[_CACHE], "StreamingOpen", None
    )  # Other versions lack the class, and shards are not prefetched.
    original = getattr(opener, "__call__", None)  # noqa: B004 - it is replaced
    if opener is None or original is None or hasattr(original, "of_webdataset"):
        return

    def opened(self: Any, urls: Iterable[Any]) -> Iterator[dict[str, Any]]:
        return _open_in_order(self, original, urls)

    opened.of_webdataset = original  # type: ignore[attr-defined]
    opener.__call__ = opened


def _gopen(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> BinaryIO:
    """Open a shard with read-ahead of the whole shard. Registered in ``gopen_schemes``.

    Args:
        url: ``prefeed:``, ``prefeed::`` or ``prefeed://``, and the URL of the shard.
        mode: Mode, ``rb``.
        bufsize: Ignored.
    """
    return _buffer(_open(url, mode))


def _open(url: str, mode: str = "rb") -> File:
    return open_object(inner_url(url), mode, readahead=True)


def _buffer(file: File) -> BinaryIO:
    """Add a buffer to a file, because it serves tarfile's reads of 10 KB ten times faster than ``BlockFile``."""
    return io.BufferedReader(file, _BUFFER_BYTES) if isinstance(file, BlockFile) else file


def block_file_of(stream: Any) -> BlockFile | None:
    """Return the ``BlockFile`` that a shard's stream reads, or None."""
    raw = getattr(stream, "raw", None)
    return raw if isinstance(raw, BlockFile) else None


def inner_url(url: str) -> str:
    """Return the URL of a shard without ``prefeed:``."""
    return url.removeprefix(f"{_SCHEME}://").removeprefix(f"{_SCHEME}::").removeprefix(f"{_SCHEME}:")


def _open_in_order(
    opener: Any, original: Callable[..., Iterator[dict[str, Any]]], urls: Iterable[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the URL and the stream of each shard, like WebDataset's own stage, with prefetching."""
    is_known = _has_own_randomness(urls)
    items = iter(urls)
    first = list(islice(items, 1))
    if not (first and is_known and _is_ours(first[0])):
        yield from original(opener, chain(first, items))
        return
    stream = None
    ahead = FilePrefetcher(chain(first, items), lambda item: _open(url_of(item)) if _is_ours(item) else None, current())
    try:
        for item, stream in ahead:
            if stream is None:
                yield from original(opener, [item])
            elif not isinstance(stream, Exception):
                yield {"url": url_of(item), "stream": _buffer(stream)}
            elif not opener.handler(stream):
                return
    finally:
        del stream  # An error and this frame would form a reference cycle.
        ahead.close()


class KnownOrder(Iterator[Any]):
    """Iterator of shards whose order can be read ahead, because it uses no shared random generator."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __next__(self) -> Any:
        return next(self._items)


def url_of(item: Any) -> str:
    """Return the URL of an item that the stages before the opener yield."""
    return str(item["url"] if isinstance(item, dict) else item)


def _is_ours(item: Any) -> bool:
    return url_of(item).startswith(f"{_SCHEME}:")


def _has_own_randomness(stream: Any) -> bool:
    """Return True if an order comes only from WebDataset's own stages with separate generators. Consumes nothing."""
    if isinstance(stream, list | KnownOrder):
        return True
    if not isinstance(stream, GeneratorType):
        return False
    package = os.path.dirname(sys.modules[_GOPEN].__file__ or "")
    if not stream.gi_code.co_filename.startswith(package + os.sep) or stream.gi_frame is None:
        return False
    for value in stream.gi_frame.f_locals.values():
        if value is random or value is _GLOBAL:
            return False
        is_stage = isinstance(value, Iterator) and not isinstance(value, random.Random)
        if is_stage and not _has_own_randomness(value):
            return False
    return True
