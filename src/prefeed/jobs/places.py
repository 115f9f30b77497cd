"""Roots of jobs: a directory or a place in an object store, as something to read from, to write to, to remove from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from prefeed.config import Config
from prefeed.copying.engine import Sink
from prefeed.copying.names import why_unsafe
from prefeed.errors import JobSpecError, ObjectNotFoundError
from prefeed.jobs.directory_place import DirectoryPlace
from prefeed.jobs.entries import Listed
from prefeed.jobs.patterns import Rules
from prefeed.jobs.store_place import WRITABLE, HttpPlace, StorePlace
from prefeed.sampleset.locations import without_keys
from prefeed.sampleset.names import find_named, is_named
from prefeed.sampleset.records import SampleSet, working_at
from prefeed.sources.protocol import RangeSource
from prefeed.sources.urls import PACK, canonical_url
from prefeed.system.paths import really_in


class Root(Protocol):
    """What every place is: something to list and read. **Ownership**: whoever opens it closes it.

    Attributes:
        url: Canonical URL.
        has_times: Whether its listings say when an object was changed.
    """

    url: str
    has_times: bool

    def list_in_order(self, rules: Rules) -> Iterator[Listed]:
        """Yield what the rules take, in key order.

        Raises:
            SourceError: It cannot be listed.
        """
        ...

    def source(self) -> RangeSource:
        """Return what reads it; closed with the place."""
        ...

    def remove_unchanged(self, listed: Iterable[Listed]) -> Iterator[tuple[Listed, str]]:
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

    def list_target(self, rules: Rules) -> Iterator[Listed]:
        """As ``list_in_order``, for what is to be written over: nothing is followed, and it may not be there yet."""
        ...

    def is_same(self, source: Listed, found: Listed) -> bool:
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
    """A sink that is told beforehand what is coming. **Threads**: ``expect`` from one, ``write`` from many.

    Attributes:
        num_same: Objects that were left alone, having the same bytes already.
        bytes_same: Their size.
        folds_case: Whether ``A`` and ``a`` are one name there.
    """

    num_same: int
    bytes_same: int
    folds_case: bool

    def expect(self, listed: Listed, *, compare: bool) -> None:
        """An object is coming; ``compare``: it is left alone where the same bytes are there."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Canonical URLs of both ends of a sync."""

    source: str
    target: str


def refuse_credentials(url: str) -> None:
    """Refuse a URL that has credentials in it: it would be seen in process lists and records.

    Raises:
        JobSpecError: It does.
    """
    place = without_keys(url) if "://" in url else None
    if place is not None:
        raise JobSpecError(
            f"{place} was given with credentials in it, which every process on this machine could read: "
            "put them into credentials.json in the home (mode 0600), or into the environment, and name the URL without them"
        )


def root_of(url: str) -> str:
    """Return the canonical URL of a place of a job.

    Raises:
        JobSpecError: It is empty, has credentials in it, is a pack, or has a part that clients of stores leave out or take for another:
            ``s3://b//x`` is read as ``s3://b/x``, and two spellings of one place would not be seen to be one.
        UnknownSchemeError, ConfigError: It is no place that is known.
    """
    refuse_credentials(url)
    if not url.strip():
        raise JobSpecError(
            "a place is empty, perhaps of a variable that is not set; the directory that you are in is ."
        )
    return require_root(canonical_url(url))


def require_root(root: str) -> str:
    """Return a canonical URL that can be a place of a job; raises as ``root_of``."""
    if root.startswith(PACK):
        raise JobSpecError(f"{root} is a pack: name the directory that it lies in, and its files are treated as files")
    prefix = root.partition("://")[2].partition("/")[2]
    reason = why_unsafe(prefix) if prefix and root.startswith(WRITABLE) else None
    if reason is not None:
        raise JobSpecError(f"{root}: the path in the bucket {reason}; write it without")
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place of a job, looked up once.

    Attributes:
        url: Canonical URL.
        settings: What is in force there: those of the node of its set, or of this home.
        sample_set: The set that it was named by, or that the job is done for; None: none.
    """

    url: str
    settings: Config
    sample_set: SampleSet | None = None


def located(url: str, config: Config) -> Place:
    """Return a place, which may be named by a sample set.

    Raises:
        JobSpecError, UnknownSchemeError, ConfigError: As ``root_of``.
        SampleSetNotFoundError: There is no such set.
    """
    if not is_named(url):
        return Place(url=root_of(url), settings=config)
    found, path = find_named(url, config)
    return place_in(found, found.settings(config), path)


def place_in(found: SampleSet, settings: Config, path: str = "") -> Place:
    """Return a place in a sample set, whose settings these are; raises as ``root_of``."""
    return Place(url=root_of(found.url_of(path)), settings=settings, sample_set=found)


@contextlib.contextmanager
def held_sets(*places: Place) -> Iterator[None]:
    """No other job works at the sample sets that these places were named by, nor is one of them deleted."""
    found = {place.sample_set.name: place.sample_set for place in places if place.sample_set is not None}
    with contextlib.ExitStack() as stack:
        for name in sorted(found):  # in one order, or two jobs would wait for each other
            stack.enter_context(working_at(found[name]))
        yield


def open_root(root: str, config: Config) -> Root:
    """Return a place to read from; nothing is asked yet.

    Raises:
        ObjectNotFoundError: A directory that is not there.
    """
    if root.startswith("/"):
        if not os.path.isdir(root):
            raise ObjectNotFoundError(
                f"{root} is no directory; check the path, and that the storage is mounted", path=root
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


def refuse_overlap(ends: Ends) -> None:
    """Refuse places of which one lies in the other.

    Raises:
        JobSpecError: They do, or are the same.
    """
    lies = really_in(ends.source, ends.target), really_in(ends.target, ends.source)
    if all(lies):
        raise JobSpecError(f"{ends.source} and {ends.target} are the same place")
    if any(lies):
        raise JobSpecError(f"{ends.source} and {ends.target} lie in one another: name places beside each other")
