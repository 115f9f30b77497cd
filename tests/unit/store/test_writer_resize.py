"""The tier's budget becomes another one while it is written and read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.errors import TierFullError
from prefeed.store.directory import allocated_bytes
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from prefeed.testing.tier_contract import key_of, value_of
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024**2
VALUE = 100_000


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


@pytest.fixture
def writer(directory: Path) -> Iterator[TierWriter]:
    writer = TierWriter.open(directory, budget_bytes=32 * MIB)
    yield writer
    writer.close()


def put(writer: TierWriter, first: int, count: int) -> None:
    for index in range(first, first + count):
        writer.put_many([(key_of(index), value_of(index, VALUE), False)])


def put_until_full(writer: TierWriter, first: int) -> int:
    index = first
    try:
        while True:
            put(writer, index, 1)
            index += 1
    except TierFullError:
        return index


def test_a_smaller_budget_holds_from_then_on(directory: Path, writer: TierWriter) -> None:
    put(writer, 0, 30)
    assert writer.resize(12 * MIB) == 12 * MIB
    assert writer.statistics().budget_bytes == 12 * MIB
    stored = put_until_full(writer, 30)
    assert 80 < stored < 120
    assert allocated_bytes(directory) <= 12 * MIB
    reader = TierReader(directory)
    assert all(reader.get(key_of(index)) == value_of(index, VALUE) for index in range(stored))
    reader.close()


def test_it_is_never_smaller_than_what_the_data_take(directory: Path, writer: TierWriter) -> None:
    put(writer, 0, 150)
    granted = writer.resize(4 * MIB)
    assert writer.used_bytes < granted < writer.used_bytes + 3 * MIB
    assert allocated_bytes(directory) == writer.file_bytes <= granted
    assert writer.used_bytes > 0
    reader = TierReader(directory)
    assert reader.get(key_of(149)) == value_of(149, VALUE)
    reader.close()


def test_a_larger_budget_is_used_and_readers_elsewhere_follow(directory: Path, writer: TierWriter) -> None:
    put(writer, 0, 10)
    writer.resize(8 * MIB)
    program = f"""
import sys
from prefeed.store.reader import TierReader
reader = TierReader({str(directory)!r})
for line in sys.stdin:
    print(len(reader.get(bytes.fromhex(line)) or b""), flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def length_elsewhere(index: int) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{key_of(index).hex()}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    assert length_elsewhere(3) == VALUE
    assert writer.resize(48 * MIB) == 48 * MIB
    put(writer, 10, 300)
    assert length_elsewhere(309) == VALUE
    assert allocated_bytes(directory) <= 48 * MIB
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()


def test_back_and_forth_nothing_is_lost(directory: Path, writer: TierWriter) -> None:
    reader = TierReader(directory)
    for turn in range(20):
        budget = writer.resize((8 + 7 * turn % 24) * MIB)
        writer.put_many([(key_of(turn), value_of(turn, VALUE), False)])
        assert allocated_bytes(directory) <= budget
        assert all(reader.get(key_of(index)) == value_of(index, VALUE) for index in range(turn + 1))
    reader.close()


def test_it_stays_as_it_is_while_a_reader_of_this_process_is_inside_a_batch(
    directory: Path, writer: TierWriter
) -> None:
    put(writer, 0, 1)
    reader = TierReader(directory)
    with reader.batch() as batch:
        view = batch.get_view(key_of(0))
        assert writer.resize(8 * MIB) == 32 * MIB
        assert view == value_of(0, VALUE)
    assert writer.resize(8 * MIB) == 8 * MIB
    reader.close()
