"""Logs of entries: what is put comes back, within the budget, and what is freed takes no pages."""

from __future__ import annotations

import array
import errno
import mmap
import os
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from log_tiers import MIB, LogTier, key_of, tier_in_files, tier_in_memory, value_of
from prefeed.errors import TierFullError
from prefeed.store import index
from prefeed.store.files import TierFiles, stored_keys
from prefeed.store.log import LogWriter
from prefeed.store.segment import PAGE_BYTES
from sandbox import Sandbox
from small_files import small_file_system

SIZES = (0, 1, 23, 24, 25, *range(4070, 4101), 84_000, 1_000_003)
VALUES = {key_of(number): value_of(number, size) for number, size in enumerate(SIZES)}
UNKNOWN = key_of(10**6)
LEAST_BYTES = 69_632 + 4096
"""An empty index, and a page."""


@pytest.fixture(params=["memory", "files"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogTier]:
    with tier_in_memory() if request.param == "memory" else tier_in_files(tmp_path) as tier:
        yield tier


def items(values: dict[bytes, bytes]) -> list[tuple[bytes, bytes, bool]]:
    return [(key, value, False) for key, value in values.items()]


def allocated(descriptor: int) -> int:
    return os.fstat(descriptor).st_blocks * 512


@pytest.mark.parametrize("in_groups_of", [1, len(VALUES)])
def test_values_come_back(tier: LogTier, in_groups_of: int) -> None:
    writer = tier.writer()
    for first in range(0, len(VALUES), in_groups_of):
        writer.put_many(items(VALUES)[first : first + in_groups_of])
    tier.validate(writer, VALUES, slack_pages=8)
    reader = tier.reader()
    assert [reader.size_of(key) for key in VALUES] == list(SIZES)
    assert reader.get(UNKNOWN) is reader.size_of(UNKNOWN) is reader.read_into(UNKNOWN, memoryview(b"")) is None


def test_more_values_than_one_call_writes(tier: LogTier) -> None:
    values = {key_of(number): value_of(number, number % 40) for number in range(3000)}
    writer = tier.writer()
    writer.put_many(items(values))
    assert tier.held(values) == set(values)


def test_parts(tier: LogTier) -> None:
    tier.writer().put_many(items(VALUES))
    reader, target = tier.reader(), bytearray(5000)
    for key, value in VALUES.items():
        for start in (0, 1, 4095, len(value) - 1, len(value), len(value) + 10_000):
            if start < 0:
                continue
            count = reader.read_into(key, memoryview(target), start)
            assert count == len(value[start : start + 5000])
            assert target[:count] == value[start : start + 5000]
    with pytest.raises(ValueError, match="not at -1"):
        reader.read_into(key_of(3), memoryview(target), -1)


def test_any_buffer(tier: LogTier) -> None:
    rows = np.arange(600, dtype=np.float32).reshape(20, 30)
    buffers = [
        b"bytes",
        bytearray(b"array"),
        memoryview(array.array("I", range(2000))),
        memoryview(rows),
        memoryview(b""),
    ]
    tier.writer().put_many([(key_of(number), buffer, False) for number, buffer in enumerate(buffers)])
    values = {key_of(number): bytes(buffer) for number, buffer in enumerate(buffers)}
    assert tier.held(values) == set(values)


def test_keys_are_sixteen_bytes_and_not_all_zeros(tier: LogTier) -> None:
    """A record of zeros is free, and so is a place that no value was written to."""
    writer, reader = tier.writer(), tier.reader()
    writer.put_many([(key_of(1), b"first in the segment", False)])
    for key in (b"", b"short", bytes(17), bytes(16)):
        with pytest.raises(ValueError, match="a key"):
            writer.put_many([(key_of(2), b"of the same group", False), (key, b"", False)])
        writer.free_many([key])
        assert reader.get(key) is reader.size_of(key) is reader.read_into(key, memoryview(bytearray(9))) is None
    tier.validate(writer, {key_of(1): b"first in the segment"}, slack_pages=8)


def test_keys_that_are_no_hashes_do_not_grow_the_index_for_ever(tier: LogTier) -> None:
    """Some are held, the others are as if they had been freed at once."""
    values = {number.to_bytes(2, "big") * 8: value_of(number, 30) for number in range(1, 200)}
    writer = tier.writer()
    writer.put_many(items(values))
    held = tier.held(values)
    assert len(held) >= 8
    tier.validate(writer, {key: values[key] for key in held}, slack_pages=8)
    assert allocated(tier.index) <= LEAST_BYTES


def test_a_value_replaces_the_one_of_its_key(tier: LogTier) -> None:
    """Also in one group."""
    writer = tier.writer()
    for number in range(5):
        writer.put_many([(key_of(1), value_of(number, 100_000 - number), False), (key_of(2), bytes(9000), False)] * 2)
        tier.validate(writer, {key_of(1): value_of(number, 100_000 - number), key_of(2): bytes(9000)}, slack_pages=8)


def test_transient_values_have_a_segment_of_their_own(tier: LogTier) -> None:
    """In memory, where there are two; in files they are marked."""
    writer = tier.writer()
    writer.put_many([(key_of(1), b"a" * 9000, True), (key_of(2), b"b", False), (key_of(3), b"c" * 9000, True)])
    assert sorted(writer.entries()) == sorted([(key_of(1), 9000, True), (key_of(2), 1, False), (key_of(3), 9000, True)])
    tier.validate(writer, {key_of(1): b"a" * 9000, key_of(2): b"b", key_of(3): b"c" * 9000}, slack_pages=8)
    assert {key: place.segment for key, place in index.IndexReader(tier.index).entries()} == {
        key_of(1): len(tier.segments) - 1, key_of(2): 0, key_of(3): len(tier.segments) - 1,
    }  # fmt: skip


def test_values_become_transient_and_stay_again(tier: LogTier) -> None:
    """Also twice in one group, where the last one of a key is held; the place before it is free."""
    writer = tier.writer()
    for transient in (False, True, False, True):
        old, new = value_of(int(transient), 70_000), value_of(2 + int(transient), 50_000)
        writer.put_many([(key_of(1), old, transient)])
        assert list(writer.entries()) == [(key_of(1), len(old), transient)]
        tier.validate(writer, {key_of(1): old}, slack_pages=8)
        writer.put_many([(key_of(1), old, transient), (key_of(2), old, not transient), (key_of(1), new, not transient)])
        assert sorted(writer.entries()) == sorted(
            [(key_of(1), len(new), not transient), (key_of(2), len(old), not transient)]
        )
        tier.validate(writer, {key_of(1): new, key_of(2): old}, slack_pages=8)
        writer.free_many([key_of(2)])


def test_a_group_that_one_segment_has_no_room_for_is_not_stored(tier: LogTier) -> None:
    """What was appended to the other segment is free again."""
    writer, write = tier.writer(), os.pwritev
    writer.put_many([(key_of(1), b"before", False)])

    def write_unless_last(descriptor: int, *rest: Any) -> int:
        if descriptor == tier.segments[-1]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, *rest)

    with mock.patch("os.pwritev", write_unless_last), pytest.raises(TierFullError, match="No space left"):
        writer.put_many([(key_of(2), bytes(90_000), False), (key_of(3), b"transient", True)])
    tier.validate(writer, {key_of(1): b"before"}, slack_pages=8)
    writer.put_many([(key_of(2), bytes(90_000), False), (key_of(3), b"transient", True)])
    tier.validate(writer, {key_of(1): b"before", key_of(2): bytes(90_000), key_of(3): b"transient"}, slack_pages=8)


