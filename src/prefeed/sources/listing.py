"""Listings through obstore: what a store lists itself, and what stands in for it on plain HTTP servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import obstore

from prefeed.errors import AccessDeniedError, CannotListError, SourceError
from prefeed.sources.http_index import parse_index
from prefeed.sources.prefix_walk import walk_prefixes
from prefeed.sources.store_errors import NO_LENGTH, cause_of, translate
from prefeed.types import ObjectInfo

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_LIST_BATCH: Final = 1000
_INDEX_CHUNK_BYTES: Final = 4 * 1024**2


def version_of(meta: ObjectMeta) -> str:
    """Return the etag, else time and size, else ``""``: obstore gives 1970 where a server tells no time."""
    etag = meta["e_tag"]
    if etag:
        return etag
    return version_without_etag(modified_of(meta), meta["size"])


def modified_of(meta: ObjectMeta) -> int:
    """Return when the object was last changed, in seconds since 1970; 0 when the server does not say."""
    return int(meta["last_modified"].timestamp())


def version_without_etag(modified_seconds: int, size_bytes: int) -> str:
    """Return the version of an object by time and size; ``""`` without a time."""
    return f"{modified_seconds}-{size_bytes}" if modified_seconds else ""


def list_store(store: ObjectStore, prefix: str = "") -> Iterator[list[ObjectInfo]]:
    """Yield what the store lists, in batches; obstore's own errors pass through.

    A zero-byte object whose name is a directory of the next one (``train/`` before ``train/a.jpg``), as
    consoles make them, is left out.
    """
    return _without_directories(obstore.list(store, prefix or None, chunk_size=_LIST_BATCH))


def list_store_in_parallel(store: ObjectStore) -> Iterator[list[ObjectInfo]]:
    """Yield what the store lists, in any order, many prefixes at a time where that is quicker; see ``list_store``."""

    def list_level(prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        found = obstore.list_with_delimiter(store, prefix or None)
        return [_info_of(meta) for meta in found["objects"]], list(found["common_prefixes"])

    return walk_prefixes(lambda prefix: list_store(store, prefix), list_level)


def _info_of(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(
        path=meta["path"], size_bytes=meta["size"], version=version_of(meta), modified_seconds=modified_of(meta)
    )


def _without_directories(batches: Iterable[Sequence[ObjectMeta]]) -> Iterator[list[ObjectInfo]]:
    held: ObjectInfo | None = None  # A zero-byte object, kept back until the next path shows whether it is a directory.
    for batch in batches:
        objects: list[ObjectInfo] = []
        for meta in batch:
            info = _info_of(meta)
            if held is not None and not info.path.startswith(held.path + "/"):
                objects.append(held)
            held = info if info.size_bytes == 0 else None
            if held is None:
                objects.append(info)
        if objects:
            yield objects
    if held is not None:
        yield [held]


def list_http(
    store: ObjectStore, url: str, index: str, *, timeout: float, fetch_plainly: Callable[[str], bytes]
) -> Iterator[list[ObjectInfo]]:
    """Yield what the index file lists, or else what the server answers to WebDAV's PROPFIND.

    Args:
        store: Client for the whole server, not for the root alone: paths of a WebDAV listing are the server's.
        url: Canonical URL of the root.
        index: Name of the index file in it.
        timeout: Seconds one request may take, for messages.
        fetch_plainly: Returns the whole file of that name in the root, sent without a length.

    Raises:
        CannotListError: Neither is there; the message says how to make an index.
    """
    root = unquote(urlsplit(url).path).strip("/")
    found = _open_index(store, f"{root}/{index}" if root else index, lambda: fetch_plainly(index))
    if found is not None:
        yield from parse_index(found, name=f"{url}/{index}")
        return
    try:
        for batch in list_store(store, root):
            yield [replace(info, path=info.path.removeprefix(root).lstrip("/")) for info in batch]
    except Exception as err:  # noqa: BLE001 - the table of errors decides
        translated = translate(err, url, timeout=timeout)
        if not isinstance(translated, SourceError) or translated.retryable or isinstance(translated, AccessDeniedError):
            raise translated from cause_of(err)
        raise CannotListError(
            f"{url} cannot be listed: it has no {index}, and the server has no WebDAV. Make an index in the served "
            f"directory with  find . -type f -printf '%P\\t%s\\n' > {index}",
            url=url,
            index=index,
        ) from cause_of(err)


def _open_index(store: ObjectStore, index: str, fetch_plainly: Callable[[], bytes]) -> Iterable[bytes] | None:
    try:
        return obstore.get(store, index).stream(min_chunk_size=_INDEX_CHUNK_BYTES)
    except FileNotFoundError:
        return None
    except Exception as err:
        if NO_LENGTH not in str(err):
            raise
        return [fetch_plainly()]
