"""Readers in containers: process 1 of a PID namespace each, on one store. Right bytes, whoever is killed at what step."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from namespaces import container_running
from prefeed.errors import TierFullError
from prefeed.store import foreign
from prefeed.store.foreign import ForeignTransaction, Pins, SnapshotLocks
from prefeed.store.layout import stored_bytes
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from process.children import child_running
from sandbox import Sandbox
from tier_contract import key_of, value_of

BUDGET_BYTES = 8 * 1024**2
SIZES = (300, 5_000, 50_000, 120_000)
PER_ROUND = 24
ROUNDS = 12


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


@pytest.fixture
def writer(directory: Path) -> Iterator[TierWriter]:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    yield writer
    writer.close()


def value(number: int) -> bytes:
    return value_of(number, SIZES[number % len(SIZES)])


def numbers_of(round_number: int) -> range:
    return range(round_number * PER_ROUND, (round_number + 1) * PER_ROUND)


def put_round(writer: TierWriter, number: int) -> None:
    """Put a round's values and free those of the round before, in small groups: pages are used again at once."""
    fresh, old = numbers_of(number), numbers_of(number - 1) if number else range(0)
    for start in range(0, PER_ROUND, 4):
        puts = [(key_of(i), value(i), True) for i in fresh[start : start + 4]]
        writer.apply(puts, [key_of(i) for i in old[start : start + 4]])


def last_transaction(writer: TierWriter) -> int:
    return int(writer._shared.env.info()["last_txnid"])


def pinned(writer: TierWriter) -> tuple[int, ...]:
    assert writer._pins is not None
    return writer._pins.snapshots


def keeps_only_the_last_snapshot(writer: TierWriter) -> bool:
    """Return whether a pin keeps no page from being used again: it is the snapshot before the last commit's."""
    writer.put_many([(b"\0" * 16, b"x", True)])
    return pinned(writer) == (last_transaction(writer) - 1,)


# ---------------------------------------------------------------- what they read


def _read_rounds(directory: Path, pipe: Connection) -> None:
    """Hold a batch over each round that the writer churns, and say which values are as they were at both ends of it."""
    reader = TierReader(directory)
    while (number := pipe.recv()) is not None:
        with reader.batch() as batch:
            views = batch.get_views([key_of(i) for i in numbers_of(number)])
            found = [view is not None and view == value(i) for i, view in zip(numbers_of(number), views, strict=True)]
            pipe.send(found)
            pipe.recv()
            pipe.send([view == value(i) for i, view in zip(numbers_of(number), views, strict=True) if view])
    reader.close()
    pipe.send("closed")
    pipe.recv()


