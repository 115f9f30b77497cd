"""A store that many processes write, seen from one process; what many do to it is in tests/process/test_shared_tier.py."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import numpy as np
import pytest

from leaks import wait_until
from prefeed.store import environment
from prefeed.store.layout import INLINE_MAX_BYTES, PAGE_BYTES, PAGE_HEADER_BYTES
from prefeed.store.shared import SharedTier, remove_store
from prefeed.store.shared_writer import get_checksum
from prefeed.testing.tier_contract import SIZES, key_of, value_of
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024**2
LIMIT_BYTES = 16 * MIB


@pytest.fixture(params=["memory", "disk"])
def on_disk(request: pytest.FixtureRequest) -> bool:
    return request.param == "disk"


@pytest.fixture
def directory(sandbox: Sandbox, on_disk: bool) -> Path:
    path = (sandbox.root if on_disk else sandbox.memory_dir) / "cache"
    path.mkdir()
    return path


@pytest.fixture
def without_waiting(sandbox: Sandbox) -> Path:
    """Return a directory in memory, also for a store on disk: its many commits wait for none."""
    path = sandbox.memory_dir / "cache"
    path.mkdir(exist_ok=True)
    return path


@pytest.fixture
def tier(directory: Path, on_disk: bool) -> Iterator[SharedTier]:
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    yield tier
    tier.close()


def _items(numbers: range, size_bytes: int = 50_000) -> list[tuple[bytes, bytes]]:
    return [(key_of(i), value_of(i, size_bytes)) for i in numbers]


def _fill(tier: SharedTier, size_bytes: int = 50_000, group: int = 8) -> int:
    """Put until nothing more is taken; returns how many values there are."""
    count = 0
    while stored := tier.put_many(_items(range(count, count + group), size_bytes)):
        count += stored
    return count


def _taken_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


# ---------------------------------------------------------------- values


def test_a_value_comes_back_as_it_went_in(tier: SharedTier) -> None:
    values = {key_of(i): value_of(i, size) for i, size in enumerate(SIZES)}
    assert tier.put_many(list(values.items())) == len(SIZES)
    assert {key: tier.get(key) for key in values} == values
    with tier.batch() as batch:
        views = batch.get_views(list(values))
        assert [view is not None and bytes(view) for view in views] == list(values.values())
    assert tier.keys() == sorted(values)
    found = tier.statistics()
    assert (found.entries, found.value_bytes, found.corrupt) == (len(SIZES), sum(SIZES), 0)
    assert found.value_bytes < found.stored_bytes < found.limit_bytes == LIMIT_BYTES // PAGE_BYTES * PAGE_BYTES


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_a_value(tier: SharedTier, buffer: type[bytes]) -> None:
    assert tier.put_many([(key_of(1), buffer(b"abc" * 5000))]) == 1
    assert tier.get(key_of(1)) == b"abc" * 5000


def test_unknown_keys_are_none_in_place(tier: SharedTier) -> None:
    tier.put_many([(key_of(1), b"one"), (key_of(3), b"three")])
    with tier.batch() as batch:
        found = batch.get_views([key_of(i) for i in range(5)])
        assert [view and bytes(view) for view in found] == [None, b"one", None, b"three", None]
        assert batch.get_views([]) == []


def test_a_put_replaces(tier: SharedTier) -> None:
    for size in (10_000, 50, 0, 90_000, 4000, 4000):
        assert tier.put_many([(key_of(7), value_of(size, size)), (key_of(8), b"stays")]) == 2
        assert tier.get(key_of(7)) == value_of(size, size)
        found = tier.statistics()
        assert (found.entries, found.value_bytes) == (2, size + 5)


def test_the_last_of_a_group_with_one_key_twice_stays(tier: SharedTier) -> None:
    assert tier.put_many([(key_of(1), b"first"), (key_of(1), b"last one")]) == 2
    assert tier.get(key_of(1)) == b"last one"
    assert tier.statistics().value_bytes == len(b"last one")


def test_what_is_deleted_is_gone(tier: SharedTier) -> None:
    tier.put_many(_items(range(20)))
    tier.delete_many([key_of(i) for i in range(1, 20)] + [key_of(99)])
    tier.delete_many([])
    assert tier.keys() == [key_of(0)]
    assert tier.statistics().value_bytes == 50_000
    tier.delete_many([key_of(0)])
    assert (tier.statistics().entries, tier.statistics().value_bytes, tier.statistics().stored_bytes) == (0, 0, 0)


def test_no_key_but_of_16_bytes(tier: SharedTier) -> None:
    for key in (b"", b"short", b"x" * 17):
        with pytest.raises(ValueError, match="16 bytes"):
            tier.put_many([(key_of(0), b"x"), (key, b"x")])
    assert tier.keys() == []


def test_a_large_value_lies_16_bytes_behind_a_page(tier: SharedTier) -> None:
    sizes = [INLINE_MAX_BYTES + 1, 4080, 4081, 100_000, MIB]
    tier.put_many([(key_of(i), value_of(i, size)) for i, size in enumerate(sizes)])
    with tier.batch() as batch:
        views = batch.get_views([key_of(i) for i in range(len(sizes))])
        addresses = [np.frombuffer(view, np.uint8).ctypes.data for view in views if view is not None]
        assert [address % PAGE_BYTES for address in addresses] == [16] * len(sizes)


def test_a_view_is_dead_after_its_batch(tier: SharedTier) -> None:
    tier.put_many([(key_of(1), b"x" * 5000)])
    with tier.batch() as batch:
        view = batch.get_view(key_of(1))
        assert view is not None
    with pytest.raises(ValueError, match="released"):
        bytes(view)


def test_a_batch_sees_what_was_there_when_it_began(tier: SharedTier) -> None:
    tier.put_many(_items(range(3)))
    with tier.batch() as batch:
        view = batch.get_view(key_of(0))
        tier.put_many([(key_of(0), b"new"), (key_of(5), b"new")])
        tier.delete_many([key_of(1)])
        for _ in range(20):
            tier.put_many([(key_of(6), b"\xff" * 50_000)])
        assert view == value_of(0, 50_000)
        assert batch.get_view(key_of(1)) == value_of(1, 50_000)
        assert batch.get_view(key_of(5)) is None
    assert tier.get(key_of(0)) == b"new"


# ---------------------------------------------------------------- the limit


@pytest.mark.parametrize(
    ("limit_bytes", "size_bytes"),
    [(MIB, 100), (MIB, 3000), (MIB, 50_000), (3 * MIB + 12_345, 3000), (24 * MIB, 3000), (40 * MIB, 50_000)],
)
def test_the_files_never_take_more_than_the_limit(
    without_waiting: Path, on_disk: bool, limit_bytes: int, size_bytes: int
) -> None:
    tier = SharedTier(without_waiting, limit_bytes=limit_bytes, on_disk=on_disk)
    count = _fill(tier, size_bytes, group=256)
    assert _taken_bytes(without_waiting) <= limit_bytes
    tier.put_many([(key_of(i), value_of(i, size_bytes // 2)) for i in range(0, count, 3)])
    tier.delete_many([key_of(i) for i in range(0, count, 2)])
    _fill(tier, size_bytes, group=7)
    assert _taken_bytes(without_waiting) <= limit_bytes
    assert count * size_bytes > 0.6 * limit_bytes or size_bytes == 100
    tier.close()


def test_what_does_not_fit_is_not_stored_and_what_was_stays(tier: SharedTier) -> None:
    count = _fill(tier)
    assert tier.keys() == sorted(key_of(i) for i in range(count))
    assert all(tier.get(key_of(i)) == value_of(i, 50_000) for i in range(count))
    assert tier.put_many([(key_of(10_000), bytes(2 * LIMIT_BYTES))]) == 0
    assert tier.put_many([]) == 0
    assert count * 50_000 > 0.9 * LIMIT_BYTES


def test_a_group_is_stored_as_far_as_there_is_room(tier: SharedTier) -> None:
    items = _items(range(1000))
    stored = tier.put_many(items)
    assert 0.4 * LIMIT_BYTES < stored * 50_000 < LIMIT_BYTES
    assert tier.keys() == sorted(key for key, _ in items[:stored])


@pytest.mark.parametrize("group", [1, 5])
def test_every_value_of_a_full_store_can_be_replaced(without_waiting: Path, on_disk: bool, group: int) -> None:
    tier = SharedTier(without_waiting, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    count = _fill(tier)
    for first in range(0, count - group + 1, group):
        numbers = range(first, first + group)
        assert tier.put_many([(key_of(i), value_of(i + 1, 50_000)) for i in numbers]) == group
        assert tier.get(key_of(first)) == value_of(first + 1, 50_000)
    assert tier.statistics().entries == count
    tier.close()


def test_room_made_by_deleting_is_used_again(tier: SharedTier, directory: Path, on_disk: bool) -> None:
    count = _fill(tier)
    other = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    other.delete_many([key_of(i) for i in range(0, count, 2)])
    other.close()
    again = 0
    while stored := tier.put_many(_items(range(5000 + again, 5008 + again))):
        again += stored
    assert again >= count // 2 - 8


def test_a_limit_too_small_for_a_store_takes_nothing(directory: Path, on_disk: bool) -> None:
    tier = SharedTier(directory, limit_bytes=20_000, on_disk=on_disk)
    assert tier.put_many([(key_of(1), b"x")]) == 0
    assert tier.get(key_of(1)) is None
    assert tier.statistics().entries == 0
    assert list(directory.iterdir()) == []


def test_growing_makes_room_for_others_too(tier: SharedTier, directory: Path, on_disk: bool) -> None:
    owner = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    count = _fill(tier)
    assert owner.get(key_of(0)) is not None
    owner.grow(2 * LIMIT_BYTES)
    assert tier.put_many(_items(range(count, count + 100))) == 100
    assert owner.get(key_of(count + 50)) == value_of(count + 50, 50_000)
    assert owner.put_many(_items(range(1000, 1010))) == 10
    assert tier.statistics().limit_bytes == owner.statistics().limit_bytes == 2 * LIMIT_BYTES
    assert _taken_bytes(directory) <= 2 * LIMIT_BYTES
    owner.grow(MIB)
    assert owner.limit_bytes == 2 * LIMIT_BYTES
    owner.close()


def test_a_smaller_limit_cuts_nothing_off(tier: SharedTier, directory: Path, on_disk: bool) -> None:
    """LMDB would cut the file to the size of its map, under the other processes."""
    count = _fill(tier)
    tier.close()
    late = SharedTier(directory, limit_bytes=MIB, on_disk=on_disk)
    assert late.put_many([(key_of(1), b"x")]) == 1
    assert late.statistics().limit_bytes > MIB
    assert [late.get(key_of(i)) for i in range(2, count)] == [value_of(i, 50_000) for i in range(2, count)]
    assert (directory / "data.mdb").stat().st_size > LIMIT_BYTES - MIB
    late.close()


def test_one_that_no_other_process_has_open_can_take_less(tier: SharedTier, directory: Path) -> None:
    tier.put_many(_items(range(100)))
    taken = tier.file_bytes()
    assert 100 * 50_000 < taken < LIMIT_BYTES
    tier.shrink(LIMIT_BYTES // 2)
    assert tier.limit_bytes == tier.statistics().limit_bytes == LIMIT_BYTES // 2
    count = 100
    while stored := tier.put_many(_items(range(count, count + 8))):
        count += stored
    assert 0.9 * LIMIT_BYTES / 2 < tier.file_bytes() <= LIMIT_BYTES // 2
    assert _taken_bytes(directory) <= LIMIT_BYTES // 2
    assert all(tier.get(key_of(i)) == value_of(i, 50_000) for i in range(count))
    tier.shrink(MIB)
    assert tier.statistics().limit_bytes >= tier.file_bytes() > MIB
    tier.grow(LIMIT_BYTES)
    assert tier.put_many(_items(range(1000, 1020))) == 20


def test_a_store_that_is_not_there_takes_nothing(tier: SharedTier) -> None:
    assert tier.file_bytes() == 0
    tier.shrink(MIB)
    assert tier.limit_bytes == MIB


def test_growing_ahead_of_the_first_put(tier: SharedTier, directory: Path) -> None:
    tier.grow(2 * LIMIT_BYTES)
    assert _fill(tier) * 50_000 > LIMIT_BYTES
    assert LIMIT_BYTES < _taken_bytes(directory) <= 2 * LIMIT_BYTES


def test_what_the_file_system_has_to_keep_free_stays_free(directory: Path, on_disk: bool) -> None:
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    greedy = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk, min_free_bytes=2 * free)
    assert greedy.put_many(_items(range(3))) == 0
    modest = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk, min_free_bytes=free // 2)
    assert modest.put_many(_items(range(3))) == 3
    modest.close()
    greedy.close()


_FULL = """
import sys
from pathlib import Path
from prefeed.store.shared import SharedTier
from prefeed.testing.tier_contract import key_of, value_of
directory, on_disk = Path(sys.argv[1]) / "store", sys.argv[2] == "disk"
directory.mkdir()
tier = SharedTier(directory, limit_bytes=64 * 2**20, on_disk=on_disk)
count = 0
while stored := tier.put_many([(key_of(i), value_of(i, 84_000)) for i in range(count, count + 8)]):
    count += stored
