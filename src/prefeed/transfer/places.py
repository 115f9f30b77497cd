"""What can be listed, read, written to and removed from: a directory, a place in an object store, a web server."""

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
    """What every place is: something to list and read. **Ownership**: its opener closes it.

    Attributes:
        url: Canonical URL.
        has_times: Whether its listings say when an object was changed.
    """

    url: str
    has_times: bool

    def list_in_order(self, rules: Rules) -> Iterator[Entry]:
        """Yield what the rules take, in key order.

        Raises:
            SourceError: It cannot be listed.
        """
        ...

    def source(self) -> RangeSource:
        """Return what reads it; closed with the place."""
        ...

    def describe_left_out(self, entries: Iterable[Entry]) -> str:
        """Return what the last listing may have left out of these entries, which it does not have; empty if nothing.

        Raises:
            SourceError: The origin does not answer.
        """
        ...

    def remove_unchanged(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
        """Remove those that are as they were listed; yield each with why it is still there, or an empty text.

        Raises:
            SourceError, JobError: Nothing more can be removed.
        """
        ...

    def close(self) -> None:
        """Let go of descriptors and connections."""
        ...


class Target(Root, Protocol):
    """A place that can be written to."""

    def list_target(self, rules: Rules) -> Iterator[Entry]:
        """As ``list_in_order``, for what is to be written over: nothing is followed, and it may not be there yet."""
        ...

    def why_unwritable(self, path: str) -> str | None:
        """Return why nothing of this path can be there; None when it can."""
        ...

    def is_same(self, source: Entry, found: Entry) -> bool:
        """Return whether what was found here is a copy of what the source lists."""
        ...

    def open_sink(self, origin: RangeSource, *, perms: bool, durable: bool = False) -> TargetSink:
        """Return the sink of one sync, which has the place to itself.

        Args:
            origin: What the objects are read from.
            perms: Files keep mode and owner.
            durable: Each file is on its disk when it has its name, and ``make_durable`` may be called in the end.

        Raises:
            JobConflictError: Another one writes there.
        """
        ...


class TargetSink(Sink, Protocol):
    """A sink that leaves alone what is there already. **Threads**: ``expect_same`` from one, ``write`` from many.

    Attributes:
        num_same: Objects that were left alone, having the same bytes already.
        bytes_same: Their size.
        folds_case: Whether ``A`` and ``a`` are one name there.
    """

    num_same: int
    bytes_same: int
    folds_case: bool

    def expect_same(self, path: str) -> None:
        """An object that is coming may be there already: it is left alone where the same bytes are."""
        ...

    def make_directory(self, path: str) -> None:
        """A directory is there, where there is such a thing."""
        ...

    def make_durable(self) -> None:
        """All that was written, and all that was there already, stays when the machine loses power.

        Raises:
            JobError: It may not.
        """
        ...

    def close(self) -> None:
        """Remove what is left of unfinished ones."""
        ...


def open_root(root: str, config: Config) -> Root:
    """Return a place to read from; nothing is asked yet.

    Raises:
        ObjectNotFoundError: A directory that is not there.
    """
    if root.startswith("/"):
        if not os.path.isdir(root):
            raise ObjectNotFoundError(
                f"{root} is not a directory; check the path, and that the storage is mounted", path=root
            )
        return DirectoryPlace(root)
    return StorePlace(root, config) if root.startswith(WRITABLE) else HttpPlace(root, config)


def open_target(root: str, config: Config, *, make: bool) -> Target:
    """Return a place to write to.

    Args:
        root: Canonical URL.
        config: Settings.
        make: A directory is made if it is not there.

    Raises:
        JobSpecError: Nothing can be written there.
    """
    if root.startswith("/"):
        return DirectoryPlace(root, make=make)
    if root.startswith(WRITABLE):
        return StorePlace(root, config)
    raise JobSpecError(f"{root} cannot be written to; a destination is a directory, or s3://, gs:// or az://")
