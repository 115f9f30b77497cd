from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import lmdb
import pytest

from leaks import wait_until
from prefeed.errors import StoreError, TierFullError
from prefeed.store.layout import LAYOUT_KEY, data_path, lock_path, stored_bytes
from prefeed.store.reader import TierReader
from prefeed.store.reservation import Reservation
from prefeed.store.writer import TierWriter
from prefeed.testing.tier_contract import key_of, value_of
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024**2


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


@pytest.fixture
def writer(directory: Path) -> Iterator[TierWriter]:
    writer = TierWriter.open(directory, budget_bytes=16 * MIB)
    yield writer
    writer.close()


def _taken_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


def _fill(writer: TierWriter, size: int, *, transient: bool = False) -> list[bytes]:
    keys = []
    while writer.used_bytes + stored_bytes(size) <= writer.capacity_bytes:
        keys.append(key_of(len(keys)))
        writer.put_many([(keys[-1], value_of(len(keys) - 1, size), transient)])
    return keys


# ---------------------------------------------------------------- room


@pytest.mark.parametrize("residents", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("budget_mib", "group"), [(32, 1), (32, 4), (64, 32)])
def test_every_byte_of_the_capacity_can_be_used(directory: Path, residents: float, budget_mib: int, group: int) -> None:
    """Photos of 60 to 120 KB: residents first, then transients freed in the order in which they came."""
    writer = TierWriter.open(directory, budget_bytes=budget_mib * MIB)
    reader = TierReader(directory)
    rng = random.Random(budget_mib + group)
    capacity, sizes, transients, turned_over, number = writer.capacity_bytes, {}, deque[int](), 0, 0
    while turned_over < 3 * budget_mib * MIB:
        puts, deletes, used = [], [], writer.used_bytes
        for _ in range(group):
            size = rng.randrange(60_000, 120_000)
            transient = used + stored_bytes(size) > capacity * residents
            while used + stored_bytes(size) > capacity and transients:
                freed = transients.popleft()
                deletes.append(key_of(freed))
                used -= stored_bytes(sizes.pop(freed))
            if used + stored_bytes(size) > capacity:
                break
            puts.append((key_of(number), value_of(number, size), transient))
            sizes[number] = size
            used += stored_bytes(size)
            turned_over += stored_bytes(size)
            number += 1
        transients.extend(n for n in range(number - len(puts), number) if puts[n - number + len(puts)][2])
        writer.apply(puts, deletes)
    assert writer.used_bytes == sum(stored_bytes(size) for size in sizes.values()) > capacity - 150_000
    assert all(reader.get(key_of(n)) == value_of(n, size) for n, size in sizes.items())
    assert _taken_bytes(directory) <= budget_mib * MIB
    reader.close()
    writer.close()


def test_freed_in_any_order_room_is_found_for_values_in_pieces(writer: TierWriter, directory: Path) -> None:
    rng = random.Random(3)
    sizes: dict[int, int] = {}
    for number in range(1500):
        size = rng.randrange(60_000, 120_000)
        deletes = []
        while sum(map(stored_bytes, sizes.values())) + stored_bytes(size) > 0.95 * writer.capacity_bytes:
            freed = rng.choice(list(sizes))
            deletes.append(key_of(freed))
            del sizes[freed]
        writer.apply([(key_of(number), value_of(number, size), True)], deletes)
        sizes[number] = size
    assert {key: size for key, size, _ in writer.entries()} == {key_of(n): size for n, size in sizes.items()}
    assert writer.statistics().transient_entries > len(sizes), "no value was split: the test tests nothing"
    reader = TierReader(directory)
    with reader.batch() as batch:
        assert batch.get_views([key_of(n) for n in sizes]) == [value_of(n, size) for n, size in sizes.items()]
    reader.close()
    writer.delete_many([key_of(n) for n in sizes])
    assert (writer.used_bytes, list(writer.entries())) == (0, [])


