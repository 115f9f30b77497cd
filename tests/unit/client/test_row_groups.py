"""What a Parquet file's footer and its reader's reads say of the reads that follow."""

from __future__ import annotations

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prefeed.client import row_groups
from prefeed.client.block_order import Order
from prefeed.client.row_groups import FooterReader, RowGroups, read_footer, row_groups_of

GROUPS = [[(4, 10), (10, 50), (50, 60)], [(60, 70), (70, 90), (90, 99)], [(100, 110), (110, 150), (150, 160)]]


def following(*reads: tuple[int, int]) -> list[tuple[int, int]]:
    found = RowGroups(GROUPS)
    for start, end in reads:
        found.note(start, end - start)
    return list(found.after(reads[-1][1]))


def test_a_reader_of_all_columns_reads_all_that_follows() -> None:
    assert following((4, 60)) == [*GROUPS[1], *GROUPS[2]]
    assert following((4, 40)) == []  # of the last column nothing is known
    assert following((4, 65)) == [(65, 70), *GROUPS[1][1:], *GROUPS[2]]
    assert following((4, 60), (60, 160)) == []


def test_a_reader_of_some_columns_reads_the_same_of_the_next_row_groups() -> None:
    assert following((4, 10), (50, 60)) == []  # it may read others
    assert following((4, 10), (50, 60), (60, 70)) == [(90, 99), (100, 110), (150, 160)]
    assert following((4, 10), (50, 60), (60, 70), (90, 99), (100, 110)) == [(150, 160)]


def test_a_reader_that_goes_back_or_skips_row_groups_is_followed() -> None:
    assert following((10, 50), (110, 120)) == [(120, 150)]
    assert following((110, 150), (10, 50)) == []
    assert following((60, 99), (4, 60)) == [*GROUPS[1], *GROUPS[2]]


def table_in(row_group_size: int, **options: Any) -> tuple[bytes, pa.Table]:
    table = pa.table({"id": np.arange(1000), "text": [f"row {i}" for i in range(1000)]})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=row_group_size, **options)
    return file.getvalue(), table


@pytest.mark.parametrize("length", [70_000, 1000, 8])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "none"}])
def test_the_footer_is_found_whatever_is_read_first(length: int, options: dict[str, Any]) -> None:
    data, _ = table_in(100, **options)
    size = len(data)
    reader = FooterReader(size)
    start = max(0, size - length)
    assert reader.may_be_in(start, size - start)
    found = reader.look(start, data[start:])
    if not found:
        footer = int.from_bytes(data[-8:-4], "little")
        assert footer + 8 > length
        assert not reader.may_be_in(0, 100)
        assert reader.may_be_in(size - 8 - footer, footer)
        found = reader.look(size - 8 - footer, data[-8 - footer : -8])
    assert not reader.may_be_in(start, size - start)
    groups = row_groups_of(found)
    assert groups is not None
    metadata = pq.read_metadata(io.BytesIO(data))
    first = metadata.row_group(0).column(0)
    place = first.dictionary_page_offset or first.data_page_offset
    group_bytes = sum(metadata.row_group(0).column(at).total_compressed_size for at in range(2))
    groups.note(place, group_bytes)
    parts = list(groups.after(place + group_bytes))
    assert len(parts) == 18  # two columns of nine row groups
    assert sum(end - start for start, end in parts) == sum(
        metadata.row_group(number).column(at).total_compressed_size for number in range(1, 10) for at in range(2)
    )


