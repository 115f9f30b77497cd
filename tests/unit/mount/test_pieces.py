"""A reader that goes through a large object is read ahead of; one that jumps costs what it reads."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import pytest

from prefeed.mount.pieces import PIECE_BYTES, PieceReader, SequentialDetector
from prefeed.types import Buffer

MIB = 1024 * 1024
SIZE = 40 * MIB + 12345
STEP = 128 * 1024


class Origin:
    """An object of which byte n is n % 251; counts what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[range] = []
        self.fails = False
        self._lock = threading.Lock()

    def fetch(self, object_id: int, offset: int, size_bytes: int) -> Buffer:
        with self._lock:
            self.asked.append(range(offset, offset + size_bytes))
        assert offset + size_bytes <= SIZE
        if self.fails:
            raise OSError("no answer")
        return part(offset, size_bytes)


def part(offset: int, size_bytes: int) -> bytes:
    turn = bytes(range(251))
    return (turn * (size_bytes // 251 + 2))[offset % 251 :][:size_bytes]


@contextlib.contextmanager
def reading(origin: Origin) -> Iterator[PieceReader]:
    pieces = PieceReader(origin.fetch)
    try:
        yield pieces
    finally:
        pieces.close()


def test_nothing_is_read_ahead_of_a_reader_that_jumps() -> None:
    detector, places = SequentialDetector(), random.Random(0)
    assert [detector.record_read(places.randrange(1 << 40), 4096) for _ in range(100)] == [range(0)] * 100


def test_what_is_read_ahead_grows_with_what_was_read_and_has_an_end() -> None:
    detector = SequentialDetector()
    ahead = [detector.record_read(number * STEP, STEP) for number in range(400)]
    assert ahead[:2] == [range(0)] * 2
    assert [len(one) for one in ahead[2:5]] == [6 * STEP, 8 * STEP, 10 * STEP]
    assert all(one.start == (number + 1) * STEP for number, one in enumerate(ahead[2:], 2))
    assert len(ahead[-1]) == 16 * MIB


def test_reads_in_nearly_their_order_are_followed() -> None:
    detector = SequentialDetector()
    for number in (1, 0, 3, 2, 5, 4, 7, 6):
        ahead = detector.record_read(number * STEP, STEP)
    assert ahead.start == 8 * STEP


@pytest.mark.usefixtures("sandbox")
def test_all_bytes_come_and_few_requests_are_made() -> None:
    origin = Origin()
    with reading(origin) as pieces:
        for offset in range(0, SIZE, STEP):
            size = min(STEP, SIZE - offset)
            assert bytes(pieces.read(1, offset, size, SIZE)) == part(offset, size)
    assert sum(map(len, origin.asked)) <= SIZE + 2 * MIB
    assert len(origin.asked) <= SIZE // PIECE_BYTES + 16


@pytest.mark.usefixtures("sandbox")
def test_a_reader_that_jumps_costs_what_it_reads() -> None:
    origin, places = Origin(), random.Random(0)
    with reading(origin) as pieces:
        for _ in range(200):
            offset = places.randrange(SIZE - 4096)
            assert bytes(pieces.read(1, offset, 4096, SIZE)) == part(offset, 4096)
    assert sum(map(len, origin.asked)) <= 1.1 * 200 * 4096 + MIB


@pytest.mark.usefixtures("sandbox")
def test_an_error_is_raised_once_and_not_kept() -> None:
    origin = Origin()
    with reading(origin) as pieces:
        for number in range(3):
            pieces.read(1, number * STEP, STEP, SIZE)
        origin.fails = True
        with pytest.raises(OSError, match="no answer"):
            pieces.read(1, 20 * MIB, STEP, SIZE)
        origin.fails = False
        assert bytes(pieces.read(1, 20 * MIB, STEP, SIZE)) == part(20 * MIB, STEP)


@pytest.mark.usefixtures("sandbox")
def test_only_so_much_is_kept() -> None:
    origin = Origin()
    with reading(origin) as pieces:
        for object_id in range(20):
            for number in range(64):
                assert len(pieces.read(object_id, number * STEP, STEP, SIZE)) == STEP
        assert len(pieces._pieces) <= 128
