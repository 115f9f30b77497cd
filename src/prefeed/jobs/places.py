"""Places of a job, which are given as URLs, paths or sample sets. Start with ``locate_place``."""

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
    """Check that a URL contains no credentials, which process lists and records would show.

    Raises:
        JobSpecError: The URL contains credentials.
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
        JobSpecError: The URL is empty, contains credentials, is a pack, or contains a part that clients of stores normalize. For
            example ``s3://b//x`` is read as ``s3://b/x``, so that an overlap of two places would not be detected.
        UnknownSchemeError, ConfigError: The URL is not supported.
    """
    refuse_credentials(url)
    if not url.strip():
        raise JobSpecError("a place is empty, perhaps because a variable is not set; the current directory is .")
    return require_root(canonical_url(url))


def require_root(root: str) -> str:
    """Check that a canonical URL can be a place of a job, and return it. Raises as ``root_of``."""
    if root.startswith((PACK, BLOCKS)):
        raise JobSpecError(f"{root} is a pack, or lists blocks: name its directory, to use its files as plain files")
    prefix = root.partition("://")[2].partition("/")[2]
    reason = why_unsafe(prefix) if prefix and root.startswith(WRITABLE) else None
    if reason is not None:
        raise JobSpecError(f"{root}: the path in the bucket {reason}; write it without")
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLocation:
    """Resolved place of a job.

    Attributes:
        url: Canonical URL.
        settings: Settings of the node of its set, or of this home.
        sample_set: Set that the place was given as, or that the job is for; None without a set.
    """

    url: str
    settings: Config
    sample_set: SampleSet | None = None


def locate_place(url: str, config: Config) -> JobLocation:
    """Resolve a URL, path or ``sampleset://`` name into a place.

    Raises:
        JobSpecError, UnknownSchemeError, ConfigError: As ``root_of``.
        SampleSetNotFoundError: No such set exists.
    """
    if not is_named(url):
        return JobLocation(url=root_of(url), settings=config)
    found, path = find_named(url, config)
    return place_in(found, found.settings(config), path)


def place_in(found: SampleSet, settings: Config, path: str = "") -> JobLocation:
    """Return a place in a sample set with these settings. Raises as ``root_of``."""
    return JobLocation(url=root_of(found.url_of(path)), settings=settings, sample_set=found)


@contextlib.contextmanager
def lock_job_sets(*places: JobLocation, sample_set: SampleSet | None = None) -> Iterator[None]:
    """Lock the sets of a job, so that no other job runs on them and none is deleted.

    Raises:
        SampleSetNotFoundError: A set was deleted since it was resolved.
    """
    sets = [sample_set, *(place.sample_set for place in places)]
    found = {one.name: one for one in sets if one is not None}
    with contextlib.ExitStack() as stack:
        for name in sorted(found):  # The same order in all jobs prevents deadlocks.
            stack.enter_context(lock_recorded(found[name]))
        yield