def churn(writer: TierWriter, pipes: list[Connection]) -> list[list[bool]]:
    """Replace everything twice under each batch; return what readers found, and found again."""
    found = []
    put_round(writer, 0)
    for number in range(0, ROUNDS, 2):
        for pipe in pipes:
            pipe.send(number)
        found += [pipe.recv() for pipe in pipes]
        put_round(writer, number + 1)
        put_round(writer, number + 2)
        for pipe in pipes:
            pipe.send("again")
        found += [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(None)
        assert pipe.recv() == "closed"
    return found


def test_three_containers_and_a_process_beside_the_writer_read_one_store(writer: TierWriter, directory: Path) -> None:
    """All hit, and what they see stays, while every page is used again several times."""
    writer.expect_foreign_readers(True)
    with (
        container_running(_read_rounds, directory) as (_, first),
        container_running(_read_rounds, directory) as (_, second),
        container_running(_read_rounds, directory) as (_, third),
        child_running(_read_rounds, directory) as (_, native),
    ):
        found = churn(writer, [first, second, third, native])
        assert len(found) == 4 * ROUNDS
        assert all(len(each) == PER_ROUND and all(each) for each in found)
        assert writer.statistics().reader_slots < 6, "containers take no slots"
        assert keeps_only_the_last_snapshot(writer)
        writer.expect_foreign_readers(False)
        assert pinned(writer) == ()


def test_without_pins_they_would_see_other_bytes(
    writer: TierWriter, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pins, "move_on", lambda self: None)
    monkeypatch.setattr(Pins, "expect", lambda self, are_expected: self._locks.unlock(foreign.OPEN_BYTE))
    writer.expect_foreign_readers(True)
    with container_running(_read_rounds, directory) as (_, pipe):
        assert not all(all(each) for each in churn(writer, [pipe]))


def test_the_store_holds_nothing_for_a_container_that_is_not_expected(writer: TierWriter, directory: Path) -> None:
    with container_running(_read_when_told, directory) as (_, pipe):
        writer.put_many([(key_of(0), value(0), False)])
        assert tell(pipe) == (False, False)
        assert pinned(writer) == ()
        writer.expect_foreign_readers(True)
        assert tell(pipe) == (True, True)


def tell(pipe: Connection) -> Any:
    pipe.send("read")
    return pipe.recv()


def _read_when_told(directory: Path, pipe: Connection) -> None:
    """Say, each time, whether a value is read, and whether there is a store at all."""
    reader = TierReader(directory)
    while pipe.recv():
        pipe.send((reader.get(key_of(0)) == value(0), reader.is_open))


def test_where_files_have_no_such_locks_the_store_is_for_its_own_namespace(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "F_OFD_GETLK", 9999)  # EINVAL, as of a kernel that does not know it
    for _ in range(2):
        writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
        writer.expect_foreign_readers(True)
        writer.put_many([(key_of(0), value(0), False)])
        with (
            container_running(_read_when_told, directory) as (_, pipe),
            child_running(_read_when_told, directory) as (_, native),
        ):
            assert tell(pipe) == (False, False)
            assert tell(native) == (True, True)
        assert [key for key, _, _ in writer.entries()] == [key_of(0)]
        writer.close()


def _fork_and_read(directory: Path, pipe: Connection) -> None:
    """Fork inside a batch and outside one; read in the children, which open the store for themselves."""
    reader, other = TierReader(directory), TierReader(directory)
    results = []
    for is_inside in (False, True):
        with reader.batch() if is_inside else contextlib.nullcontext() as batch:
            views = batch.get_views([key_of(0)]) if batch is not None else []
            results.append(reader.get(key_of(0)) == value(0))
            there, here = os.pipe()
            if os.fork() == 0:
                with contextlib.suppress(BaseException):
                    # A child that is forked inside a batch finds the store empty.
                    os.write(here, bytes([other.get(key_of(0)) == (None if is_inside else value(0))]))
                    reader.close()
                os._exit(0)
            results.append(os.read(there, 1) == b"\1")
            os.wait()
            results.append(all(view == value(0) for view in views))
    threads = [threading.Thread(target=lambda: results.append(reader.get(key_of(0)) == value(0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(results)
    pipe.recv()


def test_forked_children_and_threads_read_too(writer: TierWriter, directory: Path) -> None:
    writer.expect_foreign_readers(True)
    writer.put_many([(key_of(0), value(0), False)])
    with container_running(_fork_and_read, directory) as (_, pipe):
        results = pipe.recv()
        assert results == [True] * 14
        assert keeps_only_the_last_snapshot(writer)


def test_a_store_grows_and_shrinks_under_them(directory: Path) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    writer.expect_foreign_readers(True)
    with container_running(_read_many, directory) as (_, pipe):
        for budget in (BUDGET_BYTES, 4 * BUDGET_BYTES, 2 * BUDGET_BYTES):
            writer.resize(budget)
            most = min(writer.capacity_bytes, budget) // stored_bytes(50_000) - 2
            writer.put_many([(key_of(i), value_of(i, 50_000), False) for i in range(most)])
            pipe.send(most)
            assert pipe.recv() == most
            writer.delete_many([key_of(i) for i in range(most)])
    writer.close()


def _read_many(directory: Path, pipe: Connection) -> None:
    reader = TierReader(directory)
    while True:
        pipe.send(sum(reader.get(key_of(i)) == value_of(i, 50_000) for i in range(pipe.recv())))


# ---------------------------------------------------------------- a reader is killed


STEPS: dict[str, tuple[type, str, str]] = {
    "before it locks": (SnapshotLocks, "enter", "before"),
    "after it has locked": (SnapshotLocks, "enter", "after"),
    "before it looks again": (SnapshotLocks, "after", "before"),
    "when it has begun": (ForeignTransaction, "__init__", "after"),
    "before it ends": (ForeignTransaction, "abort", "before"),
    "before it unlocks": (SnapshotLocks, "leave", "before"),
    "after it has unlocked": (SnapshotLocks, "leave", "after"),
}


def _stop_at(directory: Path, step: str, pipe: Connection) -> None:
    """Read until the step, of the second batch, and stay there."""
    reader = TierReader(directory)
    reader.get(key_of(0))
    owner, name, when = STEPS[step]
    method: Callable[..., Any] = getattr(owner, name)

    def stopping(*args: Any) -> Any:
        result = method(*args) if when == "after" else None
        pipe.send("there")
        threading.Event().wait()
        return result

    setattr(owner, name, stopping)
    reader.get(key_of(0))


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_keeps_no_page(writer: TierWriter, directory: Path, step: str) -> None:
    writer.expect_foreign_readers(True)
    many = writer.capacity_bytes // stored_bytes(50_000)
    writer.put_many([(key_of(i), value_of(i, 50_000), True) for i in range(many)])
    with container_running(_stop_at, directory, step) as (process, pipe):
        assert pipe.recv() == "there"
        writer.delete_many([key_of(0)])  # a commit after the one that it may be in
        process.kill()
    writer.delete_many([key_of(i) for i in range(many)])
    writer.put_many([(key_of(many + i), value_of(i, 50_000), True) for i in range(many)])
    assert keeps_only_the_last_snapshot(writer)
    writer.expect_foreign_readers(False)
    assert pinned(writer) == ()


def test_one_that_stays_inside_a_batch_keeps_its_pages_and_no_more(writer: TierWriter, directory: Path) -> None:
    """As a native one does: the tier is full until it leaves."""
    writer.expect_foreign_readers(True)
    many = writer.capacity_bytes // stored_bytes(50_000)
    group = [(key_of(i), value_of(i, 50_000), True) for i in range(many)]
    writer.put_many(group)
    with container_running(_stop_at, directory, "before it ends") as (process, pipe):
        assert pipe.recv() == "there"
        writer.delete_many([key for key, _, _ in group])
        with pytest.raises(TierFullError):
            writer.put_many(group)
        process.kill()
    writer.put_many(group)


# ---------------------------------------------------------------- the writer is killed, another takes over


def _write_and_wait(directory: Path, pipe: Connection) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    writer.expect_foreign_readers(True)
    writer.put_many([(key_of(0), value(0), False)])
    pipe.send("written")
    while pipe.recv():
        writer.put_many([(key_of(1), os.urandom(50_000), True)])
        pipe.send("committed")


def test_a_writer_in_another_container_takes_over_what_was_stored(directory: Path) -> None:
    """Readers that are between batches keep the store, and hit."""
    with container_running(_write_and_wait, directory) as (first, pipe):
        assert pipe.recv() == "written"
        with container_running(_read_when_told, directory) as (_, reading):
            assert tell(reading) == (True, True)
            first.kill()
            assert tell(reading) == (True, True), "without a writer, too"
            with container_running(_write_again, directory) as (_, second):
                entries, snapshots = second.recv()
                assert entries == [key_of(0)]
                assert len(snapshots) == 1, "the reader has it open, and nobody has said that one is expected"
                assert tell(reading) == (True, True)
                second.send("churn")
                assert second.recv() == "churned"
                assert tell(reading) == (True, True)


def _write_again(directory: Path, pipe: Connection) -> None:
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    pipe.send(([key for key, _, _ in writer.entries()], pinned(writer)))
    pipe.recv()
    for number in range(1, ROUNDS):
        puts = [(key_of(i), value(i), True) for i in numbers_of(number)]
        writer.apply(puts, [key_of(i) for i in numbers_of(number - 1) if i])
    pipe.send("churned")
    pipe.recv()


def _hold_a_batch(directory: Path, pipe: Connection) -> None:
    with TierReader(directory).batch() as batch:
        (view,) = batch.get_views([key_of(0)])
        pipe.send(view == value(0))
        while pipe.recv():
            pipe.send(view == value(0))


def test_a_reader_that_stays_in_an_earlier_snapshot_keeps_the_old_store(directory: Path) -> None:
    """The next writer cannot keep what it reads, and so begins another store."""
    with container_running(_write_and_wait, directory) as (first, pipe):
        assert pipe.recv() == "written"
        with container_running(_hold_a_batch, directory) as (_, reading):
            assert reading.recv()
            pipe.send("commit")
            assert pipe.recv() == "committed"
            first.kill()
            writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
            assert list(writer.entries()) == []
            for number in range(ROUNDS):
                put_round(writer, number)
            assert tell(reading)
            writer.close()


def _write_and_hold_natively(directory: Path, pipe: Connection) -> None:
    """Write in a child, which is killed, and go on reading: with a place in LMDB's table, as process 1."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
        writer.put_many([(key_of(i), value_of(i, 50_000), False) for i in range(100)])
        os.write(there, b"w")
        threading.Event().wait()
    os.read(here, 1)
    with TierReader(directory).batch() as batch:
        (view,) = batch.get_views([key_of(0)])
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pipe.send(view == value_of(0, 50_000))
        while pipe.recv():
            pipe.send(view == value_of(0, 50_000))


def test_readers_in_the_table_of_another_namespace_are_not_taken_for_dead(directory: Path) -> None:
    """LMDB's own look at them would find no process of that number here, and use their pages again."""
    with container_running(_write_and_hold_natively, directory) as (process, reading):
        assert reading.recv()
        writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
        assert list(writer.entries()) == []
        writer.reclaim_dead_readers()
        for number in range(ROUNDS):
            put_round(writer, number)
        assert tell(reading)
        writer.close()
        process.kill()


def test_a_store_that_is_not_open_is_taken_over_as_it_is(directory: Path) -> None:
    with container_running(_write_and_wait, directory) as (process, pipe):
        assert pipe.recv() == "written"
        process.kill()
    for _ in range(2):  # by two more namespaces
        with container_running(_write_again, directory) as (process, pipe):
            assert pipe.recv() == ([key_of(0)], ())
            process.kill()
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    assert [key for key, _, _ in writer.entries()] == [key_of(0)]
    writer.close()


def test_a_store_without_its_file_of_locks_is_emptied(directory: Path) -> None:
    """Who has locked the file that was removed cannot be known."""
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    writer.put_many([(key_of(0), value(0), False)])
    writer.close()
    (directory / "readers").unlink()
    writer = TierWriter.open(directory, budget_bytes=BUDGET_BYTES)
    assert list(writer.entries()) == []
    writer.close()
