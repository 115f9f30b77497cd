"""Logs of entries whose files are torn or damaged: never a wrong byte, and what was dropped can be put again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from unittest import mock

import pytest

from log_tiers import LogTier, key_of, tier_in_memory, value_of
from prefeed.store import index

RECORD_BYTES = 32
HEADER_BYTES = 24
VALUES = {key_of(number): value_of(number, size) for number, size in enumerate((0, 1, 23, 100, 5000, 9000))}


@pytest.fixture
def tier() -> Iterator[LogTier]:
    """A tier whose readers verify, as on disk; its first table has 8 records."""
    with mock.patch.object(index, "_FIRST_BUCKETS", 1), tier_in_memory(sums=True) as tier:
        yield tier


def contents(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def write(descriptor: int, data: bytes) -> None:
    os.ftruncate(descriptor, len(data))
    os.pwrite(descriptor, data, 0)


def put(tier: LogTier, values: dict[bytes, bytes]) -> None:
    tier.writer().put_many([(key, value, False) for key, value in values.items()])


def assert_recovers(tier: LogTier, values: dict[bytes, bytes], *, least: int = 0) -> None:
    """Read as it is, open it, put what is not held, and free all."""
    assert len(tier.held(values)) >= least
    assert tier.reader().get(key_of(10**6)) is None
    list(index.IndexReader(tier.index).entries())
    suspects: list[bytes] = []
    writer, reader = tier.writer(), tier.reader(suspects.append)
    for key in values:
        reader.get(key)
    writer.free_many(suspects)
    held = tier.held(values)
    assert len(held) >= least
    writer.put_many([(key, value, False) for key, value in values.items() if key not in held])
    assert tier.held(values) == set(values)
    writer.free_many([key for key, _, _ in writer.entries()])
    assert writer.num_entries == writer.value_bytes == 0
    assert os.fstat(tier.segment).st_blocks == 0


def test_torn_records(tier: LogTier) -> None:
    """A part of each record is as it was before the value was put, replaced or freed."""
    put(tier, VALUES)
    states = [contents(tier.index)]
    put(tier, {key: value + b"+" for key, value in VALUES.items()})
    states.append(contents(tier.index))
    segment = contents(tier.segment)
    replaced = {key: value + b"+" for key, value in VALUES.items()}
    for old, new in ((states[0], states[1]), (bytes(len(states[1])), states[1]), (states[1], bytes(len(states[1])))):
        for at in range(4096, len(new), RECORD_BYTES):
            for cut in range(1, RECORD_BYTES):
                torn = (
                    states[1][:at]
                    + new[at : at + cut]
                    + old[at + cut : at + RECORD_BYTES]
                    + states[1][at + RECORD_BYTES :]
                )
                if torn != states[1]:
                    write(tier.index, torn)
                    write(tier.segment, segment)
                    assert_recovers(tier, replaced, least=len(VALUES) - 1)


def test_torn_headers(tier: LogTier) -> None:
    """At every byte, between two tables of an index that was doubled; and with any byte of it flipped."""
    put(tier, VALUES)
    before = contents(tier.index)[:HEADER_BYTES]
    values = VALUES | {key_of(number): value_of(number, 50) for number in range(10, 20)}
    put(tier, values)
    files = contents(tier.index), contents(tier.segment)
    after = files[0][:HEADER_BYTES]
    assert before != after
    headers = [after[:cut] + before[cut:] for cut in range(HEADER_BYTES)]
    headers += [
        bytes([*after[:at], after[at] ^ flipped, *after[at + 1 :]])
        for at in range(HEADER_BYTES)
        for flipped in (1, 128)
    ]
    for header in headers:
        write(tier.index, header + files[0][HEADER_BYTES:])
        write(tier.segment, files[1])
        assert_recovers(tier, values)


@pytest.mark.parametrize("which", ["index", "segment"])
def test_flipped_bytes(tier: LogTier, which: str) -> None:
    """At most the entry whose bytes they are is lost; a record may name the place of another one."""
    values = {key: value[:60] for key, value in VALUES.items()}
    put(tier, values)
    files = {"index": contents(tier.index), "segment": contents(tier.segment)}
    places = range(4096, len(files["index"])) if which == "index" else range(len(files["segment"]))
    for at in places:
        damaged = bytearray(files[which])
        damaged[at] ^= 1 << at % 8
        write(tier.index, files["index"])
        write(tier.segment, files["segment"])
        write(getattr(tier, which), bytes(damaged))
        target = bytearray(60)
        for key, value in values.items():
            count = tier.reader().read_into(key, memoryview(target))
            assert count is None or target[:count] == value
        assert_recovers(tier, values, least=len(values) - 1 if which == "segment" else 0)


def test_files_cut_short(tier: LogTier) -> None:
    values = VALUES | {key_of(number): value_of(number, 50) for number in range(10, 14)}
    put(tier, values)
    files = {"index": contents(tier.index), "segment": contents(tier.segment)}
    for which, data in files.items():
        for size in [*range(40), *range(4096, len(data), 97)]:
            write(tier.index, files["index"])
            write(tier.segment, files["segment"])
            os.ftruncate(getattr(tier, which), size)
            assert_recovers(tier, values)


def test_records_that_name_anything(tier: LogTier) -> None:
    """Also while the tier is open, and with places no file has."""
    rng = random.Random(1)
    values = VALUES | {key_of(number): value_of(number, 50) for number in range(10, 30)}
    put(tier, values)
    files = contents(tier.index), contents(tier.segment)
    start = int.from_bytes(files[0][:8], "little")
    for _ in range(300):
        damaged = bytearray(files[0])
        for _ in range(rng.choice((1, 30))):
            record = rng.randrange(start, len(damaged), RECORD_BYTES) + rng.choice((0, 16))
            damaged[record : record + 16] = rng.choice(
                (rng.randbytes(16), bytes(16), b"\xff" * 16, files[0][start : start + 16])
            )
        write(tier.index, bytes(damaged))
        write(tier.segment, files[1])
        assert_recovers(tier, values)