@pytest.mark.parametrize("length", [70_000, 1000, 8])
def test_the_footer_is_read_however_long_it_is(length: int) -> None:
    data, _ = table_in(100)
    starts: list[int] = []
    found = read_footer(len(data), length, lambda start: starts.append(start) or data[start:])
    assert found
    assert found == data[-len(found) :]
    assert row_groups_of(found) is not None
    assert len(starts) == 1 + (length < len(found))
    assert read_footer(len(data), length, lambda _: None) is None
    for other in (b"x" * 100, b"\xff" * 96 + b"PAR1", b""):
        assert read_footer(len(other), length, lambda start, other=other: other[start:]) == b""


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"\x00" * 100, b"\xff\xff\xff\xffPAR1", b"x" * 100 + b"\x10\0\0\0PAR1", b"\0\0\0\0PAR1"]
)
def test_other_and_damaged_files_tell_nothing(data: bytes) -> None:
    reader = FooterReader(len(data))
    footer = reader.look(0, data) if reader.may_be_in(0, len(data)) else b""
    assert not footer or row_groups_of(footer) is None
    assert not reader.may_be_in(0, 1)


def test_a_file_of_very_many_columns_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = table_in(100)
    assert row_groups_of(data) is not None
    monkeypatch.setattr(row_groups, "_MOST_CHUNKS", 19)
    assert row_groups_of(data) is None


BLOCK = 100


def order_of(groups: list[list[tuple[int, int]]], size: int, **options: Any) -> tuple[Order, RowGroups]:
    order = Order(size_bytes=size, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None, **options)
    found = RowGroups(groups)
    order.expect(found.after)
    return order, found


