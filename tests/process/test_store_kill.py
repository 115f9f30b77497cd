"""SIGKILL a writer or a reader at a named step, then open the store again: no wrong byte, nothing half done, no hang."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from prefeed.store import writer as writer_module
from prefeed.store.layout import stored_bytes
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from process.children import child_running
from sandbox import Sandbox
from tier_contract import key_of, value_of

BUDGET_BYTES = 16 * 1024**2
GROUP = 8
SIZE = 50_000


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


def _group(number: int) -> list[tuple[bytes, bytes, bool]]:
    first = number * GROUP
    return [(key_of(i), value_of(i, SIZE), False) for i in range(first, first + GROUP)]


def _numbers(entries: Iterator[tuple[bytes, int, bool]], most: int) -> list[int]:
    by_key = {key_of(i): i for i in range(most)}
    return sorted(by_key[key] for key, _, _ in entries)


def _check(writer: TierWriter, reader: TierReader, numbers: list[int]) -> None:
    assert [reader.get(key_of(i)) for i in numbers] == [value_of(i, SIZE) for i in numbers]
    assert writer.used_bytes == len(numbers) * stored_bytes(SIZE)


# ---------------------------------------------------------------- the writer is killed


class _Killing:
    """A transaction in which the process dies at the n-th put."""

    def __init__(self, txn: Any, puts: int) -> None:
        self._txn, self._left = txn, puts

    def put(self, *args: Any, **kwargs: Any) -> bool:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return bool(self._txn.put(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._txn, name)


def _write_and_die(directory: Path, step: str, pipe: Connection) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    writer.put_many(_group(0))
    transaction = writer_module.write_transaction

    @contextlib.contextmanager
    def dying(shared: Any) -> Iterator[Any]:
        with transaction(shared) as txn:
            yield _Killing(txn, GROUP // 2) if step == "in the middle of a group" else txn
            if step == "before the commit":
                os.kill(os.getpid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    writer_module.write_transaction = dying
    writer.apply(_group(1), [key_of(0)])
    pipe.send("alive")


@pytest.mark.parametrize(
    ("step", "numbers"),
    [
        ("in the middle of a group", range(GROUP)),
        ("before the commit", range(GROUP)),
        ("after the commit", range(1, 2 * GROUP)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_group_is_whole_or_absent(directory: Path, step: str, numbers: range) -> None:
    reader = TierReader(directory)
    with child_running(_write_and_die, directory, step) as (process, _):
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert [i for i in range(2 * GROUP) if reader.get(key_of(i)) == value_of(i, SIZE)] == list(numbers)
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    assert _numbers(writer.entries(), 2 * GROUP) == list(numbers)
    _check(writer, reader, list(numbers))
    writer.put_many(_group(2))
    assert reader.get(key_of(2 * GROUP)) == value_of(2 * GROUP, SIZE)
    reader.close()
    writer.close()


def _write_forever(directory: Path, pipe: Connection) -> None:
    """Write groups, free the oldest when full, and say after each what is there."""
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    first = number = 0
    kept = writer.capacity_bytes // stored_bytes(SIZE) // GROUP - 1
    while True:
        deletes = []
        if number - first >= kept:
            deletes = [key for key, _, _ in _group(first)]
            first += 1
        writer.apply(_group(number), deletes)
        number += 1
        pipe.send((first, number))


@pytest.mark.parametrize("after", [1, 3, 17, 60, 61, 150])
def test_killed_while_writing(directory: Path, after: int) -> None:
    """At whatever instruction the signal finds it."""
    reader = TierReader(directory)
    with child_running(_write_forever, directory) as (process, pipe):
        told = (0, 0)
        while told[1] < after:
            told = pipe.recv()
        process.kill()
        process.join()
        with contextlib.suppress(EOFError):
            while True:
                told = pipe.recv()
    first, number = told
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    numbers = _numbers(writer.entries(), (number + 2) * GROUP)
    assert len(numbers) % GROUP == 0, "half a group"
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] in (first * GROUP, (first + 1) * GROUP)
    assert numbers[-1] + 1 in (number * GROUP, (number + 1) * GROUP)
    _check(writer, reader, numbers)
    assert sum(path.stat().st_blocks * 512 for path in directory.iterdir()) <= BUDGET_BYTES
    reader.close()
    writer.close()


def test_transients_of_a_killed_writer_are_dropped(directory: Path) -> None:
    with child_running(_write_transients, directory) as (process, pipe):
        assert pipe.recv() == "written"
        process.kill()
        process.join()
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    assert list(writer.entries()) == [(key_of(0), SIZE, False)]
    assert writer.used_bytes == stored_bytes(SIZE)
    writer.close()


def _write_transients(directory: Path, pipe: Connection) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    writer.put_many([(key_of(i), value_of(i, SIZE), i > 0) for i in range(200)])
    pipe.send("written")
    threading.Event().wait()


# ---------------------------------------------------------------- a reader is killed


def _read_and_stay(directory: Path, pipe: Connection) -> None:
    with TierReader(directory).batch() as batch:
        pipe.send(batch.get_view(key_of(0)) == value_of(0, SIZE))
        threading.Event().wait()


def test_a_killed_reader_pins_no_pages_for_long(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    many = writer.capacity_bytes // stored_bytes(SIZE)
    writer.put_many([(key_of(i), value_of(i, SIZE), True) for i in range(many)])
    with child_running(_read_and_stay, directory) as (process, pipe):
        assert pipe.recv()
        assert writer.reclaim_dead_readers() == 0
        process.kill()
        process.join()
    writer.delete_many([key_of(i) for i in range(many)])
    assert writer.reclaim_dead_readers() == 1
    writer.put_many([(key_of(i), value_of(i, SIZE), True) for i in range(many, 2 * many)])
    writer.close()


# ---------------------------------------------------------------- fork and spawn


def _read(reader: TierReader, pipe: Connection) -> None:
    with reader.batch() as batch:
        views = batch.get_views([key_of(i) for i in range(4)])
        pipe.send([None if view is None else bytes(view) for view in views])
    pipe.send(reader.get(key_of(0)))
    pipe.recv()
    pipe.send(reader.get(key_of(5)))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_reader_used_before_reads_in_a_child_too(directory: Path, method: str) -> None:
    writer, reader = TierWriter.open(directory, budget_bytes=BUDGET_BYTES), TierReader(directory)
    writer.put_many([(key_of(i), value_of(i, SIZE), False) for i in range(3)])
    assert reader.get(key_of(0)) == value_of(0, SIZE)
    with child_running(_read, reader, method=method) as (_, pipe):
        assert pipe.recv() == [value_of(0, SIZE), value_of(1, SIZE), value_of(2, SIZE), None]
        assert pipe.recv() == value_of(0, SIZE)
        assert reader.get(key_of(1)) == value_of(1, SIZE)
        writer.put_many([(key_of(5), value_of(5, SIZE), True)])
        pipe.send("go on")
        assert pipe.recv() == value_of(5, SIZE)
    writer.put_many([(key_of(6), value_of(6, SIZE), True)])
    assert reader.get(key_of(6)) == value_of(6, SIZE)
    reader.close()
    writer.close()


def _leave_inherited_batch(batch: Any, pipe: Connection) -> None:
    batch.__exit__(None, None, None)
    pipe.send("left")


def test_a_child_that_leaves_its_parents_batch_takes_nothing_from_it(directory: Path) -> None:
    writer, reader = TierWriter.open(directory, budget_bytes=BUDGET_BYTES), TierReader(directory)
    many = writer.capacity_bytes // stored_bytes(SIZE)
    writer.put_many([(key_of(i), value_of(i, SIZE), True) for i in range(many)])
    with reader.batch() as batch:
        (view,) = batch.get_views([key_of(0)])
        with child_running(_leave_inherited_batch, batch) as (process, pipe):
            assert pipe.recv() == "left"
            process.join()
            assert process.exitcode == 0
        writer.delete_many([key_of(i) for i in range(many)])
        for i in range(20):
            writer.put_many([(key_of(many + i), b"\xff" * 100, True)])
        assert view == value_of(0, SIZE)
    reader.close()
    writer.close()


def _close_and_exit(writer: TierWriter, pipe: Connection) -> None:
    writer.close()
    pipe.send("closed")


def test_a_child_that_closes_its_parents_writer_closes_nothing(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    with child_running(_close_and_exit, writer) as (process, pipe):
        assert pipe.recv() == "closed"
        process.join()
    writer.put_many([(key_of(1), b"x", False)])
    assert [key for key, _, _ in writer.entries()] == [key_of(1)]
    writer.close()
