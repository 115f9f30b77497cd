"""What an origin has of one object: small ones whole, large ones piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

from prefeed.errors import SourceError, TruncatedBodyError
from prefeed.sources.answers import require_listed
from prefeed.sources.listing import Listed
from prefeed.sources.manifest import version_hash
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import RangeSource, Source
from prefeed.types import Buffer, ObjectInfo

PIECE_BYTES: Final = 16 * 1024**2
"""Larger objects are not held in memory as a whole, where the source can read a part of one."""


class WholeBody:
    """An object in memory."""

    def __init__(self, data: Buffer, version: str) -> None:
        self._data = data
        self.version = version
        self.size_bytes = memoryview(data).nbytes

    def chunks(self) -> Iterator[Buffer]:
        """Yield all of it."""
        yield self._data


class PiecewiseBody:
    """An object whose pieces are asked for one after another, all of the version that was listed."""

    def __init__(self, source: RangeSource, info: ObjectInfo) -> None:
        self._source = source
        self._info = info
        self.version = info.version
        self.size_bytes = info.size_bytes

    def chunks(self) -> Iterator[Buffer]:
        """Yield the pieces in order; see ``Body.chunks``."""
        for start in range(0, self.size_bytes, PIECE_BYTES):
            yield self._piece(start, min(PIECE_BYTES, self.size_bytes - start))
        self._piece(0, 1)  # a file may have changed while its last piece was read

    def _piece(self, start: int, size_bytes: int) -> Buffer:
        path = self._info.path
        piece = self._source.fetch_range(path, start, size_bytes)
        if piece.version != self.version:
            raise TruncatedBodyError(
                f"{self._source.locate(path)} changed while it was copied; do not write to training data meanwhile",
                path=path,
            )
        return piece.data


def open_body(source: Source, info: ObjectInfo) -> WholeBody | PiecewiseBody:
    """Return the object as it is at the origin now.

    Raises:
        WrongAnswerError: It has another size than was listed, though not another version.
        SourceError: The origin's own.
    """
    if info.size_bytes > PIECE_BYTES and info.version and hasattr(source, "fetch_range"):
        ranged = cast(RangeSource, source)
        if _has_listed_version(ranged, info):
            return PiecewiseBody(ranged, info)
    return _whole(source, info)


def _has_listed_version(source: RangeSource, info: ObjectInfo) -> bool:
    """Return False also for servers that cannot send a part."""
    try:
        return source.fetch_range(info.path, 0, 1).version == info.version
    except SourceError as err:
        if err.retryable:
            raise
        return False


def _whole(source: Source, info: ObjectInfo) -> WholeBody:
    fetched = source.fetch(info.path)
    # A file's time goes with its bytes. A store's version stays as it was listed: some spell it differently there.
    version = fetched.version if isinstance(source, PosixSource) else info.version or fetched.version
    require_listed(fetched, Listed(info.size_bytes, version_hash(info.version)), lambda: source.locate(info.path))
    return WholeBody(fetched.data, version)