@pytest.mark.parametrize("size", [10, 300, 700, 1000, 1500, 2014, 2015, 4080, 4081, 30_000])
def test_small_values_keep_to_the_budget_too(writer: TierWriter, directory: Path, size: int) -> None:
    keys, group, number = deque[bytes](), 64, 0
    while number * stored_bytes(size) < 2 * writer.capacity_bytes:
        deletes = []
        while (
            writer.used_bytes - len(deletes) * stored_bytes(size) + group * stored_bytes(size) > writer.capacity_bytes
        ):
            deletes.append(keys.popleft())
        writer.apply([(key_of(number + i), value_of(number + i, size), True) for i in range(group)], deletes)
        keys.extend(key_of(number + i) for i in range(group))
        number += group
    assert {key for key, _, _ in writer.entries()} == set(keys)
    assert _taken_bytes(directory) <= 16 * MIB


def test_a_reader_in_a_batch_keeps_its_bytes_and_then_gives_the_room_back(writer: TierWriter, directory: Path) -> None:
    keys = _fill(writer, 100_000, transient=True)
    reader = TierReader(directory)
    with reader.batch() as batch:
        views = batch.get_views(keys)
        refused = 0
        for _ in range(3):
            try:
                writer.apply([(key_of(10**6 + i), b"\xff" * 100_000, True) for i in range(len(keys))], keys)
            except TierFullError:
                refused += 1
        assert refused == 3, "the pages of freed values were taken from under a reader"
        assert views == [value_of(i, 100_000) for i in range(len(keys))]
        del views
    assert list(writer.entries()) == []
    writer.put_many([(key_of(i), b"\xff" * 100_000, True) for i in range(len(keys))])
    assert reader.get(keys[-1]) == b"\xff" * 100_000
    reader.close()


