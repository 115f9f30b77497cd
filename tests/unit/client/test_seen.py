"""What samples opened in place, from the workers to the loader."""

from __future__ import annotations

import os
import pickle
from typing import Any

import numpy as np
import pytest

from prefeed.client.seen import ROW_BYTES, SeenFiles


class Memory:
    """Memory of this process alone; it pickles as a name."""

    def __init__(self, num_rows: int = 2) -> None:
        self.bytes = np.zeros(num_rows * ROW_BYTES, dtype=np.uint8)

    def numpy(self) -> Any:
        return self.bytes


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def seen(memory: Memory) -> SeenFiles:
    return SeenFiles(memory)


def test_each_row_tells_of_its_samples(seen: SeenFiles, memory: Memory) -> None:
    assert seen.files() == {}
    seen.add(0, 3, ["/d/3"])
    seen.add(1, 1 << 40, ["/d/a", "/d/b \n", os.fsdecode(b"/d/\xff")])
    seen.add(0, 4, ["/d/4"])
    seen.add(0, 3, ["/d/3 of the next epoch"])
    assert SeenFiles(memory).files() == {
        3: ("/d/3 of the next epoch",), 1 << 40: ("/d/a", "/d/b \n", os.fsdecode(b"/d/\xff")), 4: ("/d/4",)
    }  # fmt: skip


def test_the_first_ones_of_each_row(seen: SeenFiles) -> None:
    for sample in range(3):
        seen.add(0, sample, [f"/a/{sample}"])
        seen.add(1, 10 + sample, [f"/b/{sample}"])
    assert seen.files(most=2).keys() == {0, 1, 10, 11}


@pytest.mark.parametrize("row", [-1, 2, 63])
def test_a_worker_without_a_row_tells_nothing(seen: SeenFiles, row: int) -> None:
    seen.add(row, 3, ["/d/3"])
    assert seen.files() == {}


def test_a_full_row_keeps_what_it_has(seen: SeenFiles) -> None:
    path = "/d/" + "x" * 1000
    for sample in range(1000):
        seen.add(0, sample, [path])
    seen.add(1, 5000, ["/d/other"])
    found = seen.files()
    assert len(found) == 1 + ROW_BYTES // (1003 + 24)
    assert set(found.values()) == {(path,), ("/d/other",)}
    seen.add(0, 6000, ["/d/short"])  # there is room for that
    assert seen.files()[6000] == ("/d/short",)


@pytest.mark.parametrize("at", [8, 16, 24, 32], ids=["sample", "length", "checksum", "path"])
def test_a_record_that_is_not_whole_ends_its_row(seen: SeenFiles, memory: Memory, at: int) -> None:
    seen.add(0, 3, ["/d/3"])
    seen.add(1, 4, ["/d/4"])
    memory.bytes[at] ^= 0x7F
    found = seen.files()
    assert found[4] == ("/d/4",)
    assert at == 8 or 3 not in found  # of a wrong sample it is a wrong guess


def test_more_bytes_in_use_than_there_are(seen: SeenFiles, memory: Memory) -> None:
    seen.add(1, 4, ["/d/4"])
    memory.bytes[ROW_BYTES : ROW_BYTES + 8] = 0x7F
    assert seen.files() == {4: ("/d/4",)}


def test_a_copy_has_the_same_memory(seen: SeenFiles) -> None:
    seen.add(0, 3, ["/d/3"])
    assert pickle.loads(pickle.dumps(seen)).files() == seen.files()
