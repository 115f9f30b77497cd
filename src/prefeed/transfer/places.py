"""Defines the interfaces of places that jobs read and change, and opens places.

A place is a directory, a prefix of an object store, or a web server. Start with ``open_root`` and ``open_target``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from prefeed.config import Config
from prefeed.errors import JobSpecError, ObjectNotFoundError
from prefeed.sources.protocol import RangeSource
from prefeed.transfer.directory import DirectoryPlace
from prefeed.transfer.engine import Sink
from prefeed.transfer.entries import Entry
from prefeed.transfer.patterns import Rules
from prefeed.transfer.store import WRITABLE, HttpPlace, StorePlace


class Root(Protocol):
    """A place that can be listed and read. **Ownership**: the caller that opened it closes it.

    Attributes:
        url: Canonical URL.
        has_times: True if listings include the time of the last change.
    """

    url: str
    has_times: bool

    def list_in_order(self, rules: Rules) -> Iterator[Entry]:
        """List the objects that the rules include, in key order.

        Raises:
            SourceError: The listing failed.
        """
        ...

    def source(self) -> RangeSource:
        """Return a source that reads the objects. It is closed with the place."""
        ...

    def describe_left_out(self, entries: Iterable[Entry]) -> str:
        """Describe which of these missing entries the last listing may have overlooked; empty if none.

        Raises:
            SourceError: The origin does not respond.
        """
        ...

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
        """Remove entries that are unchanged since their listing. Yield each with the reason if it remains, else ``""``.

        Raises:
            SourceError, JobError: No further object can be removed.
        """
        ...

    def close(self) -> None:
        """Close descriptors and connections."""
        ...


class Target(Root, Protocol):
    """A place that can also be written to."""

    def list_target(self, rules: Rules) -> Iterator[Entry]:
        """List existing objects as ``list_in_order`` does, without following links. A missing place is empty."""
        ...

    def why_unwritable(self, path: str) -> str | None:
        """Return why no object of this path can be stored here; None if it can."""
        ...

    def is_same(self, source: Entry, found: Entry) -> bool:
        """Return whether the object found here is a copy of the source's."""
        ...

    def open_sink(self, origin: RangeSource, *, perms: bool, durable: bool = False) -> TargetSink:
        """Open the sink of a sync, which has exclusive use of the place.

        Args:
            origin: Source of the objects.
            perms: True to copy mode and owner.
            durable: True to sync each file before it gets its name, and to allow ``make_durable``.

        Raises:
            JobConflictError: Another sync writes there.
        """
        ...


class TargetSink(Sink, Protocol):
    """Sink that does not rewrite identical objects. **Threads**: ``expect_same`` from one, ``write`` from many.

    Attributes:
        num_same: Objects that were identical and not rewritten.
        bytes_same: Their size in bytes.
        folds_case: True if ``A`` and ``a`` are the same name.
    """

    num_same: int
    bytes_same: int
    folds_case: bool

    def expect_same(self, path: str) -> None:
        """Announce an object that may be identical at the destination, so that ``write`` compares it first."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory. Does nothing in a store."""
        ...

    def make_durable(self) -> None:
        """Sync everything that was written or found identical, so that it survives a power failure.

        Raises:
            JobError: Syncing failed.
        """
        ...

    def close(self) -> None:
        """Remove unfinished files and release the place."""
        ...


def open_root(root: str, config: Config) -> Root:
    """Open a place to read from. No request is sent yet.

    Raises:
        ObjectNotFoundError: The directory does not exist.
    """
    if root.startswith("/"):
        if not os.path.isdir(root):
            raise ObjectNotFoundError(
                f"{root} is not a directory; check the path, and that the storage is mounted", path=root
            )
        return DirectoryPlace(root)
    return StorePlace(root, config) if root.startswith(WRITABLE) else HttpPlace(root, config)


def open_target(root: str, config: Config, *, make: bool) -> Target:
    """Open a place to write to.

    Args:
        root: Canonical URL.
        config: Settings.
        make: True to create the directory if it does not exist.

    Raises:
        JobSpecError: The place is not writable.
    """
    if root.startswith("/"):
        return DirectoryPlace(root, make=make)
    if root.startswith(WRITABLE):
        return StorePlace(root, config)
    raise JobSpecError(f"{root} cannot be written to; a destination is a directory, or s3://, gs:// or az://")
