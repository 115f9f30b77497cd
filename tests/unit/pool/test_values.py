"""What lies in the pool: headers, parts, claims; anything else is nothing."""

from __future__ import annotations

import random

import pytest

from prefeed.pool.values import (
    HEADER_BYTES,
    MOST_PARTS,
    PartHeader,
    claim,
    claimed_by,
    is_whole,
    pool_key,
    read_header,
    split,
)

KEY = bytes(range(16))
OTHER = bytes(16)


def test_keys_are_legal_for_memcached_and_name_format_entry_and_part() -> None:
    assert pool_key(KEY) == b"pf1:000102030405060708090a0b0c0d0e0f"
    assert pool_key(KEY, 12) == pool_key(KEY) + b":12"
    assert len(pool_key(KEY, MOST_PARTS)) < 250


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 250])
def test_parts_make_up_the_whole_and_the_first_comes_last(size: int) -> None:
    data = random.Random(size).randbytes(size)
    parts = list(split(KEY, data, 100))
    numbers = [header.part for header, _ in parts]
    assert numbers == list(reversed(range(max(1, -(-size // 100)))))
    assert b"".join(bytes(part) for _, part in reversed(parts)) == data
    assert all(header.total_bytes == size and header.num_parts == len(parts) for header, _ in parts)


def test_parts_are_views_of_the_data() -> None:
    data = bytearray(b"x" * 150)
    parts = {header.part: part for header, part in split(KEY, data, 100)}
    data[0] = ord("y")
    assert bytes(parts[0][:1]) == b"y"


def test_a_header_is_read_as_it_was_written() -> None:
    header = PartHeader(3, 7, 1 << 40, KEY, OTHER)
    assert read_header(header.to_bytes() + b"bytes", KEY, 3) == header
    assert len(header.to_bytes()) == HEADER_BYTES


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"PFVL",
        PartHeader(0, 1, 5, OTHER, OTHER).to_bytes(),
        PartHeader(1, 2, 5, KEY, OTHER).to_bytes(),
        PartHeader(0, 0, 5, KEY, OTHER).to_bytes(),
        PartHeader(0, MOST_PARTS + 1, 5, KEY, OTHER).to_bytes(),
        b"XXXX" + PartHeader(0, 1, 5, KEY, OTHER).to_bytes()[4:],
        PartHeader(0, 1, 5, KEY, OTHER).to_bytes()[:4] + b"\xff" + PartHeader(0, 1, 5, KEY, OTHER).to_bytes()[5:],
        claim(b"somebody"),
    ],
    ids=["nothing", "short", "other key", "other part", "no parts", "many parts", "magic", "version", "claim"],
)
def test_what_is_no_header_of_this_part_of_this_entry_is_none(value: bytes) -> None:
    assert read_header(value, KEY, 0) is None


def test_every_flipped_byte_is_noticed() -> None:
    ((header, part),) = split(KEY, b"some bytes", 100)
    value = header.to_bytes() + bytes(part)
    unused = range(HEADER_BYTES - 8, HEADER_BYTES)
    for at in range(len(value)):
        changed = bytearray(value)
        changed[at] ^= 1
        read = read_header(changed, KEY, 0)
        # A part more than there is will not be found.
        is_noticed = read is None or read.num_parts > 1 or not is_whole(changed[HEADER_BYTES:], read)
        assert is_noticed or at in unused


def test_a_claim_says_whose_it_is_and_a_value_is_none() -> None:
    assert claimed_by(claim(b"12345678")) == b"12345678"
    assert claimed_by(PartHeader(0, 1, 5, KEY, OTHER).to_bytes()) is None
    assert claimed_by(b"") is None
