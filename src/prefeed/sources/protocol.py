"""What a source is: the adapter that lists and reads one origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from prefeed.errors import SourceError
from prefeed.sources.quick_fetches import QuickOrigin
from prefeed.types import FetchedObject, ObjectInfo


class Source(Protocol):
    """Reads one origin, and never writes to it.

    **Threads and processes.** ``fetch`` may be called from many threads at once. A source opened before a
    fork is not used after it: native handles are opened lazily, per process.
    """

    url: str
    """Canonical URL of the root, without credentials; part of every entry key."""

    @property
    def mark(self) -> str:
        """What tells the origin from others that have the same URL, as hexadecimal digits; part of every entry key.

        Empty where there are none: the versions of files say which file system they are on.
        """
        ...

    def list_objects(self) -> Iterator[list[ObjectInfo]]:
        """Yield every object below the root, in batches, in any order.

        Raises:
            ObjectNotFoundError: The root does not exist.
            AccessDeniedError: The origin refuses to list.
            CannotListError: The origin has no listing; the message says how to give it an index.
            TransientSourceError: The origin did not answer.
        """
        ...

    def fetch(self, path: str) -> FetchedObject:
        """Return the whole object with one request, blocking until it is there; no retries.

        Raises:
            ObjectNotFoundError, AccessDeniedError: Permanent; the message holds the full path or URL.
            ThrottledError, TruncatedBodyError, TransientSourceError: The next try may succeed.
        """
        ...

    def locate(self, path: str) -> str:
        """Return the full path or URL of an object, for messages."""
        ...

    def close(self) -> None:
        """Release connections; the source is not used afterwards."""
        ...


class QuickSource(Source, Protocol):
    """A source whose objects a ``QuickClient`` may fetch, in another process, where the answers are plain."""

    def quick_origin(self) -> QuickOrigin | None:
        """Return who is asked; None while only ``fetch`` can."""
        ...

    def quick_target(self, path: str) -> bytes:
        """Return what the request for an object names."""
        ...

    def quick_failure(self, path: str, failure: str) -> SourceError | None:
        """Return the error that stands for a failure of the client; None when ``fetch`` may do better, or says more."""
        ...


class RangeSource(Source, Protocol):
    """A source whose objects can be read in parts: what a pack lies on."""

    def fetch_range(self, path: str, offset: int, size_bytes: int) -> FetchedObject:
        """Return ``size_bytes`` bytes of an object from ``offset`` on, with one request; no retries.

        The version is that of the whole object.

        Raises:
            TruncatedBodyError: The object ends before that.
            ObjectNotFoundError, AccessDeniedError, ThrottledError, TransientSourceError: As ``fetch``.
        """
        ...


class BrowsableSource(RangeSource, Protocol):
    """A source whose objects can also be asked for one by one, and whose directories can be listed one by one."""

    def info(self, path: str) -> ObjectInfo:
        """Return size and version that an object has now, without reading it.

        Raises:
            ObjectNotFoundError: There is no such object; a directory is none.
            SourceError: As ``fetch``.
        """
        ...

    def list_level(self, path: str) -> tuple[list[ObjectInfo], list[str]]:
        """Return the objects right below a directory, and the paths of the directories there; ``""`` is the root.

        Both are empty where nothing lies below. The marker of the directory, in a store that has one, is listed with the path itself.

        Raises:
            SourceError: See ``list_objects``.
        """
        ...