def test_freed_pages_are_given_back(tier: LogTier) -> None:
    rng, writer, values = random.Random(1), tier.writer(), dict(VALUES)
    writer.put_many(items(values))
    while values:
        freed = rng.sample(sorted(values), min(len(values), 5))
        writer.free_many([*freed, UNKNOWN])
        for key in freed:
            del values[key]
        tier.validate(writer, values, slack_pages=8)
    assert writer.file_bytes() <= LEAST_BYTES + 8 * PAGE_BYTES


def test_cleared_tiers_are_empty_and_can_be_filled(tier: LogTier) -> None:
    writer = tier.writer()
    for _ in range(3):
        writer.put_many(items(VALUES))
        writer.clear()
        tier.validate(writer, {})
        assert tier.held(VALUES) == set()
        assert writer.file_bytes() <= LEAST_BYTES


def test_small_values_cost_a_fifth_more_than_their_size() -> None:
    with tier_in_memory() as tier:
        writer, value = tier.writer(200 * MIB), bytes(1000)
        for first in range(0, 100_000, 1000):
            writer.put_many([(key_of(number), value, False) for number in range(first, first + 1000)])
        assert writer.num_entries == 100_000
        assert writer.file_bytes() <= 1.2 * writer.value_bytes


# ---------------------------------------------------------------- no room


