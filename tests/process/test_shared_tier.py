"""Many processes in one store: they read and write at once, are killed, forked, and lose the store under their hands."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from xxhash import xxh3_64_digest

from cover import crossed
from leaks import wait_until
from log_tiers import key_of, value_of
from prefeed.store.index import Place
from prefeed.store.shared import SharedTier
from prefeed.store.shared_files import Trimmed, try_trim
from prefeed.system import locks
from process.children import child_running
from sandbox import Sandbox

MIB = 1024**2
LIMIT_BYTES = 256 * MIB
NUM_KEYS = 500
SIZE = 50_000


@pytest.fixture(params=["memory", "disk"])
def tier(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[SharedTier]:
    on_disk = request.param == "disk"
    directory = (sandbox.root if on_disk else sandbox.memory_dir) / "cache"
    directory.mkdir()
    tier = SharedTier(directory, limit_bytes=LIMIT_BYTES, on_disk=on_disk)
    yield tier
    tier.close()


# ---------------------------------------------------------------- all at once


def _row(key: bytes, rng: random.Random) -> bytes:
    """Return a value that shows whether it is whole, and whose it is."""
    body = rng.randbytes(rng.randrange(100, 6_000))
    return xxh3_64_digest(key + body) + body


def _is_whole(key: bytes, value: memoryview) -> bool:
    return xxh3_64_digest(key + bytes(value[8:])) == value[:8]


def _read_and_write(tier: SharedTier, seed: int, rounds: int, found: list[tuple[int, int]]) -> None:
    rng = random.Random(seed)
    hits = torn = 0
    for _ in range(rounds):
        keys = [key_of(number) for number in rng.sample(range(NUM_KEYS), 12)]
        with tier.batch() as batch:
            held = [(key, view) for key, view in zip(keys, batch.get_views(keys), strict=True) if view is not None]
            hits += len(held)
            torn += sum(not _is_whole(key, view) for key, view in held)
        tier.put_many([(key, _row(key, rng)) for key in keys])
        if rng.random() < 0.02:
            tier.empty()
    found.append((hits, torn))


def _two_threads(tier: SharedTier, seed: int, rounds: int, pipe: Connection) -> None:
    found: list[tuple[int, int]] = []
    threads = [
        threading.Thread(target=_read_and_write, args=(tier, seed * 2 + i, rounds, found)) for i in range(2)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(found)


def _check(tier: SharedTier) -> None:
    """Every value is whole, and the totals are those of the values."""
    keys = tier.keys()
    with tier.batch() as batch:
        views = batch.get_views(keys)
        held = [(key, view) for key, view in zip(keys, views, strict=True) if view is not None]
        assert len(held) == len(keys)
        assert all(_is_whole(key, view) for key, view in held)
        sizes = [len(view) for _, view in held]
    found = tier.statistics()
    assert (found.entries, found.value_bytes, found.corrupt) == (len(sizes), sum(sizes), 0)
    assert sum(path.stat().st_blocks * 512 for path in tier.directory.rglob("*")) <= LIMIT_BYTES


def test_many_read_and_write_at_once(tier: SharedTier) -> None:
    with contextlib.ExitStack() as stack:
        methods = ["fork", "spawn", "forkserver", "fork"]
        pipes = [
            stack.enter_context(child_running(_two_threads, tier, seed, 60, method=method))[1]
            for seed, method in enumerate(methods)
        ]
        found = [pair for pipe in pipes for pair in pipe.recv()]
    assert len(found) == 8
    assert all(hits > 0 and torn == 0 for hits, torn in found), found
    _check(tier)


def _write_forever(tier: SharedTier, seed: int, pipe: Connection) -> None:
    while True:
        _read_and_write(tier, seed, 1, [])
        pipe.send(seed)
        seed += 1000


def test_killed_at_any_instant_the_others_continue(tier: SharedTier) -> None:
    rng = random.Random(7)
    with child_running(_write_forever, tier, 500) as (_, survivor):
        for number in range(25):
            with contextlib.ExitStack() as stack:
                started = [stack.enter_context(child_running(_write_forever, tier, number * 3 + i)) for i in range(2)]
                for _ in range(rng.randrange(1, 12)):
                    started[0][1].recv()
                for process, _ in started:  # at whatever instruction the signals find them
                    process.kill()
            row = (key_of(number), _row(key_of(number), rng))
            assert wait_until(
                lambda row=row: tier.put_many([row]) == 1, timeout_seconds=60
            )  # it may be emptied meanwhile
            while survivor.poll():
                survivor.recv()
            survivor.recv()
    _check(tier)
    assert tier.statistics().entries > 25


def _stay_inside(tier: SharedTier, pipe: Connection) -> None:
    tier.put_many([(key_of(0), b"before")])
    files = tier._opened()
    assert files is not None
    with files.turn() as index:
        index.put(key_of(9), Place(2**40, 100, 0, 0))  # half done: nothing is there
        pipe.send("inside")
        threading.Event().wait()


def _put_when_told(tier: SharedTier, number: int, pipe: Connection) -> None:
    tier.put_many([(key_of(number), b"before")])
    pipe.send("open")
    pipe.recv()
    sleep, told = time.sleep, []

    def tell_and_sleep(seconds: float) -> None:
        if not told:
            told.append(pipe.send("waits"))
        sleep(seconds)

    locks.time.sleep = tell_and_sleep  # type: ignore[assignment]
    locks.FORGIVING_SECONDS = 0.0  # type: ignore[misc]
    while not tier.put_many([(key_of(number), b"after")]):  # a slow machine may take longer than anybody is patient
        pass
    pipe.send("stored")


def test_who_writes_and_who_waits_killed_at_once_leave_the_turn_to_the_others(tier: SharedTier) -> None:
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(child_running(_put_when_told, tier, number)) for number in range(1, 4)]
        assert [pipe.recv() for _, pipe in waiting] == ["open"] * 3
        holder, inside = stack.enter_context(child_running(_stay_inside, tier))
        assert inside.recv() == "inside"
        for _, pipe in waiting:
            pipe.send("go")
        assert [pipe.recv() for _, pipe in waiting] == ["waits"] * 3
        for process in (waiting[0][0], holder):
            process.kill()
        assert [pipe.recv() for _, pipe in waiting[1:]] == ["stored"] * 2
    assert [tier.get(key_of(number)) for number in range(4)] == [b"before", b"before", b"after", b"after"]
    assert tier.get(key_of(9)) is None


def _fork_while_inside(tier: SharedTier, pipe: Connection) -> None:
    here, there = multiprocessing.Pipe()
    threading.Thread(target=_stay_inside, args=(tier, there), daemon=True).start()
    assert here.recv() == "inside"
    child = os.fork()
    if child == 0:
        threading.Event().wait()
    pipe.send(child)
    threading.Event().wait()


def test_a_child_forked_while_a_thread_writes_does_not_keep_the_turn(tier: SharedTier) -> None:
    with child_running(_fork_while_inside, tier) as (process, pipe):
        grandchild = pipe.recv()
        try:
            process.kill()
            process.join()
            assert tier.put_many([(key_of(0), b"after")]) == 1
        finally:
            os.kill(grandchild, signal.SIGKILL)
    assert tier.get(key_of(0)) == b"after"


def _put_own(tier: SharedTier, number: int, pipe: Connection) -> None:
    pipe.recv()
    pipe.send(tier.put_many([(key_of(number), value_of(number, SIZE))]))


def test_all_make_the_store_at_once(tier: SharedTier) -> None:
    with contextlib.ExitStack() as stack:
        pipes = [stack.enter_context(child_running(_put_own, tier, number))[1] for number in range(6)]
        for pipe in pipes:
            pipe.send("go")
        assert [pipe.recv() for pipe in pipes] == [1] * 6
    assert [tier.get(key_of(number)) for number in range(6)] == [value_of(number, SIZE) for number in range(6)]


def remove(directory: Path) -> None:
    """Drop a store, as the server does."""
    gone = directory.rename(directory.with_name("gone"))
    shutil.rmtree(gone)


def _put_until_removed(tier: SharedTier, pipe: Connection) -> None:
    row = key_of(0), value_of(0, SIZE)
    assert wait_until(lambda: tier.put_many([row]) > 0, timeout_seconds=60)  # the other one may be opening the store
    number = 0
    # Nothing is stored either when the other one, on a busy machine, does not leave its turn in time.
    while tier.put_many([(key_of(number % 100), value_of(number % 100, SIZE))]) or tier.directory.exists():
        number += 1
        pipe.send(number)
    pipe.send(None)
    pipe.send((tier.get(key_of(1)), f"{tier.directory}/store/segment" in Path("/proc/self/maps").read_text()))


def test_a_store_removed_under_its_writers_stays_removed(tier: SharedTier) -> None:
    """Neither do they make it anew, nor do they hold its memory."""
    for _ in range(5):
        tier.directory.mkdir(exist_ok=True)
        with contextlib.ExitStack() as stack:
            pipes = [stack.enter_context(child_running(_put_until_removed, tier))[1] for _ in range(2)]
            for pipe in pipes:
                pipe.recv()
            remove(tier.directory)
            for pipe in pipes:
                while pipe.recv() is not None:
                    pass
                assert pipe.recv() == (None, False)
            assert not tier.directory.exists()


def _put_when_grown(tier: SharedTier, pipe: Connection) -> None:
    pipe.send(tier.put_many([(key_of(1), value_of(1, SIZE))]))
    tier.grow(LIMIT_BYTES)
    pipe.send(tier.put_many([(key_of(1), value_of(1, SIZE))]))


def test_a_process_fills_the_store_up_to_its_own_limit(tier: SharedTier) -> None:
    assert tier.put_many([(key_of(0), value_of(0, SIZE))]) == 1
    narrow = SharedTier(tier.directory, limit_bytes=2 * SIZE, on_disk=tier._on_disk)
    with child_running(_put_when_grown, narrow) as (_, pipe):
        assert [pipe.recv(), pipe.recv()] == [0, 1]
    assert tier.get(key_of(1)) == value_of(1, SIZE)


# ---------------------------------------------------------------- fork and spawn


def _use(tier: SharedTier, pipe: Connection) -> None:
    with tier.batch() as batch:
        pipe.send([view is not None and bytes(view) for view in batch.get_views([key_of(i) for i in range(4)])])
    pipe.send(tier.put_many([(key_of(5), value_of(5, SIZE))]))
    pipe.recv()
    pipe.send(tier.get(key_of(6)))


@pytest.mark.parametrize(
    ("method", "written"), crossed(["fork", "spawn", "forkserver"], {"read before": False, "written before": True})
)
def test_one_used_before_is_used_in_a_child_too(tier: SharedTier, method: str, written: bool) -> None:
    values = [value_of(i, SIZE) for i in range(3)]
    tier.put_many([(key_of(i), value) for i, value in enumerate(values)])
    if not written:
        tier.close()
    assert tier.get(key_of(0)) == values[0]
    with child_running(_use, tier, method=method) as (_, pipe):
        assert pipe.recv() == [*values, False]
        assert pipe.recv() == 1
        assert tier.get(key_of(5)) == value_of(5, SIZE)
        assert tier.put_many([(key_of(6), value_of(6, SIZE))]) == 1
        pipe.send("go on")
        assert pipe.recv() == value_of(6, SIZE)


def _hold_the_batch(tier: SharedTier, pipe: Connection) -> None:
    with tier.batch() as batch:
        view = batch.get_view(key_of(0))
        assert view is not None
        pipe.send(bytes(view))
        pipe.recv()
        pipe.send(bytes(view))
        threading.Event().wait()


def test_a_reader_that_is_suspended_keeps_its_views(tier: SharedTier) -> None:
    """Its value is replaced, the store is emptied and filled again, and removed: what it looks at stays."""
    tier.put_many([(key_of(0), value_of(0, SIZE))])
    with child_running(_hold_the_batch, tier) as (process, pipe):
        assert pipe.recv() == value_of(0, SIZE)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        assert tier.put_many([(key_of(0), value_of(1, SIZE))]) == 1
        assert not try_trim(tier.directory, on_disk=tier._on_disk).is_done
        tier.empty()
        assert tier.put_many([(key_of(i), value_of(2, SIZE)) for i in range(20)]) == 20
        remove(tier.directory)
        os.kill(process.pid, signal.SIGCONT)
        pipe.send("look again")
        assert pipe.recv() == value_of(0, SIZE)


def test_space_of_replaced_values_and_killed_writers_comes_back(tier: SharedTier) -> None:
    values = {key_of(i): value_of(i, SIZE) for i in range(20)}
    for _ in range(3):
        assert tier.put_many(list(values.items())) == 20
    with child_running(_hold_the_batch, tier) as (process, pipe):
        pipe.recv()
        tier.close()
        assert not try_trim(tier.directory, on_disk=tier._on_disk).is_done
        process.kill()
        process.join()
    files = tier._opened()
    assert files is not None
    tier._take_places(files, [10 * SIZE])  # of a writer that was killed before it wrote
    del files
    tier.close()
    assert try_trim(tier.directory, on_disk=tier._on_disk) == Trimmed(is_done=True)
    found = tier.statistics()
    assert (found.entries, found.value_bytes) == (20, 20 * SIZE)
    assert 20 * SIZE < found.stored_bytes < 22 * SIZE + 200_000
    assert {key: tier.get(key) for key in values} == values


def _empty_forever(tier: SharedTier, pipe: Connection) -> None:
    while True:
        tier.put_many([(key_of(9), value_of(9, SIZE))])
        tier.empty()
        pipe.send(None)


def _put_forever(tier: SharedTier, number: int, pipe: Connection) -> None:
    while True:
        SharedTier(tier.directory, limit_bytes=LIMIT_BYTES, on_disk=tier._on_disk).put_many(
            [(key_of(number), value_of(number, SIZE))]
        )
        pipe.send(None)


def test_views_stay_right_while_others_empty_and_make_the_store(tier: SharedTier) -> None:
    """A store that is made anew writes nothing over what is looked at."""
    numbers = (1, 2, 9)
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(child_running(_put_forever, tier, number)) for number in (1, 2)]
        started += [stack.enter_context(child_running(_empty_forever, tier)) for _ in range(2)]
        found = 0
        while found < 1000:
            with tier.batch() as batch:
                views = {number: batch.get_view(key_of(number)) for number in numbers}
                for _, pipe in started:  # something has happened since
                    pipe.recv()
                    while pipe.poll():
                        pipe.recv()
                for number, view in views.items():
                    if view is not None:
                        found += 1
                        assert view == value_of(number, SIZE)
        for process, _ in started:
            process.kill()
