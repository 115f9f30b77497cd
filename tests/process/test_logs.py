"""Logs of entries whose writer is killed, or whose readers are suspended, at every step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from log_tiers import LogTier, key_of, tier_in_files, tier_in_memory, value_of
from prefeed.store import index, segment
from prefeed.store.log import LogWriter
from process.children import child_running

# ---------------------------------------------------------------- writers

Step = tuple[str, list[tuple[int, int, int]]]
STEPS: list[Step] = [
    ("put", [(1, 1, 100), (2, 1, 9000), (3, 1, 0)]),
    ("put", [(2, 2, 30_000)]),
    ("put", [(number, 1, number * 500) for number in range(4, 16)]),
    ("free", [(2, 0, 0), (5, 0, 0), (6, 0, 0), (7, 0, 0), (15, 0, 0)]),
    ("put", [(5, 2, 4072), (8, 2, 1)]),
    ("clear", []),
    ("put", [(1, 2, 5000), (20, 1, 5000)]),
]
"""Operations with key number, version and size. The third doubles an index that begins with eight records."""


def apply(writer: LogWriter, step: Step) -> None:
    operation, entries = step
    if operation == "put":
        writer.put_many([(key_of(n), value_of(n * 10 + version, size), False) for n, version, size in entries])
    elif operation == "free":
        writer.free_many([key_of(n) for n, _, _ in entries])
    else:
        writer.clear()


def states() -> list[dict[bytes, bytes]]:
    """Return what is held before each step, and at the end."""
    found: list[dict[bytes, bytes]] = [{}]
    for operation, entries in STEPS:
        held = {} if operation == "clear" else dict(found[-1])
        for number, version, size in entries:
            held.pop(key_of(number), None)
            if operation == "put":
                held[key_of(number)] = value_of(number * 10 + version, size)
        found.append(held)
    return found


def write_until_killed(directory: Path, die_at: int, is_torn: bool, pipe: Connection) -> None:
    """Apply the steps; kill itself before a call that changes a file, or after half of what it writes."""
    num_calls = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(descriptor: int, *arguments: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == die_at:
                if is_torn and call in (write, writev):
                    data = b"".join(arguments[0]) if call is writev else bytes(arguments[0])
                    if call is writev or len(data) >= 4096:  # less is written whole, or not at all
                        write(descriptor, data[: len(data) // 2], arguments[1])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(descriptor, *arguments)

        return wrapped

    write, writev = os.pwrite, os.pwritev
    for module, name in ((os, "pwrite"), (os, "pwritev"), (os, "ftruncate"), (index, "punch"), (segment, "punch")):
        setattr(module, name, dying(getattr(module, name)))
    index._FIRST_BUCKETS = 1  # type: ignore[misc]
    with tier_in_files(directory) as tier:
        writer = tier.writer()
        for step in STEPS:
            apply(writer, step)
            pipe.send(None)
    pipe.send("done")


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_writer_killed_at_every_step(tmp_path: Path, is_torn: bool) -> None:
    """What was published is there, what was freed is not, nothing else takes pages, and the next writer goes on."""
    before = states()
    for die_at in range(1, 1000):
        directory = tmp_path / str(die_at)
        directory.mkdir()
        num_done = 0
        with child_running(write_until_killed, directory, die_at, is_torn) as (process, pipe):
            process.join()
            while pipe.poll():
                try:
                    if pipe.recv() == "done":
                        assert num_done == len(STEPS)
                        assert die_at > 50
                        return
                except EOFError:
                    break
                num_done += 1
        assert num_done < len(STEPS)
        with tier_in_files(directory) as tier, mock.patch.object(index, "_FIRST_BUCKETS", 1):
            assert_as_published(tier, before[num_done], before[num_done + 1], STEPS[num_done])
    raise AssertionError("the writer never came to its end")


def assert_as_published(tier: LogTier, old: dict[bytes, bytes], new: dict[bytes, bytes], step: Step) -> None:
    """Each entry is as before the step, or as after it."""
    writer, reader = tier.writer(), tier.reader()
    held = {}
    for key in old | new:
        value = reader.get(key)
        assert value in (old.get(key), new.get(key)) or (value is None and step[0] == "clear")
        if value is not None:
            held[key] = value
    tier.validate(writer, held, slack_pages=2)
    assert writer.num_impossible == 0
    if not writer.was_damaged:
        apply(writer, step)
        tier.validate(writer, new, slack_pages=2)


# ---------------------------------------------------------------- readers


def read_when_told(tier: LogTier, pipe: Connection) -> None:
    """Read a value, and be suspended before one of the calls that read a file."""
    reader, left = tier.reader(), 0

    def suspend() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        suspend()
        return read(descriptor, min(size, 50_000), offset)  # large values in parts, as beyond 2 GiB

    def preadv(descriptor: int, parts: list[memoryview], offset: int) -> int:
        suspend()
        return readv(descriptor, [parts[0][:50_000]], offset)

    read, readv = os.pread, os.preadv
    os.pread, os.preadv = pread, preadv  # type: ignore[assignment]
    while True:
        key, is_part, left = pipe.recv()
        target = bytearray(200_000)
        count = reader.read_into(key, memoryview(target)) if is_part else None
        value = bytes(target[:count]) if count is not None else None if is_part else reader.get(key)
        pipe.send((value, left))


KEY = key_of(0)
VALUES = {key_of(n): value_of(n, size) for n, size in enumerate((120_000, 3000, 9000, 0, 120_000))}
NEW = value_of(77, 120_000)


def put(writer: LogWriter, values: dict[bytes, bytes]) -> None:
    writer.put_many([(key, value, False) for key, value in values.items()])


def _free(writer: LogWriter) -> None:
    writer.free_many([KEY])


def _free_all(writer: LogWriter) -> None:
    writer.free_many(list(VALUES))


def _replace(writer: LogWriter) -> None:
    put(writer, {KEY: NEW})


def _replace_by_a_shorter_one(writer: LogWriter) -> None:
    put(writer, {KEY: NEW[:-4096]})


def _clear(writer: LogWriter) -> None:
    writer.clear()


def _clear_and_fill_with_others(writer: LogWriter) -> None:
    writer.clear()
    put(writer, {key_of(n): value_of(n, 60_000) for n in range(50, 54)})


def _clear_and_put_others_first(writer: LogWriter) -> None:
    writer.clear()
    put(writer, {key_of(50): NEW[:4096], KEY: NEW[:-4096]})


def _grow(writer: LogWriter) -> None:
    put(writer, {key_of(n): b"" for n in range(100, 400)})


def _grow_and_clear(writer: LogWriter) -> None:
    _grow(writer)
    writer.clear()
    _grow(writer)


ATTACKS: list[Callable[[LogWriter], None]] = [
    _free, _free_all, _replace, _replace_by_a_shorter_one, _clear, _clear_and_fill_with_others, _clear_and_put_others_first,
    _grow, _grow_and_clear,
]  # fmt: skip
NUM_CALLS = 8
"""A lookup in two buckets of a table that was cleared, the header, a lookup, three parts of the value, and its trailer."""


@pytest.fixture(params=["memory", "files"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogTier]:
    files = tier_in_memory() if request.param == "memory" else tier_in_files(tmp_path)
    with mock.patch.object(index, "_FIRST_BUCKETS", 16), files as tier:
        yield tier


@pytest.mark.parametrize("is_part", [False, True])
def test_a_reader_suspended_at_every_step(tier: LogTier, is_part: bool) -> None:
    """Meanwhile its entry is freed, replaced or cleared: it finds a value of the key, whole, or nothing."""
    right = {VALUES[KEY], NEW, NEW[:-4096]}
    counts = {"hits": 0, "misses": 0}
    writer = tier.writer()
    with child_running(read_when_told, tier) as (process, pipe):
        pipe.send((KEY, is_part, 0))
        pipe.recv()
        for attack in ATTACKS:
            for call in range(1, NUM_CALLS + 1):
                writer.clear()
                put(writer, VALUES)
                pipe.send((KEY, is_part, call))
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                attack(writer)
                os.kill(process.pid, signal.SIGCONT)
                value, left = pipe.recv()
                assert left <= 0
                assert value is None or value in right, f"{attack.__name__} before call {call}"
                counts["misses" if value is None else "hits"] += 1
                if attack is _grow:
                    assert value == VALUES[KEY]
    assert min(counts.values()) > 5