@pytest.mark.parametrize("group", [1, 7, 500])
@pytest.mark.parametrize("size_bytes", [0, 900])
def test_budgets_hold_while_the_index_grows(size_bytes: int, group: int) -> None:
    """What is appended ends in a page that it may be the first to use."""
    with tier_in_memory() as tier:
        budget_bytes = 2 * MIB
        writer, number = tier.writer(budget_bytes), 0
        with pytest.raises(TierFullError, match="no room"):
            while True:
                writer.put_many([(key_of(n), bytes(size_bytes), False) for n in range(number, number + group)])
                number += group
                assert writer.file_bytes() <= budget_bytes + PAGE_BYTES
        assert writer.num_entries == number
        assert number + group > budget_bytes / (size_bytes + 250)


def test_a_group_without_room_is_not_stored(tier: LogTier) -> None:
    writer = tier.writer(budget_bytes=2 * MIB)
    writer.put_many(items(VALUES))
    with pytest.raises(TierFullError, match="of 2097152 bytes are taken"):
        writer.put_many([(key_of(1), b"replaced", False), (key_of(100), bytes(MIB), False)])
    tier.validate(writer, VALUES, slack_pages=8)


def test_a_value_of_four_gib_is_refused(tier: LogTier) -> None:
    """Records have four bytes for lengths. Nothing was written when it is found."""
    with mmap.mmap(-1, 2**32) as large, memoryview(large) as value, pytest.raises(TierFullError):
        tier.writer(budget_bytes=2**40).put_many([(key_of(1), value, False)])
    assert allocated(tier.segment) == 0


@pytest.mark.parametrize("size_bytes", [0, 5000])
def test_full_file_systems(sandbox: Sandbox, size_bytes: int) -> None:
    """Small values fill it when the index is doubled, large ones when they are appended; the groups replace values too."""
    with small_file_system(sandbox.root / "small", "400k") as directory, tier_in_files(directory) as tier:
        writer, values = tier.writer(), {}
        with pytest.raises(TierFullError, match="No space left"):
            for first in range(0, 10_000, 50):
                numbers = (*range(first, first + 50), *range(0, first, 97))
                group = {key_of(n): value_of(first, size_bytes) for n in numbers}
                writer.put_many(items(group))
                values |= group
        tier.validate(writer, values)
        writer.free_many([key_of(1)])
        del values[key_of(1)]
        tier.validate(tier.writer(), values)


