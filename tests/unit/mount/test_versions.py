"""The version that was seen first of an object stays that of the mount, for the next daemon as well."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from prefeed.mount.versions import FirstVersions


@pytest.fixture
def record() -> Iterator[int]:
    record = os.memfd_create("test")
    try:
        yield record
    finally:
        os.close(record)


def test_the_first_version_stays(record: int) -> None:
    seen = FirstVersions(record)
    assert [seen.get_or_set(number, number + 1) for number in (5, 0, 1 << 60)] == [6, 1, (1 << 60) + 1]
    assert [seen.get_or_set(number, (1 << 64) - 1) for number in (5, 0, 1 << 60)] == [6, 1, (1 << 60) + 1]


def test_the_next_daemon_knows_it(record: int) -> None:
    for number in range(1000):
        assert FirstVersions(record).get_or_set(number % 10, number) == number % 10
    assert os.fstat(record).st_size == 10 * 16


def test_what_a_daemon_had_not_noted_when_it_was_killed_is_not_known(record: int) -> None:
    FirstVersions(record).get_or_set(1, 2)
    os.pwrite(record, b"\xff" * 15, 16)
    seen = FirstVersions(record)
    assert seen.get_or_set(3, 4) == 4
    assert FirstVersions(record).get_or_set(3, 5) == 4
    assert FirstVersions(record).get_or_set(1, 5) == 2
