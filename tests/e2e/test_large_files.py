"""Files larger than ``max_object``, opened by path: in samples, beside them, in processes and threads."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import prefeed
from e2e.automatic import auto
from limits import set_limits
from prefeed.client import large_files
from prefeed.files import close
from sandbox import Sandbox

BLOCK = 64 * 1024
SIZE = 24 * BLOCK + 321
LONG_AGO = 1_600_000_000


def content(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(SIZE)


def put(path: Path, data: bytes, second: int = LONG_AGO) -> None:
    path.write_bytes(data)
    os.utime(path, (second, second))


@pytest.fixture
def source(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three files that are too large to be cached whole, on storage that counts as slow."""
    for name, value in {
        "ROOTS": str(tmp_path), "READS": "all",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"PREFEED_{name}", value)
    set_limits(monkeypatch, block_bytes=BLOCK, max_object_bytes=4 * BLOCK, start_seconds=120)
    monkeypatch.setattr(large_files.Storages, "are_slow", lambda *_: True)
    for number in range(3):
        put(tmp_path / f"{number}.bin", content(number))
    yield tmp_path
    close()


class Windows(Dataset[int]):
    """Each sample reads a window of one of the files, and the file's last bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> int:
        with open(self.root / f"{index % 3}.bin", "rb") as file:
            file.seek(index * BLOCK)
            first = file.read(2 * BLOCK)
            file.seek(-100, os.SEEK_END)
            return sum(first) + sum(file.read())


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_read_parts_of_them_from_the_cache(source: Path, num_workers: int) -> None:
    expected = [Windows(source)[index] for index in range(9)]
    before = 0
    with auto():
        for epoch in range(2):
            loader = DataLoader(
                Windows(source), num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
            )
            assert [int(number) for number in loader] == expected
            statistics = prefeed.statistics()
            assert 0 < statistics.origin_bytes < 3 * SIZE  # blocks, not whole files
            if epoch:
                assert statistics.origin_bytes == before
            before = statistics.origin_bytes
        close()


def test_beside_samples_threads_and_children_share_the_blocks(source: Path) -> None:
    def read(number: int) -> None:
        with open(source / f"{number}.bin", "rb") as file:
            assert file.read() == content(number)
        close()

    context = multiprocessing.get_context("fork")
    with auto():
        read(0)
        children = [context.Process(target=read, args=(0,)) for _ in range(2)]
        for child in children:
            child.start()
        with open(source / "1.bin", encoding="latin-1", newline="") as text:
            assert text.read() == content(1).decode("latin-1")
        assert np.array_equal(np.fromfile(source / "2.bin", np.uint8), np.frombuffer(content(2), np.uint8))
        with open(source / "2.bin", "rb") as file:
            assert np.array_equal(np.memmap(file, np.uint8, "r"), np.frombuffer(content(2), np.uint8))
        for child in children:
            child.join()
            assert child.exitcode == 0
            child.close()
        statistics = prefeed.statistics()
        assert (statistics.origin_bytes, statistics.direct_reads) == (3 * SIZE, 0)


def test_a_file_that_changes_while_it_is_open_is_never_a_mixture(source: Path) -> None:
    with auto():
        with open(source / "0.bin", "rb") as file:
            assert file.read(2 * BLOCK) == content(0)[: 2 * BLOCK]
            put(source / "0.bin", content(7), LONG_AGO + 5)
            file.seek(20 * BLOCK)
            with pytest.raises(OSError, match="changed while it was open") as caught:
                file.read(2 * BLOCK)
            assert caught.value.errno == errno.ESTALE
        with open(source / "0.bin", "rb") as file:
            assert file.read() == content(7)


def test_files_that_wait_for_nothing_are_opened_as_they_are(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files.Storages, "are_slow", lambda *_: False)
    with auto(), open(source / "0.bin", "rb") as file:
        assert type(file) is io.BufferedReader
        assert file.read() == content(0)
