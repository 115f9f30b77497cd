"""The places of a job, as they are named: URLs, paths, sample sets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from prefeed.config import Config
from prefeed.errors import JobSpecError
from prefeed.sampleset.locations import without_keys
from prefeed.sampleset.names import find_named, is_named
from prefeed.sampleset.records import SampleSet, lock_recorded
from prefeed.sources.urls import BLOCKS, PACK, canonical_url
from prefeed.transfer.entries import why_unsafe
from prefeed.transfer.store import WRITABLE


def refuse_credentials(url: str) -> None:
    """Refuse a URL that has credentials in it: it would be seen in process lists and records.

    Raises:
        JobSpecError: It does.
    """
    place = without_keys(url) if "://" in url else None
    if place is not None:
        raise JobSpecError(
            f"{place} contains credentials, which every process on this machine could read: "
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
        raise JobSpecError("a place is empty, perhaps because a variable is not set; the current directory is .")
    return require_root(canonical_url(url))


def require_root(root: str) -> str:
    """Return a canonical URL that can be a place of a job; raises as ``root_of``."""
    if root.startswith((PACK, BLOCKS)):
        raise JobSpecError(f"{root} is a pack, or lists blocks: name its directory, to use its files as plain files")
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


def locate_place(url: str, config: Config) -> Place:
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
def lock_job_sets(*places: Place, sample_set: SampleSet | None = None) -> Iterator[None]:
    """No other job works at this set, or at those that these places were named by, nor is one of them deleted.

    Raises:
        SampleSetNotFoundError: One was deleted since it was looked up.
    """
    sets = [sample_set, *(place.sample_set for place in places)]
    found = {one.name: one for one in sets if one is not None}
    with contextlib.ExitStack() as stack:
        for name in sorted(found):  # in one order, or two jobs would wait for each other
            stack.enter_context(lock_recorded(found[name]))
        yield
