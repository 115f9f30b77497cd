"""Resolve ``sampleset://NAME/PATH`` to the URL of the data and the settings of the set's node."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import lru_cache
from typing import Final

from prefeed.config import SAMPLE_SET, Config
from prefeed.errors import ConfigError, SpecError
from prefeed.sampleset.records import SampleSet, find
from prefeed.sources.urls import BLOCKS, blocks_url

SCHEME: Final = SAMPLE_SET


def is_named(url: str | os.PathLike[str]) -> bool:
    """Return True if a URL names a sample set or a path in one."""
    return os.fspath(url).startswith(SCHEME)


def resolve(url: str, config: Config) -> tuple[str, Config]:
    """Return the URL of the data and the settings of its node. Other URLs are returned unchanged.

    The result is the same in all processes of the home, so that they use the same node.

    Args:
        url: ``sampleset://imagenet/train``, the same in blocks, or any other URL or path.
        config: Settings in force, whose home contains the sets.

    Raises:
        SampleSetNotFoundError: No such set exists.
        SpecError: The URL has no valid name after ``sampleset://``, or its path leads out of the set.
    """
    if url.startswith(BLOCKS + SCHEME):
        where, config = resolve(url[len(BLOCKS) :], config)
        return blocks_url(where), config
    if not is_named(url):
        return url, config
    found, path = find_named(url, config)
    return found.url_of(path), _settings_of(found, config)


@lru_cache(maxsize=64)
def _settings_of(found: SampleSet, config: Config) -> Config:
    return found.settings(config)


def resolve_roots(config: Config) -> Config:
    """Replace a sample set among the roots by its directory. The node of the set then serves all roots.

    Raises:
        SampleSetNotFoundError: No such set exists.
        ConfigError: The set is not in a directory, or the roots name two sets.
    """
    named = [root for root in config.roots or () if is_named(root)]
    if not named:
        return config
    found = {root: find_named(root, config) for root in named}
    sets = {one.name: one for one, _ in found.values()}
    if len(sets) > 1:
        raise ConfigError(
            f"PREFEED_ROOTS names the sample sets {' and '.join(sorted(sets))}, and files opened by path are cached by one node: "
            "name one of them"
        )
    roots = tuple(_directory(*found[root]) if root in found else root for root in config.roots or ())
    (only,) = sets.values()
    return replace(only.settings(config), roots=roots)


def find_named(url: str, config: Config) -> tuple[SampleSet, str]:
    """Return the set that a URL names, and the path in it, which is empty for the whole set.

    Raises:
        SampleSetNotFoundError: No such set exists.
        SpecError: The URL has no valid name, or its path leads out of the set.
    """
    name, _, path = os.fspath(url)[len(SCHEME) :].partition("/")
    if not name:
        raise SpecError(f"{url} names no sample set; write {SCHEME}NAME/PATH")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise SpecError(f"{url} leads out of the sample set; write its path without ..")
    return find(name, config), "/".join(parts)


def _directory(found: SampleSet, path: str) -> str:
    url = found.url_of(path)
    if not url.startswith("/"):
        raise ConfigError(
            f"PREFEED_ROOTS names the sample set {found.name}, which is in {url}: its objects cannot be opened by path. Read them "
            f'with prefeed.datasets, as in prefeed.datasets.ImageFolder("{SCHEME}{found.name}"), or make a copy with '
            "`prefeed stage`"
        )
    return url
