"""Which opens while a sample is computed are files of the sample."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator

import pytest

from prefeed.interception import reads_from, watch_opens
from prefeed.stage_cache.distributions import version_of_distribution
from prefeed.stage_cache.files_seen import FilesSeen
from prefeed.stage_cache.making import _way


@pytest.fixture(autouse=True)
def _none_known() -> Iterator[None]:
    version_of_distribution.cache_clear()
    yield
    version_of_distribution.cache_clear()


def files_of(compute: Callable[[], object]) -> list[bytes]:
    """Return the files that are noted while a function computes a sample."""
    watch_opens()
    files = FilesSeen(None, _way)
    with reads_from(files):
        compute()
    return files.note().paths


def test_versions_that_a_fingerprint_looks_up_are_no_files_of_the_sample() -> None:
    assert files_of(lambda: version_of_distribution("numpy")) == []


def test_versions_that_a_sample_looks_up_are() -> None:
    assert any(path.endswith(b"METADATA") for path in files_of(lambda: importlib.metadata.version("numpy")))
