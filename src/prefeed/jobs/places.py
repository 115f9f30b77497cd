"""The places of a job, as they are named: URLs, paths, sample sets."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from prefeed.config import Config
from prefeed.errors import JobSpecError
from prefeed.sampleset.locations import without_keys
from prefeed.sampleset.names import find_named, is_named, resolve
from prefeed.sampleset.records import working_at
from prefeed.sources.urls import PACK, canonical_url
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
    root = canonical_url(url)
    if root.startswith(PACK):
        raise JobSpecError(f"{root} is a pack: name the directory that it lies in, and its files are treated as files")
    prefix = root.partition("://")[2].partition("/")[2]
    reason = why_unsafe(prefix) if prefix and root.startswith(WRITABLE) else None
    if reason is not None:
        raise JobSpecError(f"{root}: the path in the bucket {reason}; write it without")
    return root


def located(url: str, config: Config) -> tuple[str, Config]:
    """Return the canonical URL of a place, which may be named by a sample set, and the settings that go with it.

    Raises:
        JobSpecError, UnknownSchemeError, ConfigError: As ``root_of``.
        SampleSetNotFoundError: There is no such set.
    """
    refuse_credentials(url)
    found, settings = resolve(url, config)
    return root_of(found), settings


@contextlib.contextmanager
def held_sets(urls: Iterable[str], config: Config) -> Iterator[None]:
    """No other job works at the sample sets that these URLs name, nor is one of them deleted."""
    found = {one.name: one for one in (find_named(url, config) for url in urls if is_named(url))}
    with contextlib.ExitStack() as stack:
        for name in sorted(found):  # in one order, or two jobs would wait for each other
            stack.enter_context(working_at(found[name]))
        yield
