from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefeed.errors import JobError
from prefeed.transfer.entries import (
    Entry,
    is_copy,
    is_newer,
    is_same_in_store,
    key_of,
    merge_listings,
    stamp_of,
)
from prefeed.transfer.ordering import Spool, check_order, sort_on_disk

PATHS = st.sets(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=5), max_size=30)
SECOND = 10**9


def listing(paths: set[str]) -> list[Entry]:
    return [Entry(path, 1, 0) for path in sorted(paths, key=key_of)]


@given(PATHS, PATHS)
def test_two_listings_side_by_side_have_each_path_once(ours: set[str], theirs: set[str]) -> None:
    pairs = list(merge_listings(listing(ours), listing(theirs)))

    assert {our.path for our, _ in pairs if our} == ours
    assert {their.path for _, their in pairs if their} == theirs
    assert len(pairs) == len(ours | theirs)
    assert all(our.path == their.path for our, their in pairs if our and their)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 7))
def test_any_order_becomes_key_order_with_few_in_memory(paths: list[str], in_memory: int) -> None:
    listed = [Entry(path, number, 0, "e") for number, path in enumerate(paths)]

    found = list(sort_on_disk(listed, Path(tempfile.gettempdir()), in_memory=in_memory))

    assert found == sorted({one.path: one for one in listed}.values(), key=lambda one: one.path)


def test_what_was_put_by_comes_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    listed = [Entry("a\udcff", 3, 4, "e"), Entry("b", -1, 0, "", False)]
    for one in listed:
        spool.add(one)

    assert list(spool) == listed
    spool.close()


def test_a_listing_out_of_order_is_an_error() -> None:
    with pytest.raises(JobError, match="order of their names"):
        list(check_order([Entry("b", 1, 0), Entry("a", 1, 0)], "s3://b"))


def test_a_copy_says_by_its_time_which_version_it_is() -> None:
    stored = Entry("a", 5, 1_700_000_000 * SECOND, '"one"')
    copy = Entry("a", 5, stamp_of(stored) or 0)

    assert copy.mtime_ns // SECOND == 1_700_000_000
    assert is_copy(stored, copy, step_ns=1)
    assert not is_copy(stored._replace(etag='"two"'), copy, step_ns=1)
    assert is_copy(stored._replace(etag='"two"'), copy, step_ns=SECOND)
    assert not is_copy(stored._replace(size_bytes=6), copy, step_ns=1)
    assert not is_copy(stored, copy._replace(is_file=False), step_ns=1)


def test_in_a_store_digests_count_and_else_times() -> None:
    one, two = f'"{"1" * 32}"', f'"{"2" * 32}"'

    assert is_same_in_store(Entry("a", 5, 9, one), Entry("a", 5, 1, one))
    assert not is_same_in_store(Entry("a", 5, 1, one), Entry("a", 5, 9, two))
    assert is_same_in_store(Entry("a", 5, 1), Entry("a", 5, 9, two))
    assert not is_same_in_store(Entry("a", 5, 10), Entry("a", 5, 9, two))
    assert not is_same_in_store(Entry("a", 4, 1), Entry("a", 5, 9, two))


def test_newer_is_by_whole_seconds() -> None:
    assert is_newer(Entry("a", 1, 2 * SECOND), Entry("a", 1, 2 * SECOND - 1))
    assert not is_newer(Entry("a", 1, 2 * SECOND + 5), Entry("a", 1, 2 * SECOND))