def test_only_blocks_of_the_columns_that_are_read_are_planned() -> None:
    """Half of each row group of 1,000 bytes is read: no byte of the other half is fetched ahead, and no more than twice what was read."""
    groups = [[(at, at + 500), (at + 500, at + 1000)] for at in range(0, 20_000, 1000)]
    order, found = order_of(groups, 20_100)
    planned: list[int] = []
    for number in range(5):
        start = 1000 * number
        order.note(start, 500)
        found.note(start, 500)
        if not planned:
            planned = order.begin(start // BLOCK, start + 500)
        else:
            assert order.is_followed() == (number > 1)  # of the second one it was not known
            if number == 1:
                order.end()
                planned = order.begin(start // BLOCK, start + 500)
            planned += order.extend(start + 500)
        assert len(planned) <= 3 * 5 * (number + 1)
    assert all(block % 10 < 5 for block in planned)
    assert max(planned) >= 50
    assert len(set(planned)) == len(planned)


def test_where_nothing_is_known_yet_reads_are_followed_as_in_any_object() -> None:
    order, found = order_of([[(0, 5000), (5000, 9000)]], 9100)
    for start in range(0, 300, 50):
        order.note(start, 50)
        found.note(start, 50)
    assert order.begin(3, 350)[:3] == [3, 4, 5]
    assert order.extend(400) == []


def test_a_reader_that_reads_nothing_ahead_is_left_alone() -> None:
    order = Order(size_bytes=20_000, block_bytes=BLOCK, most_bytes=1 << 30, readahead=False)
    found = RowGroups([[(at, at + 1000)] for at in range(0, 20_000, 1000)])
    order.expect(found.after)
    order.note(0, 1000)
    found.note(0, 1000)
    assert order.begin(0, 1000) == [*range(10)]
    assert order.extend(1000) == []


@pytest.mark.parametrize(("count", "reads_all"), [(1000, True), (500, False)])
def test_a_file_that_follows_is_begun_as_the_one_before_was_read(count: int, reads_all: bool) -> None:
    before, _ = order_of([[(at, at + 500), (at + 500, at + 1000)] for at in range(0, 2000, 1000)], 2100)
    for start in (0, 1000):
        before.note(start, count)
    after = Order(size_bytes=100_000, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    planned = after.begin_as(before, end_first=True)
    end = [*range((100_000 - 65_536) // BLOCK, 1000)]
    assert planned == [*end, *range(end[0])] if reads_all else planned == end
    assert after.planned == set(planned)


def test_a_file_that_follows_one_of_another_format_is_begun_at_its_start() -> None:
    before = Order(size_bytes=2100, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    before.note(0, 1000)
    after = Order(size_bytes=1000, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    assert after.begin_as(before, end_first=False) == [*range(10)]
    before.note(1500, 10)
    assert after.begin_as(before, end_first=False) == []


def test_half_of_an_object_is_read_when_its_reader_is_in_the_middle() -> None:
    order = Order(size_bytes=1_000_000, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    order.note(999_000, 1000)  # its end, first
    assert not order.is_half_read()
    order.note(0, 400_000)
    assert not order.is_half_read()
    order.note(600_000, 100)
    assert order.is_half_read()


def test_what_is_read_of_a_file_is_told_by_the_names_of_its_columns() -> None:
    found = RowGroups(GROUPS, ["a", "b", "c"])
    assert not found.are_some_read()
    assert not found.is_half_read()
    found.note(150, 20)  # the last column and the footer: it is read for the footer
    assert found.names_read == set()
    found.note(60, 10)
    found.note(10, 40)
    found.note(70, 20)
    assert found.names_read == {"a", "b"}
    assert found.are_some_read()
    assert found.is_half_read()
    found.note(90, 9)
    assert not found.are_some_read()
    other = RowGroups([[(0, 5), (5, 9)], [(9, 20), (20, 30)]], ["c", "x"])
    assert [*other.parts_of({"a", "b"})] == []
    assert [*other.parts_of({"a", "c"})] == [(0, 5), (9, 20)]
    other.want({"a", "c"})
    assert [*other.after(0)] == [(0, 5), (9, 20)]


def test_a_file_of_one_row_group_is_half_read_from_its_first_column_on() -> None:
    found = RowGroups(GROUPS[:1], ["a", "b", "c"])
    found.note(4, 6)
    assert found.is_half_read()


@pytest.mark.parametrize("seed", range(20))
def test_no_more_is_fetched_of_the_columns_of_the_next_file_than_is_read(seed: int) -> None:
    """With what the reader asks for itself, where it gets no block: at most 1.1 times what it asks for, and one block."""
    random = np.random.default_rng(seed)
    bounds = np.cumsum([4, *random.integers(1, 40 if seed % 2 else 4000, 30)]).tolist()
    chunks = [*pairwise(bounds)]
    groups = [chunks[number : number + 5] for number in range(0, 30, 5)]
    size = bounds[-1] + 64 * 1024
    wanted = random.choice(5, size=2, replace=False)
    parts = [group[column] for group in groups for column in sorted(wanted)]
    before = Order(size_bytes=size, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    before.note(size - 64 * 1024, 64 * 1024)
    after = Order(size_bytes=size, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    end = after.begin_as(before, end_first=True, end_alone=True)
    asked = 64 * 1024
    for start, stop in parts:
        before.note(start, stop - start)
        asked += stop - start
        after.take_parts(parts, before)
        whole = sum(min(BLOCK, size - block * BLOCK) for block in after.planned)
        assert whole <= 1.1 * asked + BLOCK
    assert {*end} <= after.planned
    touched = {block for start, stop in parts for block in range(start // BLOCK, (stop - 1) // BLOCK + 1)}
    assert after.planned <= touched | {*end}
    inner = {block for start, stop in parts for block in range(-(-start // BLOCK), stop // BLOCK)}
    assert inner <= after.planned
    rest = sum(
        min(stop, (block + 1) * BLOCK) - max(start, block * BLOCK)
        for start, stop in parts
        for block in range(start // BLOCK, (stop - 1) // BLOCK + 1)
        if block not in after.planned
    )
    assert whole + rest <= 1.1 * asked + BLOCK


def test_a_plan_is_followed_by_a_read_that_has_any_of_its_blocks() -> None:
    order = Order(size_bytes=1000, block_bytes=BLOCK, most_bytes=1 << 30, readahead=None)
    order.plan([2, 3])
    order.note(150, 100)
    assert order.is_followed()
    order.note(150, 50)
    assert not order.is_followed()
