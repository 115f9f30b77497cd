from __future__ import annotations

import numpy as np
import pytest

from prefeed.client.block_order import Order

BLOCK = 1 << 20


class Reader:
    """Reads an object of so many blocks as ``BlockFile`` does where the tier holds what was fetched; counts what is fetched."""

    def __init__(self, num_blocks: int, *, readahead: bool | None = None, tail: int = 0, slack: int = 0) -> None:
        self.size = num_blocks * BLOCK + tail
        self.order = Order(
            size_bytes=self.size, block_bytes=BLOCK, most_bytes=1 << 30, readahead=readahead, slack_bytes=slack
        )
        self.held: set[int] = set()
        self.fetched = self.asked = 0
        self.has_plan = False
        self.plans = 0

    def read(self, offset: int, count: int) -> None:
        end = min(offset + count, self.size)
        self.asked += end - offset
        self.order.note(offset, end - offset)
        if self.has_plan and not self.order.is_followed():
            self.order.end()
            self.has_plan = False
        for index in range(offset // BLOCK, -(-end // BLOCK)):
            if index not in self.held:
                self._miss(index, max(offset, index * BLOCK), end)
        if self.has_plan:
            self._take(self.order.extend(end))

    def _miss(self, index: int, start: int, end: int) -> None:
        part = min(end, (index + 1) * BLOCK) - start
        if not self.order.may_take(index, part):
            self.fetched += part
            self.order.fetched(part)
            return
        if not self.has_plan:
            blocks = self.order.begin(index, end)
            self.has_plan = len(blocks) > 1
            self.plans += self.has_plan
            if not self.has_plan:
                self.order.end()
            self._take(blocks)
        self._take([index])

    def _take(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self.held:
                self.held.add(block)
                self.fetched += min(BLOCK, self.size - block * BLOCK)


@pytest.mark.parametrize("sizes", [(4096, 4096), (1, 100_000), (500_000, 3_000_000), (1, 20_000_000)])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slack", [0, BLOCK // 2])
def test_a_reader_that_seeks_wildly_gets_hardly_more_than_it_asks_for(
    sizes: tuple[int, int], seed: int, slack: int
) -> None:
    random = np.random.default_rng(seed)
    reader = Reader(500, slack=slack)
    for _ in range(300):
        count = int(random.integers(sizes[0], sizes[1] + 1))
        reader.read(int(random.integers(0, reader.size - count)), count)
        assert reader.fetched <= 1.1 * reader.asked + BLOCK


@pytest.mark.parametrize("step", [4096, 65536, BLOCK, 3 * BLOCK + 5])
def test_a_reader_that_goes_through_an_object_fetches_it_once_and_ahead(step: int) -> None:
    reader = Reader(100, tail=77)
    ahead = 0
    for offset in range(0, reader.size, step):
        reader.read(offset, step)
        ahead = max(ahead, max(reader.held) - (offset + step) // BLOCK)
    assert reader.size <= reader.fetched <= reader.size + step % BLOCK  # the first read ends a few bytes into a block
    assert reader.plans <= 2  # one for a first read of several blocks
    assert ahead >= 30


@pytest.mark.parametrize("length", [BLOCK // 2, 2 * BLOCK, 9 * BLOCK])
def test_a_reader_that_stops_has_three_times_as_much_at_most(length: int) -> None:
    reader = Reader(500)
    for offset in range(0, length, 65536):
        reader.read(offset, 65536)
    assert reader.fetched <= 3 * length + 3 * BLOCK


def test_all_of_it_is_read_ahead_from_the_first_read_on_if_it_will_be_read() -> None:
    reader = Reader(200, readahead=True)
    reader.read(0, 100)
    assert len(reader.held) == 65
    for offset in range(0, reader.size, BLOCK):
        reader.read(offset, BLOCK)
    assert reader.fetched == reader.size


def test_nothing_is_read_ahead_if_that_is_not_wanted() -> None:
    reader = Reader(20, readahead=False)
    for offset in range(0, 10 * BLOCK, 65536):
        reader.read(offset, 65536)
    assert reader.held == set(range(10))


def test_regular_steps_are_read_ahead() -> None:
    reader = Reader(200)
    for offset in range(0, 100 * BLOCK, 4 * BLOCK):
        reader.read(offset, BLOCK - 1000)
    assert max(reader.held) > 100
    assert all(block % 4 == 0 for block in reader.held)


def test_regular_steps_over_most_of_the_bytes_are_no_reason_to_read_ahead() -> None:
    reader = Reader(200)
    for offset in range(0, 100 * BLOCK, 4 * BLOCK):
        reader.read(offset, 4096)
    assert reader.fetched <= 1.1 * reader.asked + BLOCK


def test_looking_ahead_without_reading_does_not_end_a_run() -> None:
    """A decoder peeks at its file and reads then: it goes through the object all the same."""
    looking, reading = Reader(8), Reader(8)
    for offset in range(0, 2 * BLOCK, BLOCK // 8):
        looking.order.note(offset, 4096)
        looking.order.take_back()
        for reader in (looking, reading):
            reader.read(offset, BLOCK // 8)
    assert looking.order.is_sequential
    assert looking.order.run_bytes == reading.order.run_bytes == 2 * BLOCK
    assert looking.fetched == reading.fetched > 2 * BLOCK  # it is read ahead


def test_reads_in_nearly_their_order_continue_each_other_where_there_is_slack() -> None:
    step = BLOCK // 8
    for slack, num_plans in ((0, 0), (BLOCK // 2, 1)):
        reader = Reader(100, slack=slack)
        for number in range(64):
            reader.read((number ^ 1) * step, step)  # 1, 0, 3, 2: two at a time
        assert reader.plans == num_plans
        assert reader.order.is_sequential == bool(slack)
    assert reader.fetched >= 64 * step
