from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from prefeed.store import environment
from prefeed.store.batches import read_transaction
from prefeed.store.layout import LARGE_BYTES, LARGE_PIECE_PAGES, data_path, piece_bytes
from prefeed.store.reader import StoredValue, TierReader
from prefeed.store.writer import TierWriter
from prefeed.testing.tier_contract import key_of, value_of
from sandbox import Sandbox

MIB = 1024**2


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


@pytest.fixture
def writer(directory: Path) -> Iterator[TierWriter]:
    writer = TierWriter.open(directory, budget_bytes=32 * MIB)
    yield writer
    writer.close()


@pytest.fixture
def reader(directory: Path) -> Iterator[TierReader]:
    reader = TierReader(directory)
    yield reader
    reader.close()


def test_a_store_that_is_missing_holds_nothing_until_it_is_there(reader: TierReader, directory: Path) -> None:
    assert reader.get(key_of(1)) is None
    with reader.batch() as batch:
        assert batch.get_views([key_of(1), key_of(2)]) == [None, None]
    assert not directory.exists()
    writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    writer.put_many([(key_of(1), b"x", False)])
    assert reader.get(key_of(1)) == b"x"
    writer.close()
    assert reader.get(key_of(1)) == b"x", "a store outlives its writer"


def test_a_reader_that_came_first_lets_the_writer_in(writer: TierWriter, reader: TierReader, directory: Path) -> None:
    writer.put_many([(key_of(1), b"x", False)])
    assert reader.get(key_of(1)) == b"x"
    writer.close()
    again = TierWriter.open(directory, budget_bytes=8 * MIB)
    again.put_many([(key_of(2), b"y", False)])
    assert reader.get(key_of(2)) == b"y"
    again.close()
    assert reader.get(key_of(2)) == b"y"


def test_a_replaced_store_is_seen_when_asked(reader: TierReader, directory: Path) -> None:
    old = TierWriter.open(directory, budget_bytes=8 * MIB)
    old.put_many([(key_of(1), b"old", False)])
    assert reader.get(key_of(1)) == b"old"
    assert not reader.reopen_if_replaced()
    old.destroy()
    new = TierWriter.open(directory, budget_bytes=8 * MIB)
    new.put_many([(key_of(1), b"new", False)])
    assert reader.get(key_of(1)) == b"old"
    assert reader.reopen_if_replaced()
    assert reader.get(key_of(1)) == b"new"
    new.close()


def test_a_batch_is_a_snapshot(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(1), b"before" * 1000, False)])
    with reader.batch() as batch:
        writer.apply([(key_of(1), b"after" * 1000, False), (key_of(2), b"x", True)], [])
        assert batch.get_view(key_of(1)) == b"before" * 1000
        assert batch.get_view(key_of(2)) is None
    assert reader.get(key_of(1)) == b"after" * 1000


@pytest.mark.parametrize("pages", [4, 1])
def test_values_in_pieces_read_like_whole_ones(writer: TierWriter, reader: TierReader, pages: int) -> None:
    sizes = (0, 100, 4080, 4081, 16_368, 16_369, 84_000, 300_000)
    writer._stage, writer._sticky_groups = {4: 2, 1: 3}[pages], 2
    writer.put_many([(key_of(i), value_of(i, size), i % 2 == 0) for i, size in enumerate(sizes)])
    assert writer.statistics().resident_entries + writer.statistics().transient_entries > len(sizes) + 20
    with reader.batch() as batch:
        assert batch.get_views([key_of(i) for i in range(8)]) == [value_of(i, size) for i, size in enumerate(sizes)]
    assert sorted(writer.entries()) == sorted((key_of(i), size, i % 2 == 0) for i, size in enumerate(sizes))
    writer._sticky_groups = 0
    writer.put_many([(key_of(i), b"", False) for i in range(8)])
    assert sorted(writer.entries()) == sorted((key_of(i), 0, False) for i in range(8))
    assert writer.statistics().resident_entries == 8, "pieces of a replaced value stayed"


SIZES = (0, 1, 100, 4080, 4081, 16_368, 16_369, 84_000, 300_000, LARGE_BYTES, LARGE_BYTES + 1)


@pytest.mark.parametrize("pages", [None, 4, 1])
def test_parts_are_copied_of_what_is_lent(writer: TierWriter, reader: TierReader, pages: int | None) -> None:
    """Of values in one run of pages and of those in pieces, resident and transient, of the last key as of the first."""
    if pages is not None:
        writer._stage, writer._sticky_groups = {4: 2, 1: 3}[pages], 2
    keys = [bytes(16), *(key_of(i) for i in range(1, len(SIZES) - 1)), b"\xff" * 16]
    writer.put_many([(key, value_of(i, SIZES[i]), i % 2 == 0) for i, key in enumerate(keys)])
    assert reader.lend(key_of(99), 0) is None
    for i, key in enumerate(keys):
        value = value_of(i, SIZES[i])
        assert reader.lend(key, SIZES[i] + 1) == value
        lent = reader.lend(key, 0)
        assert isinstance(lent, StoredValue)
        assert (len(lent), lent.key) == (SIZES[i], key)
        for start in {0, 1, 4079, 4080, 16_368, 20_000, max(0, SIZES[i] - 3), SIZES[i], SIZES[i] + 5}:
            for size in (0, 1, 10, 4081, 400_000):
                target = bytearray(size)
                count = lent.read_into(start, memoryview(target))
                assert count == len(value[start : start + size])
                assert bytes(target[:count]) == lent.read(start, size) == value[start : start + size]


