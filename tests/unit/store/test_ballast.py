"""A store that becomes smaller: pages without values go back to the kernel, and come again before anything is written there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaks import wait_until
from prefeed.store.layout import data_path, stored_bytes
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from prefeed.testing.tier_contract import key_of, value_of
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024**2
BUDGET = 48 * MIB
SIZES = [60_000, 84_000, 110_000, 30_000]


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return sandbox.memory_dir / "store"


@pytest.fixture
def writer(directory: Path) -> Iterator[TierWriter]:
    writer = TierWriter.open(directory, budget_bytes=BUDGET)
    yield writer
    writer.close()


def taken_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


def size_of(number: int) -> int:
    return SIZES[number % len(SIZES)]


def put(writer: TierWriter, number: int) -> None:
    writer.put_many([(key_of(number), value_of(number, size_of(number)), False)])


def fill(writer: TierWriter, start: int = 0) -> list[int]:
    numbers = []
    while writer.used_bytes + stored_bytes(size_of(start)) <= writer.capacity_bytes:
        put(writer, start)
        numbers.append(start)
        start += 1
    return numbers


def shrink(writer: TierWriter, budget_bytes: int) -> int:
    """Have it give back until it has, or finds nothing more: it does so part by part."""
    taken = writer.give_back(budget_bytes)
    while taken > budget_bytes and not writer.is_scattered:
        taken = writer.give_back(budget_bytes)
    return taken


def assert_right(directory: Path, numbers: list[int]) -> None:
    reader = TierReader(directory)
    for number in numbers:
        assert reader.get(key_of(number)) == value_of(number, size_of(number)), number
    reader.close()


def test_deleting_alone_gives_nothing_back(directory: Path, writer: TierWriter) -> None:
    """That is why there is ballast."""
    numbers = fill(writer)
    before = taken_bytes(directory)
    writer.delete_many([key_of(number) for number in numbers])
    assert taken_bytes(directory) == before


@pytest.mark.parametrize("kept", [1, 2, 4], ids=["nothing goes", "every second goes", "three of four go"])
def test_pages_of_what_was_freed_go_back(directory: Path, writer: TierWriter, kept: int) -> None:
    """Values that lay between them are whole; what is taken is what the file system says."""
    numbers = fill(writer)
    writer.delete_many([key_of(number) for number in numbers if number % kept or kept == 1])
    wanted = int(1.15 * writer.used_bytes) + 4 * MIB
    taken = shrink(writer, wanted)
    assert taken <= wanted
    assert abs(taken - taken_bytes(directory)) < 2 * MIB
    assert writer.used_bytes <= writer.capacity_bytes <= writer.capacity_within(taken) + MIB
    assert_right(directory, [number for number in numbers if number % kept == 0 and kept > 1])


def test_it_grows_again_and_nothing_is_written_to_a_hole(directory: Path, writer: TierWriter) -> None:
    """Three times small and large again; every value is right, and the file never takes more than it may."""
    start = 0
    for _ in range(3):
        numbers = fill(writer, start)
        start = numbers[-1] + 1
        kept = numbers[::5]
        writer.delete_many([key_of(number) for number in numbers if number not in kept])
        taken = shrink(writer, 16 * MIB)
        assert taken <= 24 * MIB  # a store that was full has values in pieces, between which short runs are free
        assert_right(directory, kept)
        while writer.used_bytes + 200_000 < writer.capacity_bytes:  # small, it is used as any
            put(writer, start)
            kept.append(start)
            start += 1
        assert taken_bytes(directory) <= taken + MIB
        assert_right(directory, kept)
        writer.resize(BUDGET)
        assert writer.file_bytes <= BUDGET
        assert writer.capacity_bytes > writer.capacity_within(BUDGET) - MIB
        kept += fill(writer, start)
        assert taken_bytes(directory) <= BUDGET
        assert_right(directory, kept)
        start = kept[-1] + 1
        writer.delete_many([key_of(number) for number in kept])


def test_a_reader_in_a_batch_keeps_what_it_sees(directory: Path, writer: TierWriter) -> None:
    """What was deleted under it is not punched, however often the store is asked."""
    numbers = fill(writer)
    program = (
        "import sys; from pathlib import Path; from prefeed.store.reader import TierReader\n"
        "from prefeed.testing.tier_contract import key_of, value_of\n"
        f"sizes = {SIZES}; reader = TierReader(Path(sys.argv[1]))\n"
        "with reader.batch() as batch:\n"
        f"    views = [batch.get_view(key_of(n)) for n in range({len(numbers)})]\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
        "    assert all(bytes(v) == value_of(n, sizes[n % 4]) for n, v in enumerate(views)); del views\n"
        "print('right', flush=True)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "in\n"
        writer.delete_many([key_of(number) for number in numbers])
        shrink(writer, 8 * MIB)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "right\n"
    assert child.returncode == 0
    assert shrink(writer, 8 * MIB) <= 8 * MIB


def test_a_writer_that_was_killed_leaves_it_small_and_right(directory: Path) -> None:
    program = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2]); from pathlib import Path\n"
        "from unit.store.test_ballast import *\n"
        "writer = TierWriter.open(Path(sys.argv[1]), budget_bytes=BUDGET); numbers = fill(writer)\n"
        "writer.delete_many([key_of(n) for n in numbers if n % 4]); shrink(writer, 20 * MIB)\n"
        "print(len(numbers), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    tests = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program, str(directory), str(tests)], capture_output=True, text=True, check=False
    )
    numbers = list(range(int(ran.stdout)))
    assert taken_bytes(directory) <= 21 * MIB
    writer = TierWriter.open(directory, budget_bytes=BUDGET)
    assert_right(directory, numbers[::4])
    assert writer.file_bytes <= 22 * MIB
    writer.resize(BUDGET)
    assert_right(directory, [*numbers[::4], *fill(writer, 1000)])
    writer.close()


def test_what_lies_behind_the_data_goes_first(directory: Path, writer: TierWriter) -> None:
    put(writer, 0)
    wait_until(lambda: taken_bytes(directory) > 8 * MIB, timeout_seconds=60)  # pages made ahead
    assert writer.give_back(4 * MIB) <= 4 * MIB
    assert os.stat(data_path(directory)).st_blocks * 512 <= 4 * MIB
    assert_right(directory, [0])
    assert_right(directory, [0, *fill(writer, 1)])
