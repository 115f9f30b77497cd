"""The disk tier of objects, over the store that is really on disk."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leaks import wait_until
from prefeed.errors import StoreError
from prefeed.server import disk
from prefeed.server.disk import DiskTier, unnamed
from prefeed.testing.tier_contract import key_of, value_of
from prefeed.types import Buffer, ClearResult
from sandbox import Sandbox

MIB = 1024**2
BUDGET_BYTES = 16 * MIB
SIZE = 50_000


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is offered is written at once, as by a disk that is quick: nothing here is about the size of groups."""
    monkeypatch.setattr(disk, "_LINGER_SECONDS", 0.0)


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.root / "disk" / "objects"


@pytest.fixture
def tiers(directory: Path) -> Iterator[list[DiskTier]]:
    """Those that a test has opened; it may close them itself."""
    opened: list[DiskTier] = []
    yield opened
    for tier in opened:
        tier.close()


def open_tier(tiers: list[DiskTier], directory: Path, budget_bytes: int = BUDGET_BYTES, **kwargs: Any) -> DiskTier:
    tiers.append(DiskTier(directory, budget_bytes=budget_bytes, **{"min_free_bytes": 0, **kwargs}))
    return tiers[-1]


def named(*numbers: range) -> list[memoryview]:
    """Return keys as a dataset in use has them."""
    return [memoryview(b"".join(map(key_of, part))) for part in numbers]


@contextmanager
def held_up(tier: DiskTier) -> Iterator[None]:
    """Keep the tier's thread from writing; reads are as ever."""
    arrived, go = threading.Event(), threading.Event()

    def wait(_: ClearResult) -> None:
        arrived.set()
        go.wait(60)

    tier.clear([], wait)
    assert arrived.wait(60)
    try:
        yield
    finally:
        go.set()


def clear(tier: DiskTier, keys: list[memoryview] | None) -> ClearResult:
    """Clear and wait for it."""
    results: list[ClearResult] = []
    tier.clear(keys, results.append)
    assert wait_until(lambda: bool(results), timeout_seconds=60)
    return results[0]


def settle(tier: DiskTier) -> None:
    """Wait until nothing waits to be written."""
    assert wait_until(lambda: not tier._waiting and not tier._writing, timeout_seconds=60)


def offer(tier: DiskTier, numbers: Iterable[int], size: int = SIZE) -> None:
    """Offer and wait until what could be stored is."""
    for number in numbers:
        tier.offer(key_of(number), value_of(number, size))
    settle(tier)


def held(tier: DiskTier, numbers: Iterable[int], size: int = SIZE) -> list[int]:
    """Return those that are there, whose bytes must be right."""
    found = []
    for number in numbers:
        data = tier.read(key_of(number))
        assert data is None or bytes(data) == value_of(number, size)
        if data is not None:
            found.append(number)
    return found


