"""Places that a tier grants to other writers: taken from the budget, found once they are published, given back otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from log_tiers import MIB, LogTier, key_of, tier_in_memory, value_of
from prefeed.errors import TierFullError
from prefeed.store.index import Place
from prefeed.store.log import TRANSIENT, LogWriter
from prefeed.store.segment import PAGE_BYTES, trailer, write_parts

KEYS = [key_of(number) for number in range(6)]
VALUE = value_of(1, 3000)


@pytest.fixture
def tier() -> Iterator[LogTier]:
    with tier_in_memory() as tier:
        yield tier


def granted(writer: LogWriter, size_bytes: int, *, transient: bool = False) -> Place:
    place = writer.grant(size_bytes, transient=transient)
    assert place is not None
    return place


def fill(tier: LogTier, key: bytes, value: bytes, place: Place) -> None:
    """Write as another process does."""
    write_parts(tier.segments[place.segment], [value, trailer(key)], place.offset)


def test_a_value_is_found_once_it_is_published(tier: LogTier) -> None:
    writer, reader = tier.writer(), tier.reader()
    places = [granted(writer, len(VALUE), transient=number == 1) for number in range(3)]
    for key, place in zip(KEYS, places, strict=False):
        fill(tier, key, VALUE, place)
    assert [reader.get(key) for key in KEYS[:3]] == [None] * 3
    assert writer.read(KEYS[0], places[0]) == VALUE
    writer.publish(list(zip(KEYS, places, strict=False)))
    assert [reader.get(key) for key in KEYS[:3]] == [VALUE] * 3
    assert {key: flag for key, _, flag in writer.entries()} == {KEYS[0]: False, KEYS[1]: True, KEYS[2]: False}
    assert [place.flags for place in places] == [0, TRANSIENT, 0]
    tier.validate(writer, dict.fromkeys(KEYS[:3], VALUE))


def test_a_grant_is_taken_from_the_budget(tier: LogTier) -> None:
    writer = tier.writer(budget_bytes=MIB)
    place = granted(writer, 700_000)
    assert writer.grant(700_000, transient=False) is None
    with pytest.raises(TierFullError, match="1048576 bytes are taken"):
        writer.put_many([(KEYS[0], bytes(700_000), False)])
    writer.release([place])
    writer.put_many([(KEYS[0], bytes(700_000), False)])
    assert writer.grant(700_000, transient=False) is None


def test_neighbours_on_a_page_stay(tier: LogTier) -> None:
    writer = tier.writer()
    first, second, third = (granted(writer, 1500) for _ in range(3))
    values = {KEYS[0]: value_of(1, 1500), KEYS[3]: value_of(3, 1000)}
    fill(tier, KEYS[0], values[KEYS[0]], first)
    fill(tier, KEYS[2], value_of(2, 1500), third)
    writer.put_many([(KEYS[3], values[KEYS[3]], False)])
    writer.release([second])
    writer.publish([(KEYS[0], first), (KEYS[2], third)])
    writer.free_many([KEYS[2]])
    tier.validate(writer, values)
    writer.free_many([*values])
    assert os.fstat(tier.segment).st_blocks == 0


def test_a_published_value_replaces_another(tier: LogTier) -> None:
    writer = tier.writer()
    writer.put_many([(KEYS[0], VALUE, False)])
    place = granted(writer, 5)
    fill(tier, KEYS[0], b"newer", place)
    writer.publish([(KEYS[0], place)])
    tier.validate(writer, {KEYS[0]: b"newer"})


def test_a_tier_that_was_cleared_takes_no_earlier_grant(tier: LogTier) -> None:
    writer = tier.writer()
    early = granted(writer, len(VALUE))
    fill(tier, KEYS[0], VALUE, early)
    writer.clear()
    writer.put_many([(KEYS[1], VALUE, False)])
    fill(tier, KEYS[0], VALUE, early)  # a writer that did not know
    assert writer.read(KEYS[0], early) is None
    with pytest.raises(TierFullError, match="cleared"):
        writer.publish([(KEYS[0], early)])
    writer.release([early])
    assert tier.held({KEYS[0]: VALUE, KEYS[1]: VALUE}) == {KEYS[1]}


@pytest.mark.parametrize("written", [0, 1, PAGE_BYTES, 9_999, 10_000, 10_015, 10_023])
def test_a_writer_that_is_killed_leaves_nothing(tier: LogTier, written: int) -> None:
    """It is killed after so many bytes of value and trailer."""
    writer = tier.writer()
    writer.put_many([(KEYS[0], VALUE, False)])
    place = granted(writer, 10_000)
    value = value_of(7, 10_000)
    os.pwrite(tier.segment, (value + trailer(KEYS[1]))[:written], place.offset)
    assert tier.reader().get(KEYS[1]) is None
    writer.release([place])
    tier.validate(writer, {KEYS[0]: VALUE})