@pytest.mark.parametrize("tier", ["files"], indirect=True)  # in memory they may be as large as offsets are
def test_the_largest_file_begins_anew(tier: LogTier) -> None:
    """Offsets only grow: a file system's limit is reached some day, and then nothing could be stored any more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = tier.writer()
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        writer.put_many([(key_of(1), bytes(700_000), False)])
        with pytest.raises(TierFullError, match="too large"):
            writer.put_many([(key_of(2), bytes(700_000), False)])
        tier.validate(writer, {})
        writer.put_many([(key_of(3), bytes(700_000), False)])
        tier.validate(writer, {key_of(3): bytes(700_000)}, slack_pages=8)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_empty_tier_begins_at_the_start_of_its_segment(tier: LogTier) -> None:
    writer = tier.writer()
    writer.put_many(items(VALUES))
    writer.free_many(list(VALUES))
    tier.writer()
    assert os.fstat(tier.segment).st_size == 0


# ---------------------------------------------------------------- files and system calls


def test_offsets_beyond_four_gib(tier: LogTier) -> None:
    tier.writer().put_many([(key_of(0), b"near", False)])
    os.ftruncate(tier.segment, 2**33 + 11)
    writer = tier.writer()
    writer.put_many(items(VALUES))
    tier.validate(writer, {key_of(0): b"near"} | VALUES, slack_pages=8)
    tier.validate(tier.writer(), {key_of(0): b"near"} | VALUES, slack_pages=8)


@contextmanager
def short_calls(most: int) -> Iterator[None]:
    """Let calls read and write fewer bytes than they are given, as they do beyond 2 GiB."""

    def pwritev(descriptor: int, parts: list[memoryview], offset: int) -> int:
        return write(descriptor, b"".join(parts)[:most], offset)

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        data = read(descriptor, min(most, len(parts[0])), offset)
        parts[0][: len(data)] = data
        return len(data)

    read, write = os.pread, os.pwrite
    with (
        mock.patch.object(os, "pread", lambda descriptor, size, at: read(descriptor, min(size, most), at)),
        mock.patch.object(os, "pwrite", lambda descriptor, data, at: write(descriptor, memoryview(data)[:most], at)),
        mock.patch.object(os, "pwritev", pwritev),
        mock.patch.object(os, "preadv", preadv),
    ):
        yield


def test_calls_that_do_less_than_they_are_given(tier: LogTier) -> None:
    values = VALUES | {key_of(number): value_of(number, 3) for number in range(1000, 3000)}
    with short_calls(3001):
        writer = tier.writer()
        writer.put_many(items(values))
        tier.validate(writer, values, slack_pages=8)
        target, key = bytearray(MIB), key_of(len(SIZES) - 1)
        assert tier.reader().read_into(key, memoryview(target), 1) == 1_000_002
        assert target[:1_000_002] == VALUES[key][1:]


def test_files_are_opened_again(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    values: dict[bytes, bytes] = {}
    assert stored_keys(tmp_path) == b""
    for number in range(3):
        with tier_in_files(tmp_path) as tier:
            writer = tier.writer()
            assert not writer.was_damaged
            tier.validate(writer, values, slack_pages=8)
            more = {key_of(n): value_of(n, n * 7) for n in range(number * 1000, number * 1000 + 900)}
            writer.put_many(items(more))
            values |= more
        keys = stored_keys(tmp_path)
        assert sorted(keys[at : at + 16] for at in range(0, len(keys), 16)) == sorted(values)
    with pytest.raises(OSError, match="not-a-directory"):
        TierFiles(tmp_path / "not-a-directory")
    assert os.listdir("/proc/self/fd") == before


# ---------------------------------------------------------------- readers in other threads


@pytest.mark.usefixtures("sandbox")
def test_an_index_that_grows_while_threads_look_up(tier: LogTier) -> None:
    """A value that was published before a lookup is found, whatever happens to the table during it."""
    with mock.patch.object(index, "_FIRST_BUCKETS", 1):
        writer, published, is_done = tier.writer(), [0], threading.Event()
    missed: list[int] = []
    num_reads = [0, 0]

    def look_up(thread: int) -> None:
        rng, reader = random.Random(thread), tier.reader()
        while not is_done.is_set():
            number = rng.randrange(published[0] + 1) - 1
            if number >= 0 and reader.get(key_of(number)) != key_of(number):
                missed.append(number)
            num_reads[thread] += 1

    threads = [threading.Thread(target=look_up, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for first in range(0, 6000, 10):
        writer.put_many([(key_of(n), key_of(n), False) for n in range(first, first + 10)])
        published[0] = first + 10
    is_done.set()
    for thread in threads:
        thread.join()
    assert missed == []
    assert min(num_reads) > 100


def test_a_lookup_during_which_another_thread_has_found_the_new_table(tier: LogTier) -> None:
    writer = tier.writer()
    reader = index.IndexReader(tier.index)
    look_up = reader._look_up

    def look_up_slowly(key: bytes, table: tuple[int, int]) -> Any:
        found = look_up(key, table)
        reader._read_header()
        return found

    writer.put_many([(key_of(n), b"", False) for n in range(1000)])
    with mock.patch.object(reader, "_look_up", look_up_slowly):
        assert reader.find(key_of(999)) is not None


@pytest.mark.usefixtures("sandbox")
def test_values_are_freed_and_replaced_while_threads_read(tier: LogTier) -> None:
    """A read is a miss, or one of the values that the key has had, whole."""
    writer, is_done = tier.writer(), threading.Event()
    wrong: list[int] = []
    counts: list[list[int]] = [[0, 0], [0, 0]]  # per thread: misses, hits
    sizes = [20, 4000, 9000, 30_000]
    valid = {n: {value_of(n * 10 + life, size) for life in range(4) for size in sizes} for n in range(16)}

    def read(thread: int) -> None:
        rng, reader, target = random.Random(thread), tier.reader(), bytearray(30_000)
        while not is_done.is_set():
            number = rng.randrange(16)
            if thread:
                value = reader.get(key_of(number))
            else:
                count = reader.read_into(key_of(number), memoryview(target))
                value = None if count is None else bytes(target[:count])
            counts[thread][value is not None] += 1
            if value is not None and value not in valid[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    _churn(writer, sizes)
    is_done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert min(map(min, counts)) > 0


def _churn(writer: LogWriter, sizes: list[int]) -> None:
    rng, values = (
        random.Random(3),
        [[value_of(n * 10 + life, size) for life in range(4) for size in sizes] for n in range(16)],
    )
    for turn in range(2000):
        numbers = rng.sample(range(16), 3)
        if turn % 200 == 199:
            writer.clear()
        elif turn % 3 == 2:
            writer.free_many([key_of(number) for number in numbers])
        else:
            writer.put_many([(key_of(n), rng.choice(values[n]), False) for n in numbers])


def test_small_values_that_were_freed_in_any_order_leave_their_room(tier: LogTier) -> None:
    """A page stays allocated as long as one of its entries does: what is left on such pages is moved together."""
    budget, chosen = 4 * MIB, random.Random(1)
    writer, reader = tier.writer(budget), tier.reader()
    values = {key_of(number): value_of(number, 1000) for number in range(3200)}
    writer.put_many(items(values))
    for round_ in range(1, 6):
        changed = chosen.sample(sorted(values), len(values) // 2)
        writer.free_many(changed)
        for key in changed:
            values[key] = value_of(round_, 1000)
            writer.put_many([(key, values[key], False)])
        assert writer.file_bytes() <= budget
        assert {key: reader.get(key) for key in values} == values
    writer.free_many(list(values))
    tier.validate(writer, {})


def test_values_that_are_wrong_on_disk_are_not_moved_as_right_ones(tmp_path: Path) -> None:
    with tier_in_files(tmp_path) as tier:
        writer = tier.writer(MIB)
        values = {key_of(number): value_of(number, 900) for number in range(700)}
        writer.put_many(items(values))
        kept = sorted(values)[::10]
        os.pwrite(tier.segment, b"\xff" * 100, 0)
        flipped = next(key for key in values if tier.reader().get(key) is None)
        kept = [flipped, *(key for key in kept if key != flipped)]
        writer.free_many([key for key in values if key not in kept])
        assert writer._repack()
        assert tier.held(values) == set(kept) - {flipped}


def test_a_reader_follows_a_value_that_is_moved(tier: LogTier, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = tier.writer(), tier.reader()
    key, value = key_of(1), value_of(1, 300)
    writer.put_many([(key, value, False)])
    find = reader._index.find

    def find_and_move(wanted: bytes) -> object:
        place = find(wanted)
        if not moved:
            moved.append(place)
            writer.put_many([(key, value, False)])
        return place

    for read in (lambda: reader.get(key), lambda: reader.read(key, 0, 300)):
        moved: list[object] = []
        monkeypatch.setattr(reader._index, "find", find_and_move)
        assert read() == value
        assert moved