def fill(tier: DiskTier) -> list[int]:
    """Offer more than there is room for, of a dataset in use; return what was kept."""
    numbers = range(2 * BUDGET_BYTES // SIZE)
    tier.keys_in_use = lambda: named(range(5000))
    offer(tier, numbers)
    kept = held(tier, numbers)
    assert kept[: len(kept) // 2] == list(numbers)[: len(kept) // 2]
    assert 0.6 * BUDGET_BYTES < len(kept) * SIZE < BUDGET_BYTES
    return kept


def taken_bytes(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.iterdir())


# ---------------------------------------------------------------- what was offered is there


@pytest.mark.parametrize("size", [0, 1, 1000, 4096, SIZE, 3 * MIB])
def test_what_was_offered_is_there_for_the_next_one(tiers: list[DiskTier], directory: Path, size: int) -> None:
    tier = open_tier(tiers, directory)
    offer(tier, range(4), size)
    assert held(tier, range(6), size) == [0, 1, 2, 3]
    assert (tier.counts().objects, tier.counts().bytes) == (4, 4 * size)
    tier.close()
    again = open_tier(tiers, directory)
    assert held(again, range(6), size) == [0, 1, 2, 3]
    assert (again.counts().objects, again.counts().bytes) == (4, 4 * size)


def test_what_waits_is_read_too_and_closing_writes_it(tiers: list[DiskTier], directory: Path) -> None:
    """A second epoch may begin before the first one's last objects are written."""
    tier = open_tier(tiers, directory)
    with held_up(tier):
        data = value_of(1, SIZE)
        tier.offer(key_of(1), data)
        tier.offer(key_of(2), b"")
        assert tier.read(key_of(1)) is data
        assert tier.read(key_of(2)) == b""
        assert tier.counts().objects == 0
    tier.close()
    assert tier.read(key_of(1)) is None
    assert held(open_tier(tiers, directory), [1]) == [1]


def test_the_bytes_that_wait_are_bounded(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory, 1024 * MIB)
    data = bytes(MIB)
    with held_up(tier):
        for number in range(130):
            tier.offer(key_of(number), data)
        assert [number for number in range(130) if tier.read(key_of(number)) is None] == [128, 129]
        assert tier.counts().dropped == 2
        tier.clear(None, lambda _: None)
        tier.offer(key_of(200), bytes(129 * MIB))  # a large one may wait alone
        tier.offer(key_of(201), data)
        assert tier.counts().dropped == 3
        tier.clear(None, lambda _: None)


def test_a_damaged_object_is_absent_counted_and_taken_again(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    offer(tier, range(5))
    file = directory / "data.mdb"
    at = file.read_bytes().index(value_of(3, SIZE))
    with file.open("r+b") as opened:
        opened.seek(at + 40_000)
        opened.write(b"\xee")
    assert held(tier, range(5)) == [0, 1, 2, 4]
    assert (tier.counts().corrupt, tier.counts().objects) == (1, 4)
    offer(tier, [3])
    assert held(tier, range(5)) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------- clearing


def test_clearing_by_key_and_everything(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    assert clear(tier, named(range(3))) == ClearResult(entries=0, bytes=0)
    offer(tier, range(100))
    assert clear(tier, named(range(10, 20), range(15, 30), range(500, 501))) == ClearResult(entries=20, bytes=20 * SIZE)
    assert held(tier, range(100)) == [*range(10), *range(30, 100)]
    assert clear(tier, []) == ClearResult(entries=0, bytes=0)
    assert clear(tier, None) == ClearResult(entries=80, bytes=80 * SIZE)
    assert taken_bytes(directory) < MIB
    offer(tier, range(5))
    assert held(tier, range(100)) == list(range(5))


def test_nothing_is_read_or_written_that_is_to_be_cleared(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    offer(tier, range(5))
    with held_up(tier):
        tier.offer(key_of(7), value_of(7, SIZE))
        tier.clear(named(range(2), range(7, 8)), lambda _: None)
        assert held(tier, range(10)) == []
    assert wait_until(lambda: not tier._clears, timeout_seconds=60)
    settle(tier)
    assert held(tier, range(10)) == [2, 3, 4]


def test_clearing_while_others_read_and_write(tiers: list[DiskTier], directory: Path) -> None:
    """No error anywhere, and never wrong bytes."""
    tier = open_tier(tiers, directory)
    failed: list[BaseException] = []
    is_over = threading.Event()

    def use(first: int) -> None:
        try:
            while not is_over.is_set():
                for number in range(first, first + 40):
                    tier.offer(key_of(number), value_of(number, SIZE))
                held(tier, range(80))
        except Exception as err:  # noqa: BLE001  # for the assertion below, in the test's thread
            failed.append(err)

    threads = [threading.Thread(target=use, args=(first,)) for first in (0, 20, 40)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        clear(tier, None if turn % 3 == 0 else named(range(turn, 60)))
        tier.resize(BUDGET_BYTES + (turn % 4 - 2) * MIB)
        assert tier.counts().corrupt == 0
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failed
    offer(tier, range(3))
    assert held(tier, range(3)) == [0, 1, 2]


# ---------------------------------------------------------------- full


def test_the_budget_holds_and_nothing_in_use_goes(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    offer(tier, range(3000, 3300))
    assert held(tier, kept) == kept
    assert taken_bytes(directory) <= BUDGET_BYTES
    assert tier.file_bytes <= BUDGET_BYTES


def test_unused_data_makes_room(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    tier.keys_in_use = lambda: named(range(100), range(1000, 5000))
    offer(tier, range(1000, 1050))
    offer(tier, range(1050, 1200))
    assert held(tier, range(100)) == list(range(100))
    assert len(held(tier, range(1000, 1200))) > 100
    assert 0 < len(held(tier, kept)) < len(kept)
    assert taken_bytes(directory) <= BUDGET_BYTES


def test_old_bytes_of_changed_files_make_room(tiers: list[DiskTier], directory: Path) -> None:
    """The datasets in use stay the same, but name other keys."""
    tier = open_tier(tiers, directory)
    fill(tier)
    tier.keys_in_use = lambda: named(range(1000, 5000))
    numbers = iter(range(1000, 5000))

    def is_stored() -> bool:
        offer(tier, [next(numbers) for _ in range(8)])
        return bool(held(tier, range(1000, 5000)))

    assert wait_until(is_stored, timeout_seconds=60)


def test_what_can_never_fit_drives_nothing_out(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    offer(tier, range(50))
    offer(tier, [100], 15 * MIB)
    offer(tier, [101], 40 * MIB)
    assert held(tier, range(50)) == list(range(50))
    assert tier.counts().objects == 50
    assert tier.counts().dropped == 0


@pytest.mark.parametrize("budget_bytes", [-5, 0, 1, 20_000, 100_000])
def test_a_budget_too_small_for_anything_takes_nothing(
    tiers: list[DiskTier], directory: Path, budget_bytes: int
) -> None:
    tier = open_tier(tiers, directory, budget_bytes)
    offer(tier, range(5), 100_000)
    assert held(tier, range(5), 100_000) == []
    assert tier.counts().budget_bytes == max(0, budget_bytes)
    assert taken_bytes(directory) <= 100_000
    tier.resize(BUDGET_BYTES)
    offer(tier, range(5))
    assert held(tier, range(5)) == list(range(5))


def test_a_file_system_that_is_to_keep_what_it_has_free_costs_no_entry(tiers: list[DiskTier], directory: Path) -> None:
    """Deleting makes no room there: what is in the tier stays, though nobody names it."""
    tier = open_tier(tiers, directory)
    offer(tier, range(50))
    tier.close()
    found = os.statvfs(directory)
    frugal = open_tier(tiers, directory, min_free_bytes=2 * found.f_blocks * found.f_frsize)
    offer(frugal, range(200, 400))
    assert held(frugal, range(400)) == list(range(50))


def test_a_file_system_that_takes_nothing_is_no_error(tiers: list[DiskTier], directory: Path) -> None:
    """A store that cannot be written: reads go on, and the thread does not try for ever."""
    tier = open_tier(tiers, directory)
    offer(tier, range(50))
    tier._tier.put_many = lambda _: 0  # type: ignore[method-assign]
    tier._tier.delete_many = lambda _: None  # type: ignore[method-assign]
    offer(tier, range(100, 300))
    assert held(tier, range(300)) == list(range(50))
    assert clear(tier, named(range(5))).entries == 0


# ---------------------------------------------------------------- another budget


def test_a_larger_budget_takes_more_at_once(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    assert tier.resize(3 * BUDGET_BYTES) == 3 * BUDGET_BYTES
    offer(tier, range(1000, 1100))
    assert held(tier, range(1000, 1100)) == list(range(1000, 1100))
    assert held(tier, kept) == kept


def test_a_smaller_budget_is_what_it_takes_already(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    may_take = tier.resize(MIB)
    assert may_take == tier.file_bytes <= BUDGET_BYTES
    offer(tier, range(1000, 1200))
    assert held(tier, kept) == kept
    assert taken_bytes(directory) <= may_take


def test_the_next_one_has_the_budget_that_it_is_given(tiers: list[DiskTier], directory: Path) -> None:
    """The file still says what it might have taken."""
    tier = open_tier(tiers, directory)
    offer(tier, range(20))
    tier.close()
    smaller = open_tier(tiers, directory, 6 * MIB, keys_in_use=lambda: named(range(5000)))
    offer(smaller, range(1000, 1400))
    assert held(smaller, range(20)) == list(range(20))
    assert taken_bytes(directory) <= 6 * MIB


@pytest.mark.parametrize("keep_bytes", [0, MIB, BUDGET_BYTES])
def test_files_larger_than_the_budget(tiers: list[DiskTier], directory: Path, keep_bytes: int) -> None:
    """Less was asked for: they go. Others have filled the disk: they stay as they are."""
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    tier.close()
    smaller = open_tier(tiers, directory, MIB, keep_bytes=keep_bytes, keys_in_use=lambda: named(range(5000)))
    may_take = max(MIB, smaller.file_bytes)  # its end, and not its blocks: pages before it that are free may be holes
    assert held(smaller, kept) == (kept if keep_bytes == BUDGET_BYTES else [])
    assert may_take == MIB or keep_bytes == BUDGET_BYTES
    offer(smaller, range(1000, 1200))
    assert taken_bytes(directory) <= may_take


# ---------------------------------------------------------------- beginning and end


def test_closing_frees_nothing(tiers: list[DiskTier], directory: Path) -> None:
    """Catalogues are closed with the server, and name nothing any more."""
    tier = open_tier(tiers, directory)
    kept = fill(tier)
    tier.resize(BUDGET_BYTES + 1)  # offers are taken again
    with held_up(tier):
        for number in range(1000, 1100):
            tier.offer(key_of(number), value_of(number, SIZE))
        tier.keys_in_use = tuple
        closing = threading.Thread(target=tier.close)
        closing.start()
        assert wait_until(lambda: tier._is_closing, timeout_seconds=60)
    closing.join()
    assert held(open_tier(tiers, directory), kept) == kept


def test_a_directory_that_cannot_be_made(directory: Path) -> None:
    directory.parent.parent.mkdir(exist_ok=True)
    directory.parent.write_text("a file")
    with pytest.raises(StoreError, match="PREFEED_DISK=500GB:/nvme"):
        DiskTier(directory, budget_bytes=BUDGET_BYTES, min_free_bytes=0)


def test_a_directory_that_somebody_removes(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    offer(tier, range(5))
    shutil.rmtree(directory)
    held(tier, range(5))
    offer(tier, range(10, 15))
    assert held(tier, range(20)) == list(range(10, 15))
    shutil.rmtree(directory.parent)  # the disk was taken out: it is not made on the one below
    offer(tier, range(20, 25))
    assert held(tier, range(30)) == []
    assert not directory.parent.exists()


def test_a_store_of_garbage_is_made_again(tiers: list[DiskTier], directory: Path) -> None:
    directory.mkdir(parents=True)
    for name in ("data.mdb", "lock.mdb"):
        (directory / name).write_bytes(os.urandom(100_000))
    tier = open_tier(tiers, directory)
    assert held(tier, range(5)) == []
    offer(tier, range(5))
    assert held(tier, range(5)) == list(range(5))


def test_a_buffer_that_is_no_bytes(tiers: list[DiskTier], directory: Path) -> None:
    tier = open_tier(tiers, directory)
    data: Buffer = memoryview(bytearray(value_of(1, SIZE)))
    tier.offer(key_of(1), data)
    settle(tier)
    assert held(tier, [1]) == [1]


def test_unnamed() -> None:
    keys = [key_of(number) for number in range(10)]
    assert unnamed([], named(range(3))) == []
    assert unnamed(keys, []) == keys
    assert unnamed(keys, [memoryview(b""), *named(range(2, 4), range(8, 100))]) == [keys[i] for i in (0, 1, 4, 5, 6, 7)]