def test_a_tier_without_a_free_page_can_still_be_freed(directory: Path) -> None:
    """Pieces of one page cost more than capacity_bytes reckons: the pages end before the capacity does."""
    writer = TierWriter.open(directory, budget_bytes=128 * MIB)
    keys: list[bytes] = []
    with pytest.raises(TierFullError):
        while True:
            writer._stage, writer._sticky_groups = 3, 2
            writer.put_many([(key_of(len(keys)), value_of(len(keys), 84_000), True)])
            keys.append(key_of(len(keys)))
    assert writer.used_bytes + stored_bytes(84_000) < writer.capacity_bytes, "the capacity ended first"
    for key in keys[::7]:
        writer.delete_many([key])
        assert not writer._owed_deletes
    assert writer.used_bytes == (len(keys) - len(keys[::7])) * stored_bytes(84_000)
    writer.put_many([(key_of(10**6 + i), value_of(i, 84_000), True) for i in range(len(keys) // 8)])
    writer.close()


def test_deletes_that_find_no_room_are_done_later(writer: TierWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.put_many([(key_of(i), b"x" * 5000, True) for i in range(10)])
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_commit", _raise_map_full)
        writer.delete_many([key_of(i) for i in range(5)])
        with pytest.raises(TierFullError):
            writer.apply([(key_of(3), b"new", False)], [key_of(5)])
    assert len(list(writer.entries())) == 10
    writer.put_many([(key_of(3), b"new", False)])
    assert {key for key, _, _ in writer.entries()} == {key_of(i) for i in (3, 6, 7, 8, 9)}


def _raise_map_full(*_: object) -> None:
    raise lmdb.MapFullError("test")


def test_where_the_file_system_ends_the_tier_ends(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Reservation._try_back
    monkeypatch.setattr(Reservation, "_try_back", lambda self, at, size: at + size <= 9 * MIB and real(self, at, size))
    writer = TierWriter.open(directory, budget_bytes=64 * MIB)
    reader = TierReader(directory)
    with pytest.raises(TierFullError):
        writer.put_many([(key_of(i), value_of(i, MIB), False) for i in range(9)])
    assert writer.capacity_bytes < 9 * MIB
    keys = _fill(writer, 100_000)
    assert [reader.get(key) for key in keys] == [value_of(i, 100_000) for i in range(len(keys))]
    assert _taken_bytes(directory) < 10 * MIB
    reader.close()
    writer.close()


def test_pages_are_made_ahead_of_who_writes_within_the_budget(writer: TierWriter, directory: Path) -> None:
    writer.put_many([(key_of(0), value_of(0, 100_000), False)])
    assert wait_until(lambda: writer.file_bytes > 8 * MIB, timeout_seconds=60)
    writer.put_many([(key_of(i), value_of(i, 100_000), False) for i in range(40)])
    assert wait_until(lambda: _taken_bytes(directory) > 12 * MIB, timeout_seconds=60)
    _fill(writer, 100_000)
    assert _taken_bytes(directory) <= 16 * MIB


def test_the_thread_that_makes_pages_ends_with_the_writer(directory: Path) -> None:
    before = set(threading.enumerate())
    writer = TierWriter.open(directory, budget_bytes=16 * MIB)
    writer.put_many([(key_of(0), value_of(0, 100_000), False)])
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["prefeed-pages"]
    writer.close()
    assert set(threading.enumerate()) == before


def test_where_no_thread_is_to_be_had_the_writer_makes_the_pages(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    writer = TierWriter.open(directory, budget_bytes=16 * MIB)
    keys = _fill(writer, 100_000)
    reader = TierReader(directory)
    assert reader.get(keys[-1]) == value_of(len(keys) - 1, 100_000)
    reader.close()
    writer.close()


_FULL_TMPFS = """
import os, sys
from prefeed.errors import TierFullError
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from prefeed.testing.tier_contract import key_of, value_of

directory = sys.argv[1]
writer, reader, stored = TierWriter.open(directory + "/store", budget_bytes=64 * 2**20), TierReader(directory + "/store"), []
try:
    for number in range(1000):
        if number == 5:
            with open(directory + "/other", "wb") as file:
                file.write(bytes(10 * 2**20))
        writer.put_many([(key_of(number), value_of(number, 84_000), False)])
        stored.append(number)
except TierFullError:
    assert 60 < len(stored) < 150, len(stored)
for number in range(300):
    writer.apply([(key_of(1000 + number), value_of(number, 84_000), True)], [key_of(999 + number)] if number else [key_of(0)])
assert all(reader.get(key_of(n)) == value_of(n, 84_000) for n in stored[1:])
writer.close()
again = TierWriter.open(directory + "/store", budget_bytes=64 * 2**20)
assert len(list(again.entries())) == len(stored) - 1
again.destroy()
print("survived")
"""


def test_a_full_tmpfs_is_an_error_and_no_bus_error(sandbox: Sandbox) -> None:
    """In a mount namespace of its own: needs no root where user namespaces are allowed."""
    mount = f'mount -t tmpfs -o size=24m none "{sandbox.home}" && exec "$0" -c "$1" "{sandbox.home}"'
    command = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", mount, sys.executable, _FULL_TMPFS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "unshare" in done.stderr:
        pytest.skip("this machine allows no user namespaces, and a tmpfs of a given size needs one")
    assert (done.returncode, done.stdout) == (0, "survived\n"), done.stderr


# ---------------------------------------------------------------- opening


def test_residents_are_found_again_and_transients_dropped(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=16 * MIB)
    writer.put_many([(key_of(i), value_of(i, 30_000), i % 2 == 0) for i in range(100)])
    writer.close()
    writer.close()
    again = TierWriter.open(directory, budget_bytes=16 * MIB)
    assert sorted(again.entries()) == sorted((key_of(i), 30_000, False) for i in range(1, 100, 2))
    assert again.used_bytes == 50 * stored_bytes(30_000)
    again.close()


def test_a_larger_budget_lets_the_store_grow_under_its_readers(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    first, second = TierReader(directory), TierReader(directory)
    keys = _fill(writer, 100_000)
    assert first.get(keys[0]) is not None
    assert second.get(keys[0]) is not None
    writer.close()
    again = TierWriter.open(directory, budget_bytes=32 * MIB)
    more = _fill(again, 100_000)
    assert len(more) > 2 * len(keys)
    assert [first.get(key) for key in more] == [second.get(key) for key in more]
    assert first.get(more[-1]) == value_of(len(more) - 1, 100_000)
    first.close()
    second.close()
    again.close()


def _read_when_told(directory: Path, keys: list[bytes], pipe: Connection) -> None:
    reader = TierReader(directory)
    pipe.send([reader.get(key) is not None for key in keys])
    pipe.recv()
    pipe.send([reader.get(key) is not None for key in keys])


def test_a_store_grows_under_a_reader_in_another_process(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    _fill(writer, 100_000)
    keys = [key_of(i) for i in range(250)]
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_read_when_told, args=(directory, keys, there))
    child.start()
    assert sum(here.recv()) < 100
    writer.close()
    writer = TierWriter.open(directory, budget_bytes=32 * MIB)
    _fill(writer, 100_000)
    here.send("go")
    assert all(here.recv())
    child.join()
    child.close()
    here.close()
    there.close()
    writer.close()


def test_a_smaller_budget_keeps_what_lies_within_it(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=32 * MIB)
    writer.put_many([(key_of(i), value_of(i, 100_000), False) for i in range(50)])
    writer.close()
    again = TierWriter.open(directory, budget_bytes=8 * MIB)
    assert len(list(again.entries())) == 50
    assert _taken_bytes(directory) <= 8 * MIB
    again.close()


def test_a_smaller_budget_empties_a_store_that_does_not_fit(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=32 * MIB)
    _fill(writer, 100_000)
    writer.close()
    again = TierWriter.open(directory, budget_bytes=8 * MIB)
    assert list(again.entries()) == []
    assert _taken_bytes(directory) <= 8 * MIB
    again.close()


def test_another_layout_is_emptied(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    writer.put_many([(key_of(1), b"x", False)])
    writer.close()
    with lmdb.open(os.fspath(directory), map_size=8 * MIB) as env, env.begin(write=True) as txn:
        txn.put(LAYOUT_KEY, b"0")
    reader = TierReader(directory)
    assert reader.get(key_of(1)) is None
    again = TierWriter.open(directory, budget_bytes=8 * MIB)
    assert list(again.entries()) == []
    again.put_many([(key_of(1), b"y", False)])
    assert reader.get(key_of(1)) == b"y"
    reader.close()
    again.close()


@pytest.mark.parametrize("damage", [b"", b"not a store" * 1000, bytes(100_000)], ids=["empty", "text", "zeros"])
def test_a_damaged_store_is_emptied(directory: Path, damage: bytes) -> None:
    TierWriter.open(directory, budget_bytes=8 * MIB).close()
    data_path(directory).write_bytes(damage)
    assert TierReader(directory).get(key_of(1)) is None
    with_writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    with_writer.put_many([(key_of(1), b"x", False)])
    with_writer.close()


def _try_to_open(directory: Path, pipe: Connection) -> None:
    try:
        TierWriter.open(directory, budget_bytes=8 * MIB).close()
        pipe.send("opened")
    except StoreError as err:
        pipe.send(str(err))


def test_one_writer_at_a_time(writer: TierWriter, directory: Path) -> None:
    with pytest.raises(StoreError, match="this process already writes"):
        TierWriter.open(directory, budget_bytes=16 * MIB)
    here, there = multiprocessing.Pipe()
    for context in ("fork", "spawn"):
        child = multiprocessing.get_context(context).Process(target=_try_to_open, args=(directory, there))
        child.start()
        assert "another process writes the store" in here.recv()
        child.join()
        child.close()
    here.close()
    there.close()


def test_the_directory_is_private(directory: Path) -> None:
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    TierWriter.open(directory, budget_bytes=8 * MIB).close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (data_path(directory), lock_path(directory))} == {0o600}


def test_a_link_is_not_followed(directory: Path, sandbox: Sandbox) -> None:
    directory.symlink_to(sandbox.home)
    with pytest.raises(StoreError, match="PREFEED_MEMORY_DIR"):
        TierWriter.open(directory, budget_bytes=8 * MIB)


@pytest.mark.parametrize("where", ["/sys/prefeed-test", "/dev/null/store"])
def test_a_directory_that_cannot_be_written_is_named(where: str) -> None:
    with pytest.raises(StoreError, match=rf"{where}.*PREFEED_MEMORY_DIR"):
        TierWriter.open(where, budget_bytes=8 * MIB)


def test_destroy_leaves_nothing(writer: TierWriter, directory: Path) -> None:
    writer.put_many([(key_of(1), b"x", False)])
    writer.destroy()
    assert not directory.exists()


def test_statistics_tell_what_is_there(writer: TierWriter) -> None:
    writer.put_many([(key_of(1), b"x" * 9000, False), (key_of(2), b"x" * 9000, True), (key_of(3), b"", True)])
    stats = writer.statistics()
    assert (stats.resident_entries, stats.transient_entries) == (1, 2)
    assert stats.used_bytes == writer.used_bytes == 2 * stored_bytes(9000) + stored_bytes(0)
    assert stats.used_bytes < stats.capacity_bytes < stats.budget_bytes == 16 * MIB
