"""Which large files are read in blocks: those whose storage lets a reader wait."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefeed.client.large_files import LargeFiles, LentBlocks, Storages, is_in_memory, waited_ns
from prefeed.config import Config, resolve
from prefeed.core.in_place import QUICK_NS
from prefeed.limits import Limits
from prefeed.sources.file_versions import version_of
from prefeed.types import ObjectInfo

SIZE = 100_000
LONG_AGO = 1_600_000_000


class Storage:
    """Answers in place of the kernel.

    Attributes:
        waits: Of the first read, the second and so on, in nanoseconds; round and round.
        is_cached: The kernel has all of the file.
        reads: Places that were read.
    """

    def __init__(self, *waits: int) -> None:
        self.waits = waits
        self.now = 100.0
        self.is_cached = False
        self.reads: list[int] = []
        self.storages = Storages(
            lambda: self.now, is_in_memory=lambda descriptor, offset: self.is_cached, waited_ns=self._read
        )

    def _read(self, descriptor: int, offset: int) -> int:
        self.reads.append(offset)
        return self.waits[(len(self.reads) - 1) % len(self.waits)]

    def are_slow(self, device: int = 7) -> bool:
        status: Any = SimpleNamespace(st_size=SIZE, st_dev=device)
        return self.storages.are_slow(3, status)


@pytest.mark.parametrize(
    ("waits", "are_slow"),
    [((0, 0, 0), False), ((QUICK_NS, QUICK_NS, QUICK_NS), False), ((QUICK_NS + 1, 0, QUICK_NS + 1), True),
     ((0, 0, QUICK_NS * 100), False)],
)  # fmt: skip
def test_storage_is_slow_if_most_of_three_reads_wait(waits: tuple[int, ...], are_slow: bool) -> None:
    storage = Storage(*waits)
    assert storage.are_slow() == are_slow
    assert storage.reads == [0, SIZE // 2, SIZE - 4096]


def test_a_file_that_the_kernel_has_in_memory_is_not_read_at_all() -> None:
    storage = Storage(QUICK_NS * 2)
    assert storage.are_slow()
    storage.is_cached = True
    assert not storage.are_slow()
    assert len(storage.reads) == 3


def test_slow_storage_is_measured_again_after_a_while_and_quick_storage_each_time() -> None:
    storage = Storage(QUICK_NS * 2)
    assert [storage.are_slow() for _ in range(10)] == [True] * 10
    assert len(storage.reads) == 3
    assert storage.are_slow(device=8)
    assert len(storage.reads) == 6
    storage.now += 5
    storage.waits = (0,)
    assert [storage.are_slow() for _ in range(3)] == [False] * 3
    assert len(storage.reads) == 15


def test_a_file_just_read_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(SIZE))
    descriptor = os.open(tmp_path / "x", os.O_RDONLY)
    try:
        assert waited_ns(descriptor, 0) >= -1_000_000  # of two clocks
        assert is_in_memory(descriptor, 0) in (True, False)  # not every file system can say
        assert not is_in_memory(descriptor, SIZE)
    finally:
        os.close(descriptor)


def test_small_young_and_special_files_are_not_lent(tmp_path: Path) -> None:
    config = resolve(limits={"max_object_bytes": SIZE - 1})
    large = LargeFiles(config, Storage(QUICK_NS * 2).storages)
    for name, size in (("small", SIZE - 1), ("young", SIZE)):
        (tmp_path / name).write_bytes(bytes(size))
        assert large.lend(str(tmp_path / name)) is None
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "none", "nul\0"):
        assert large.lend(str(tmp_path / name)) is None
    assert LargeFiles(resolve({"enabled": False}, limits={"max_object_bytes": 1})).lend(str(tmp_path / "young")) is None


def test_bytes_that_are_not_cached_come_from_the_open_file_in_its_version(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(250)) * 4)
    os.utime(path, (LONG_AGO, LONG_AGO))
    descriptor = os.open(path, os.O_RDONLY)
    opened: Any = SimpleNamespace(
        info=ObjectInfo(path="x", size_bytes=1000, version=version_of(os.fstat(descriptor), descriptor)),
        block_bytes=400,
    )
    blocks: Any = SimpleNamespace(
        pid=os.getpid(),
        tier=lambda _: None,
        config=Config(limits=Limits(lookahead_bytes=1000)),
        end_file=lambda *_: None,
    )
    opened.dataset, opened.num_blocks, opened.is_split = None, 3, True  # as it is opened by path
    lent = LentBlocks(opened, blocks, str(path), descriptor)
    assert (len(lent), lent.are_of(descriptor)) == (1000, True)
    assert lent.read(498, 4) == bytes([248, 249, 0, 1])
    target = bytearray(3)
    assert lent.read_into(999, memoryview(target)) == 1
    assert target == bytes([249, 0, 0])
    lent.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    assert lent.read(0, 2) == b"\0\1"  # opened again
    os.utime(path, (LONG_AGO, time.time() - 100))
    assert lent.read(700, 2) is None  # of another version: only the file itself can say what it is
    lent.close()
    lent.close()


def test_two_threads_that_read_first_share_one_open_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1000))
    made: list[object] = []

    def both_begin(*arguments: Any, **options: Any) -> Any:
        """The second thread makes one while the first one does."""
        made.append(file := object())
        if len(made) == 1:
            found.append(lent._in_blocks())
        return file

    monkeypatch.setattr("prefeed.client.large_files.BlockFile", both_begin)
    found: list[object] = []
    lent = LentBlocks(opened := SimpleNamespace(), opened, str(path), os.open(path, os.O_RDONLY))  # type: ignore[arg-type]
    try:
        found.append(lent._in_blocks())
        assert len(made) == 2
        assert found == [made[1], made[1]]
        assert lent._in_blocks() is made[1]
    finally:
        lent._files.clear()
        lent.close()
