"""Which pages of a mapped file are large ones: where nobody has written, and as long as they cost less than small ones."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prefeed.store import reservation
from prefeed.store.reservation import PageMaker, Reservation
from prefeed.store.shared import SharedTier
from prefeed.system import large_pages
from prefeed.system.large_pages import LARGE_PAGE_BYTES, mapped_at_large_page
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1 << 20
LARGE = 2 * MIB
FIRST = 8 * MIB
"""Small pages that a process makes before it tries a large one."""


class Kernel:
    """Makes pages of a file that is not there, for the price that a test sets.

    Attributes:
        small_us: What 2 MiB of small pages take.
        large_us: What a large page takes.
        late_us: What it takes by the clock beyond that.
        has_large: Large pages are to be had.
        made: Begin and size of each part that was made of small pages.
        large: Where large ones were made.
    """

    def __init__(self) -> None:
        self.small_us = 900
        self.large_us = 100
        self.has_large = True
        self.made: list[tuple[int, int]] = []
        self.large: list[int] = []
        self.late_us = 0
        self._now_ns = 0
        self._waited_ns = 0

    def make_small(self, start: int, size: int) -> bool:
        self.made.append((start, size))
        self._now_ns += self.small_us * 1000 * size // LARGE
        return True

    def make_large(self, address: int) -> bool:
        self._now_ns += self.large_us * 1000
        self._waited_ns += self.late_us * 1000
        if self.has_large:
            self.large.append(address)
        return self.has_large

    def thread_time_ns(self) -> int:
        return self._now_ns

    def perf_counter_ns(self) -> int:
        return self._now_ns + self._waited_ns


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(reservation, "LARGE_PAGE_BYTES", LARGE)
    monkeypatch.setattr(reservation, "_POPULATES", True)
    monkeypatch.setattr(reservation, "_mapped_address", lambda path: 0)
    monkeypatch.setattr(reservation, "try_make_large_page", kernel.make_large)
    monkeypatch.setattr(reservation.time, "thread_time_ns", kernel.thread_time_ns)
    monkeypatch.setattr(reservation.time, "perf_counter_ns", kernel.perf_counter_ns)
    monkeypatch.setattr(Reservation, "_try_back", lambda self, start, size: kernel.make_small(start, size))
    return kernel


@contextmanager
def reserving(tmp_path: Path, *, map_bytes: int = 1 << 40, large: bool = True) -> Iterator[Reservation]:
    """Give a reservation of an empty file; inside it, single pages of the file are real."""
    path = tmp_path / "data"
    path.write_bytes(b"")
    reserved = Reservation(path, reserved_bytes=0, map_bytes=map_bytes, chunk_bytes=64 * 1024, large=large)
    try:
        yield reserved
    finally:
        reserved.close()


def backed(kernel: Kernel) -> list[tuple[int, int]]:
    """Return what is backed, in order, parts that touch joined."""
    found: list[tuple[int, int]] = []
    for start, size in sorted([*kernel.made, *((at, LARGE) for at in kernel.large)]):
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], max(found[-1][1], start + size))
        else:
            found.append((start, start + size))
    return found


def test_pages_are_large_behind_the_first_ones(tmp_path: Path, kernel: Kernel) -> None:
    with reserving(tmp_path) as reserved:
        for end in range(0, 20 * MIB, 600 * 1024):
            assert reserved.try_reserve(end + 600 * 1024, from_bytes=end, is_unused=True)
    assert kernel.large == [10 * MIB, 12 * MIB, 14 * MIB, 16 * MIB, 18 * MIB, 20 * MIB]
    assert sum(size for _, size in kernel.made) < 11 * MIB
    assert backed(kernel) == [(0, 22 * MIB)]


def test_where_others_may_write_pages_are_small(tmp_path: Path, kernel: Kernel) -> None:
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(32 * MIB)
        assert reserved.makes_large
        assert reserved.try_reserve(64 * MIB)
    assert kernel.large == []
    assert backed(kernel) == [(0, 64 * MIB)]


def test_what_has_data_gets_no_large_page(tmp_path: Path, kernel: Kernel) -> None:
    """The data end in the middle of what could be one."""
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(FIRST, is_unused=True)
        assert reserved.try_reserve(35 * MIB, from_bytes=31 * MIB, is_unused=True)
    assert kernel.large == [32 * MIB, 34 * MIB]
    assert kernel.made[-1] == (31 * MIB, MIB)


def test_large_pages_that_cost_more_are_seldom_tried(tmp_path: Path, kernel: Kernel) -> None:
    """Such as those that a virtual machine has to get from its host."""
    kernel.large_us = 3700
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(1024 * MIB, is_unused=True)
    assert kernel.large == [8 * MIB, 138 * MIB, 396 * MIB, 910 * MIB]
    assert backed(kernel) == [(0, 1024 * MIB)]


def test_where_there_are_none_small_ones_are_made(tmp_path: Path, kernel: Kernel) -> None:
    kernel.has_large = False
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(100 * MIB, is_unused=True)
        assert not reserved.makes_large
    assert backed(kernel) == [(0, 100 * MIB)]


def test_none_is_larger_than_the_map(tmp_path: Path, kernel: Kernel) -> None:
    with reserving(tmp_path, map_bytes=11 * MIB) as reserved:
        assert reserved.try_reserve(20 * MIB, is_unused=True)
    assert kernel.large == [8 * MIB]
    assert backed(kernel) == [(0, 11 * MIB)]


@pytest.mark.parametrize(("large", "address"), [(False, 0), (True, 4096)])
def test_pages_are_small_where_nothing_else_is_wanted_or_possible(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, large: bool, address: int
) -> None:
    monkeypatch.setattr(reservation, "_mapped_address", lambda path: address)
    with reserving(tmp_path, large=large) as reserved:
        assert reserved.try_reserve(32 * MIB, is_unused=True)
    assert kernel.large == []
    assert backed(kernel) == [(0, 32 * MIB)]


def addresses_of(path: Path) -> list[int]:
    """Return where this process has a file mapped."""
    inode = str(path.stat().st_ino)
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return [int(line[0].split("-")[0], 16) for line in lines if line[4] == inode and line[-1] == str(path)]


def test_a_file_is_mapped_where_large_pages_can_be(sandbox: Sandbox) -> None:
    """In a tmpfs: other file systems may choose such a place by themselves."""
    path = sandbox.memory_dir / "large"
    size = (1 << 30) + mmap.PAGESIZE
    with path.open("w+b") as file:
        file.truncate(size)
        with mapped_at_large_page(size), mmap.mmap(file.fileno(), size):
            (address,) = addresses_of(path)
    assert not LARGE_PAGE_BYTES or address % LARGE_PAGE_BYTES == 0


def test_addresses_around_it_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "LARGE_PAGE_BYTES", LARGE)
    blocked = []
    real = large_pages._leave_one_gap
    monkeypatch.setattr(large_pages, "_leave_one_gap", lambda size: blocked.extend(real(size)) or blocked)
    with mapped_at_large_page(LARGE):
        assert blocked
        assert {address for address, _ in blocked} <= mapped()
    assert not {address for address, _ in blocked} & mapped()


def mapped() -> set[int]:
    """Return where this process has anything mapped without access."""
    lines = (line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines())
    return {int(line[0].split("-")[0], 16) for line in lines if line[1] == "---p"}


def test_values_in_large_pages_are_what_was_put(sandbox: Sandbox) -> None:
    """In memory, with what pages this machine has: 24 MB, read in the same handle, in a new one, and after it has grown."""
    values = {bytes([number]) * 16: bytes([number]) * 600_000 for number in range(40)}
    directory = sandbox.memory_dir / "large-store"
    directory.mkdir(parents=True, mode=0o700)
    tier = SharedTier(directory, limit_bytes=26 * MIB)
    other = SharedTier(directory, limit_bytes=26 * MIB)
    try:
        items = list(values.items())
        assert all(tier.put_many([item]) for item in items[:30])
        assert {key: tier.get(key) for key, _ in items[:30]} == dict(items[:30])
        tier.grow(40 * MIB)
        assert all(other.put_many([item]) for item in items[30:])
        assert {key: other.get(key) for key in values} == values
        tier.close()
        other.close()
        assert {key: tier.get(key) for key in values} == values
    finally:
        tier.close()
        other.close()


@pytest.mark.parametrize(("late_us", "is_dear"), [(0, False), (900, False), (2000, True), (20_000, True)])
def test_large_pages_that_come_late_are_seldom_tried(
    tmp_path: Path, kernel: Kernel, late_us: int, is_dear: bool
) -> None:
    """The kernel asks all processors first; where these are busy, it waits."""
    kernel.late_us = late_us
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(1024 * MIB, is_unused=True)
    assert len(kernel.large) < 70 if is_dear else len(kernel.large) == (1024 * MIB - FIRST) // LARGE
    assert backed(kernel) == [(0, 1024 * MIB)]


def test_one_large_page_that_comes_late_changes_nothing(tmp_path: Path, kernel: Kernel) -> None:
    with reserving(tmp_path) as reserved:
        assert reserved.try_reserve(64 * MIB, is_unused=True)
        kernel.late_us = 5000
        assert reserved.try_reserve(66 * MIB, is_unused=True)
        kernel.late_us = 0
        assert reserved.try_reserve(128 * MIB, is_unused=True)
    assert kernel.large == list(range(FIRST, 128 * MIB, LARGE))


def test_pages_of_the_memory_tier_are_large_also_those_made_ahead(tmp_path: Path, kernel: Kernel) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"")
    maker = PageMaker(path, reserved_bytes=0, map_bytes=1 << 40)
    asked = FIRST + LARGE
    try:
        assert maker.try_reserve(asked)
    finally:
        maker.close()  # what is made ahead is there then
    assert kernel.made == [(0, FIRST // 2), (FIRST // 2, FIRST // 2)]
    assert kernel.large == list(range(FIRST, maker.reserved_bytes, LARGE))
    assert maker.reserved_bytes == asked + 8 * MIB