def test_no_lookup_finds_all_of_a_large_value(writer: TierWriter, reader: TierReader) -> None:
    """The binding of LMDB touches each page of what it finds: 15,000 of 60 MB."""
    large, largest_whole = value_of(1, 3 * LARGE_BYTES), value_of(2, LARGE_BYTES)
    writer.put_many([(key_of(1), large, False), (key_of(2), largest_whole, True)])
    with read_transaction(writer._shared) as txn:
        resident, transient = (
            [len(value) for _, value in txn.cursor(db=table)]
            for table in (writer._shared.resident, writer._shared.transient)
        )
    assert sum(resident) == len(large)
    assert max(resident) <= piece_bytes(LARGE_PIECE_PAGES) < LARGE_BYTES
    assert transient == [LARGE_BYTES]
    assert reader.get(key_of(1)) == large
    with reader.batch() as batch:
        views = batch.get_views([key_of(1), key_of(2)])
        assert [bytes(view or b"") for view in views] == [large, largest_whole]
    writer.delete_many([key_of(1), key_of(2)])
    assert list(writer.entries()) == []
    assert writer.used_bytes == 0


def test_what_is_lent_outlives_batches_and_not_its_value(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(1), b"lent" * 100, False)])
    lent = reader.lend(key_of(1), 1)
    assert isinstance(lent, StoredValue)
    with reader.batch():
        pass
    writer.put_many([(key_of(2), b"x" * 1000, False)])
    assert lent.read(4, 4) == b"lent"
    writer.delete_many([key_of(1)])
    assert lent.read(4, 4) is None
    assert lent.read_into(0, memoryview(bytearray(4))) is None
    reader.close()
    writer.put_many([(key_of(1), b"lent" * 100, True)])
    assert lent.read(4, 4) == b"lent", "its key says which bytes they are"


def test_mostly_transient_batches_look_there_first(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(i), value_of(i, 9000), i > 5) for i in range(64)])
    for order in (range(64), range(63, -1, -1), range(6)):
        with reader.batch() as batch:
            for _ in range(2):
                assert batch.get_views([key_of(i) for i in order]) == [value_of(i, 9000) for i in order]


def test_no_reader_slot_left_is_a_miss(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(1), b"x", False)])
    with contextlib.ExitStack() as stack:
        batches = [stack.enter_context(reader.batch()) for _ in range(1100)]
        found = [batch.get_view(key_of(1)) is not None for batch in batches]
        assert all(found[:1000])
        assert not found[-1]
    assert reader.get(key_of(1)) == b"x"


def test_an_array_on_a_view_does_not_break_the_batch(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(1), value_of(1, 8000), False)])
    with reader.batch() as batch:
        view = batch.get_view(key_of(1))
        assert view is not None
        array = np.frombuffer(view, np.uint8)
        assert array.sum() == sum(value_of(1, 8000))
    del array


def test_a_damaged_file_is_a_miss(directory: Path, reader: TierReader) -> None:
    writer = TierWriter.open(directory, budget_bytes=8 * MIB)
    writer.close()
    data_path(directory).write_bytes(b"\xff" * 50_000)
    assert reader.get(key_of(1)) is None


def test_a_store_whose_files_change_while_it_is_opened_is_not_opened(
    writer: TierWriter, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.put_many([(key_of(1), b"x", False)])
    writer.close()
    answers = iter([(1, 2, 3, 4), (1, 2, 3, 5)])
    monkeypatch.setattr(environment, "identity_of", lambda _: next(answers))
    assert environment.attach_reader(directory) is None


def test_a_reader_can_be_pickled(writer: TierWriter, reader: TierReader) -> None:
    writer.put_many([(key_of(1), b"x", False)])
    assert reader.get(key_of(1)) == b"x"
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.get(key_of(1)) == b"x"
    copy.close()


def test_closing_inside_a_batch_keeps_its_views(directory: Path) -> None:
    writer, reader = TierWriter.open(directory, budget_bytes=8 * MIB), TierReader(directory)
    writer.put_many([(key_of(1), value_of(1, 9000), False)])
    with reader.batch() as batch:
        view = batch.get_view(key_of(1))
        reader.close()
        writer.close()
        assert view == value_of(1, 9000)
    assert environment._open == {}