assert 100 < count < 200, count
for number in range(count):
    tier.put_many([(key_of(number), value_of(number, 84_000))])
    tier.put_many([(key_of(1000 + number), value_of(number, 500))])
tier.delete_many([key_of(0)])
held = [number for number in range(count) if tier.get(key_of(number)) is not None]
assert all(tier.get(key_of(number)) == value_of(number, 84_000) for number in held)
other = Path(sys.argv[1]) / "other"
other.mkdir()
assert SharedTier(other, limit_bytes=64 * 2**20, on_disk=on_disk).put_many([(key_of(1), bytes(100_000))]) == 0
print("survived")
"""


def test_a_full_file_system_is_no_bus_error(sandbox: Sandbox, on_disk: bool) -> None:
    """In a mount namespace of its own: needs no root where user namespaces are allowed."""
    mount = f'mount -t tmpfs -o size=16m none "{sandbox.home}" && exec "$0" -c "$1" "{sandbox.home}" "$2"'
    command = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", mount, sys.executable, _FULL]
    done = subprocess.run([*command, "disk" if on_disk else "memory"], capture_output=True, text=True, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip("this machine allows no user namespaces, and a file system of a given size needs one")
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


# ---------------------------------------------------------------- opening and letting go


@pytest.mark.parametrize("made_again", [False, True])
def test_dropped_while_it_is_opened_for_the_first_time(
    tier: SharedTier, directory: Path, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    """Whoever drops a cache takes no lock: the put stores nothing, and nothing stays open."""
    opening = lmdb.open

    def drop_first(path: str, **settings: object) -> lmdb.Environment:
        env = opening(path, **settings)
        monkeypatch.undo()
        shutil.rmtree(directory)
        if made_again:
            directory.mkdir()
            other = subprocess.run([sys.executable, "-c", _ONE, str(directory)], check=False)
            assert other.returncode == 0
        return env

    monkeypatch.setattr(lmdb, "open", drop_first)
    assert tier.put_many(_items(range(1))) == 0
    assert environment._open == {}
    assert tier.put_many(_items(range(1))) == (1 if made_again else 0)


_ONE = """
import sys
from prefeed.store.shared import SharedTier
tier = SharedTier(sys.argv[1], limit_bytes=2**20)
tier.grow(2**20)
tier.put_many([(bytes(16), b"x")])
"""


def test_nothing_is_opened_before_it_is_used(directory: Path, on_disk: bool) -> None:
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    assert (tier.directory, tier.limit_bytes) == (directory, LIMIT_BYTES)
    assert list(directory.iterdir()) == []
    assert tier.get(key_of(1)) is None
    assert tier.keys() == []
    tier.delete_many([key_of(1)])
    tier.close()


def test_reading_opens_for_reading(tier: SharedTier, directory: Path, on_disk: bool) -> None:
    tier.put_many(_items(range(3)))
    tier.close()
    assert tier.get(key_of(1)) == value_of(1, 50_000)
    assert "rw" not in _permissions(directory)
    tier.put_many(_items(range(3, 4)))
    assert ("rw" in _permissions(directory)) == (not on_disk)


def _permissions(directory: Path) -> str:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return "".join(line.split()[1] for line in lines if line.endswith(f"{directory}/data.mdb"))


def test_the_first_put_waits_until_other_threads_have_left_their_batches(tier: SharedTier) -> None:
    tier.put_many(_items(range(3)))
    tier.close()
    stored: list[int] = []
    with tier.batch() as batch:
        view = batch.get_view(key_of(0))
        assert tier.put_many([(key_of(9), b"x")]) == 0, "this thread is inside a batch"
        writing = threading.Thread(target=lambda: stored.append(tier.put_many([(key_of(8), b"x")])))
        writing.start()
        assert wait_until(lambda: any(shared.reopening for shared in environment._open.values()), timeout_seconds=60)
        assert stored == []
        assert view == value_of(0, 50_000)
        with tier.batch() as inner:  # this thread may go on reading, or nobody would ever leave
            assert inner.get_view(key_of(1)) == value_of(1, 50_000)
    writing.join()
    assert stored == [1]
    assert tier.get(key_of(8)) == b"x"
    with tier.batch():
        assert tier.put_many([(key_of(9), b"x")]) == 1


def test_threads_that_begin_at_once_lose_nothing(sandbox: Sandbox, quick_switches: None) -> None:
    for number in range(50):
        directory = sandbox.root / str(number)
        directory.mkdir()
        tier = SharedTier(directory, limit_bytes=4 * MIB)
        stored: list[int] = []
        threads = [threading.Thread(target=_read_and_put, args=(tier, start, stored)) for start in range(0, 40, 10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stored == [1] * 40
        assert tier.keys() == sorted(key_of(i) for i in range(40))
        tier.close()


def _read_and_put(tier: SharedTier, start: int, stored: list[int]) -> None:
    for item in _items(range(start, start + 10), size_bytes=1000):
        tier.get(item[0])
        stored.append(tier.put_many([item]))


@pytest.fixture
def quick_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_a_pickled_one_is_the_same(tier: SharedTier, on_disk: bool) -> None:
    tier.put_many(_items(range(3)))
    copy = pickle.loads(pickle.dumps(tier))
    assert (copy.directory, copy.limit_bytes) == (tier.directory, tier.limit_bytes)
    assert copy.get(key_of(1)) == value_of(1, 50_000)
    assert copy.put_many([(key_of(5), b"five")]) == 1
    assert tier.get(key_of(5)) == b"five"
    copy.close()


def test_a_removed_store_holds_and_takes_nothing(tier: SharedTier, directory: Path) -> None:
    tier.put_many(_items(range(3)))
    with tier.batch() as batch:
        view = batch.get_view(key_of(1))
        remove_store(directory)
        assert not directory.exists()
        assert not tier.is_current()
        assert view == value_of(1, 50_000)
    assert tier.put_many(_items(range(3))) == 0
    assert tier.get(key_of(1)) is None
    assert not directory.exists()
    assert f"{directory}/data.mdb" not in Path("/proc/self/maps").read_text(), "its memory is held"
    remove_store(directory)


def test_a_reader_lets_go_of_a_removed_store(tier: SharedTier, directory: Path) -> None:
    assert tier.is_current()
    assert not tier.reopen_if_replaced()
    tier.put_many(_items(range(3)))
    assert tier.is_current()
    assert not tier.reopen_if_replaced()
    shutil.rmtree(directory)
    assert tier.reopen_if_replaced()
    assert f"{directory}/data.mdb" not in Path("/proc/self/maps").read_text()
    directory.mkdir()
    assert tier.put_many(_items(range(1))) == 1
    assert tier.keys() == [key_of(0)]


def test_files_of_others_are_left(tier: SharedTier, directory: Path) -> None:
    tier.put_many(_items(range(3)))
    (directory / "note").write_text("x")
    remove_store(directory)
    assert [path.name for path in directory.iterdir()] == ["note"]
    tier.close()


def test_what_was_stored_is_there_for_the_next_one(tier: SharedTier, directory: Path, on_disk: bool) -> None:
    tier.put_many(_items(range(10)))
    tier.close()
    assert tier.get(key_of(3)) == value_of(3, 50_000)
    again = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    assert again.keys() == sorted(key_of(i) for i in range(10))
    again.close()


# ---------------------------------------------------------------- damage


def _overwrite(directory: Path, offset: int, data: bytes) -> None:
    with (directory / "data.mdb").open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _hint_is_right(directory: Path, value: bytes, page: int) -> bool:
    with (directory / "data.mdb").open("rb") as file:
        file.seek(page * PAGE_BYTES + PAGE_HEADER_BYTES)
        return file.read(len(value)) == value


def test_it_is_known_where_values_lie_on_disk(sandbox: Sandbox) -> None:
    """So that they can be read ahead; a wrong hint would only be slow, which nobody would notice."""
    directory = sandbox.root / "hints"
    directory.mkdir()
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=True)
    tier.put_many(_items(range(5), 30_000))
    tier.put_many([*_items(range(5, 30)), (key_of(30), b"small"), (key_of(3), value_of(3, 70_000))])
    tier.delete_many([key_of(9)])
    tier.put_many(_items(range(40, 60), 10_000))
    with tier.batch() as batch:
        shared, txn = batch._shared, batch._txn
        keys = sorted(set(tier.keys()) - {key_of(30)})
        hints = {key: get_checksum(shared, txn, key) for key in keys}
        values = dict(zip(keys, map(bytes, filter(None, batch.get_views(keys))), strict=True))
        small = get_checksum(shared, txn, key_of(30))
    assert all(hint and _hint_is_right(directory, values[key], hint.page) for key, hint in hints.items())
    assert small is not None
    assert (small.page, small.size_bytes) == (0, 5)
    tier.close()


def _offset_of(directory: Path, data: bytes) -> int:
    return (directory / "data.mdb").read_bytes().index(data)


@pytest.mark.parametrize("on_disk", [True], indirect=False)
def test_a_damaged_value_is_not_served_but_counted_and_gone(sandbox: Sandbox, on_disk: bool) -> None:
    directory = sandbox.root / "damaged"
    directory.mkdir()
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=True)
    tier.put_many(_items(range(5)))
    _overwrite(directory, _offset_of(directory, value_of(3, 50_000)) + 40_000, b"\xee")
    with tier.batch() as batch:
        found = batch.get_views([key_of(i) for i in range(5)])
        assert [view is not None for view in found] == [True, True, True, False, True]
    assert tier.keys() == sorted(key_of(i) for i in (0, 1, 2, 4))
    found_now = tier.statistics()
    assert (found_now.entries, found_now.value_bytes, found_now.corrupt) == (4, 200_000, 1)
    assert tier.put_many(_items(range(3, 4))) == 1
    assert tier.get(key_of(3)) == value_of(3, 50_000)
    tier.close()


@pytest.mark.parametrize("opened", [False, True], ids=["before opening", "while open"])
@pytest.mark.parametrize("damaged", ["the first pages", "the root", "the values"])
def test_a_damaged_store_is_emptied(tier: SharedTier, directory: Path, damaged: str, opened: bool) -> None:
    tier.put_many(_items(range(200)))
    if not opened:
        tier.close()
    for number in _pages_of(directory, damaged):
        _overwrite(directory, number * PAGE_BYTES, bytes(PAGE_BYTES))
    for _ in range(2):  # whichever call meets the damage
        tier.get(key_of(0))
        tier.put_many(_items(range(5)))
    assert tier.put_many(_items(range(5))) == 5
    assert [tier.get(key_of(i)) for i in range(5)] == [value for _, value in _items(range(5))]
    assert all(tier.get(key_of(i)) in (None, value_of(i, 50_000)) for i in range(200))


@pytest.mark.parametrize("left", [0, 1, 2, 3, 20], ids=lambda pages: f"{pages} pages")
@pytest.mark.parametrize("first", ["get", "put"])
def test_a_store_that_was_cut_short_is_emptied(tier: SharedTier, directory: Path, left: int, first: str) -> None:
    tier.put_many(_items(range(200)))
    tier.close()
    os.truncate(directory / "data.mdb", left * PAGE_BYTES)
    if first == "get":
        assert [tier.get(key_of(i)) for i in (0, 100, 199)] == [None] * 3
    assert tier.put_many(_items(range(5))) == 5
    assert [tier.get(key_of(i)) for i in range(5)] == [value for _, value in _items(range(5))]
    assert tier.statistics().entries == 5


def _pages_of(directory: Path, what: str) -> list[int]:
    if what == "the first pages":
        return [0, 1]
    data = (directory / "data.mdb").read_bytes()
    found = []
    for number in range(2, len(data) // PAGE_BYTES):
        page = data[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
        of_tree = page[:8] == number.to_bytes(8, "little") and page[10] in (1, 2) and page[11] == 0
        if of_tree and (b"layout" in page) == (what == "the root"):
            found.append(number)
    return found


def test_a_store_of_another_kind_is_replaced(tier: SharedTier, directory: Path) -> None:
    env = lmdb.open(os.fspath(directory), map_size=MIB, max_dbs=2)
    with env.begin(write=True) as txn:
        txn.put(b"layout", b"unknown")
    env.close()
    assert tier.get(key_of(1)) is None
    assert tier.put_many(_items(range(1, 2))) == 1
    assert tier.get(key_of(1)) == value_of(1, 50_000)


@pytest.mark.parametrize("left", ["lock.mdb", "data.mdb"])
def test_what_a_killed_process_left_half_made_is_made_again(tier: SharedTier, directory: Path, left: str) -> None:
    (directory / left).touch()
    assert tier.get(key_of(1)) is None
    assert tier.put_many(_items(range(3))) == 3
    assert tier.get(key_of(1)) == value_of(1, 50_000)


def test_a_file_of_zeros_is_made_again(tier: SharedTier, directory: Path) -> None:
    """What is left when LMDB has made its file large and was killed before it wrote the first page."""
    tier.put_many(_items(range(1)))
    tier.close()
    os.truncate(directory / "data.mdb", 0)
    os.truncate(directory / "data.mdb", LIMIT_BYTES)
    assert tier.put_many(_items(range(3))) == 3
    assert tier.get(key_of(1)) == value_of(1, 50_000)
