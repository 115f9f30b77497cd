"""Reading an origin ahead of who packs it: many requests at once, bytes bounded, order kept."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from prefeed.errors import PackSourceChangedError
from prefeed.sources.answers import patiently
from prefeed.sources.manifest import Manifest, version_hash
from prefeed.sources.protocol import Source
from prefeed.types import Buffer

_THREADS: Final = 32
_AHEAD_BYTES: Final = 256 * 1024**2
_AHEAD_OBJECTS: Final = 512
_UNKNOWN_BYTES: Final = 1024**2
"""What an object counts of which the listing has no size."""


def read_ahead(
    source: Source, manifest: Manifest, ids: Iterable[int], *, deadline_seconds: float
) -> Generator[tuple[int, Buffer], None, None]:
    """Yield the bytes of these objects, in this order.

    Raises:
        PackSourceChangedError: One is not what was listed.
        SourceError: One cannot be read.
    """

    def fetch(object_id: int) -> Buffer:
        fetched = patiently(
            lambda: source.fetch(manifest.path(object_id)), deadline_seconds=deadline_seconds, stopped=stopped
        )
        check_unchanged(source, manifest, object_id, version=fetched.version, size_bytes=len(fetched.data))
        return fetched.data

    stopped = threading.Event()
    waiting: deque[tuple[int, int, Future[Buffer]]] = deque()
    ahead_bytes = 0
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefeed-pack")
    try:
        for object_id in ids:
            expected = manifest.size(object_id)
            size = _UNKNOWN_BYTES if expected is None else expected
            while waiting and (ahead_bytes + size > _AHEAD_BYTES or len(waiting) >= _AHEAD_OBJECTS):
                first, first_size, future = waiting.popleft()
                yield first, future.result()
                ahead_bytes -= first_size
            waiting.append((object_id, size, pool.submit(fetch, object_id)))
            ahead_bytes += size
        while waiting:
            first, _, future = waiting.popleft()
            yield first, future.result()
    finally:
        stopped.set()  # Ctrl-C, or a permanent error, does not wait for what the origin may still answer
        pool.shutdown(cancel_futures=True)


def check_unchanged(source: Source, manifest: Manifest, object_id: int, *, version: str, size_bytes: int) -> None:
    """Check that what was read is what the listing says.

    Raises:
        PackSourceChangedError: It is not.
    """
    listed_size, listed = manifest.size(object_id), manifest.version_hash(object_id)
    is_other = bool(listed) and bool(version) and version_hash(version) != listed
    if is_other or listed_size not in (None, size_bytes):
        where = source.locate(manifest.path(object_id))
        raise PackSourceChangedError(
            f"{where} changed after it was listed: run the same command again; what is packed and unchanged stays",
            path=where,
        )
