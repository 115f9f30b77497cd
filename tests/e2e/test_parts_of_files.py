# ruff: noqa: SIM115 - files that are kept open are what is tested
"""Samples that read a part of a large file: the part is copied and no more, however the file is opened and kept."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import prefeed
from counting import counting
from prefeed.store.log import LogReader
from prefeed.torch import attachment, samples
from sandbox import Sandbox, end_all, servers_of
from slow_files import SlowDirectory, slow_files

NUM_FILES = 4
NUM_SAMPLES = 40
SLICE_BYTES = 4096
FILE_BYTES = 1_200_000

Read = Callable[[Any, int], Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of a megabyte, as raw bytes, NPY and HDF5, and pictures."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for index in range(NUM_FILES):
        array = rng.integers(0, 2**32, FILE_BYTES // 4, np.uint32)
        array.tofile(root / f"{index}.bin")
        np.save(root / f"{index}.npy", array)
        with h5py.File(root / f"{index}.h5", "w") as file:
            file["array"] = array
        Image.fromarray(array[:120_000].view(np.uint8).reshape(400, 400, 3)).save(
            root / f"{index}.png", compress_level=1
        )
    return root


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source) as slow:
        yield slow


class Slices(Dataset[bytes]):
    """Sample i is a part of file i modulo the number of files."""

    def __init__(self, root: Path, ending: str, read: Read) -> None:
        self.root = str(root)
        self.ending = ending
        self.read = read

    def __len__(self) -> int:
        return NUM_SAMPLES

    def path(self, index: int) -> str:
        return os.path.join(self.root, f"{index % NUM_FILES}{self.ending}")

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.read(self.path(index), index * 29_999 % (FILE_BYTES - SLICE_BYTES)))


def by_seek(path: str, start: int) -> Any:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(SLICE_BYTES)


def by_readinto(path: str, start: int) -> Any:
    target = bytearray(SLICE_BYTES)
    with open(path, "rb") as file:
        file.seek(start - FILE_BYTES, os.SEEK_END)
        assert file.readinto(target) == SLICE_BYTES
    return target


def by_numpy(path: str, start: int) -> Any:
    return np.fromfile(path, np.uint8, SLICE_BYTES, offset=start).tobytes()


def by_hdf5(path: str, start: int) -> Any:
    with open(path, "rb") as opened, h5py.File(opened, "r") as file:
        return file["array"][start // 4 : start // 4 + 100].tobytes()


def whole(path: str, start: int) -> Any:
    return np.load(path)[start // 4 : start // 4 + 100].tobytes()


def of_picture(path: str, start: int) -> Any:
    with Image.open(path) as image:
        return np.asarray(image)[start // 3000].tobytes()


def by_map(path: str, start: int) -> Any:
    return np.load(path, mmap_mode="r")[start // 4 : start // 4 + 100].tobytes()


def by_memmap(path: str, start: int) -> Any:
    return np.memmap(path, np.uint8, "r", offset=start, shape=(SLICE_BYTES,)).tobytes()


WAYS: dict[str, tuple[str, Read]] = {
    "seek": (".bin", by_seek),
    "readinto": (".bin", by_readinto),
    "fromfile": (".bin", by_numpy),
    "hdf5": (".h5", by_hdf5),
    "npy": (".npy", whole),
    "picture": (".png", of_picture),
    "mapped npy": (".npy", by_map),
    "memmap": (".bin", by_memmap),
}
SMALL = ("seek", "readinto", "fromfile", "hdf5")
MAPPED = ("mapped npy", "memmap")


def joined(batch: list[bytes]) -> list[bytes]:
    return batch


def loader_of(dataset: Any, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    return cls(dataset, batch_size=8, collate_fn=joined, **kwargs)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what readers of this process have copied out of the tier by parts."""
    sizes: list[int] = []
    read_into = LogReader.read_into

    def count_into(reader: LogReader, key: bytes, target: memoryview, start: int = 0) -> int | None:
        found = read_into(reader, key, target, start)
        sizes.append(found or 0)
        return found

    monkeypatch.setattr(LogReader, "read_into", count_into)
    return sizes


@pytest.mark.parametrize("way", WAYS)
def test_each_way_reads_the_same_and_small_parts_cost_little(
    source: Path, slow: SlowDirectory, copied: list[int], way: str
) -> None:
    ours, truth = (loader_of(Slices(root, *WAYS[way]), cls) for root, cls in
                   ((slow.path, prefeed.DataLoader), (source, DataLoader)))  # fmt: skip
    expected = list(truth)
    assert list(ours) == expected
    opens = slow.opens()
    assert opens == NUM_FILES or way in MAPPED
    copied.clear()
    assert list(ours) == expected
    assert slow.opens() == opens or way in MAPPED
    if way in SMALL:
        assert 0 < sum(copied) < 20 * SLICE_BYTES * NUM_SAMPLES


def test_workers_read_parts(source: Path, slow: SlowDirectory) -> None:
    ours = loader_of(Slices(slow.path, *WAYS["seek"]), num_workers=2, persistent_workers=True)
    truth = list(loader_of(Slices(source, *WAYS["seek"]), DataLoader))
    for _ in range(3):
        assert list(ours) == truth
        assert slow.opens_by_file() == {f"{index}.bin": 1 for index in range(NUM_FILES)}
    found = prefeed.statistics()
    assert (found.reads, found.direct_reads) == (3 * NUM_SAMPLES, 0)


class Kept(Slices):
    """Opens each file once, and reads from it in all samples and epochs that follow."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, ".bin", by_seek)
        self.files: dict[str, Any] = {}

    def __getitem__(self, index: int) -> bytes:
        path = self.path(index)
        if path not in self.files:
            self.files[path] = open(path, "rb")
        self.files[path].seek(index * 1013)
        return bytes(self.files[path].read(SLICE_BYTES))

    def close(self) -> None:
        for file in self.files.values():
            file.close()


@pytest.mark.parametrize("read_once", ["0", "1"])
def test_a_file_that_is_kept_continues_working(
    source: Path, slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox, read_once: str
) -> None:
    """Over samples and epochs, when the cache has freed it, and when the server is gone and its memory with it."""
    monkeypatch.setenv("PREFEED_READ_ONCE", read_once)
    kept, truth = Kept(slow.path), Kept(source)
    expected = list(loader_of(truth, DataLoader))
    ours = loader_of(kept)
    for _ in range(3):
        assert list(ours) == expected
    opens = slow.opens_by_file()
    assert set(opens.values()) == {1} if read_once == "0" else max(opens.values()) <= 2
    end_all(servers_of(sandbox))
    assert list(ours) == expected
    assert [kept[index] for index in range(NUM_SAMPLES)] == [part for batch in expected for part in batch]
    assert max(slow.opens_by_file().values()) <= 3
    kept.close()
    truth.close()


def test_a_file_that_is_open_in_a_fork_continues_working(source: Path, slow: SlowDirectory) -> None:
    """Its parent's snapshot is none of the child's: each reads the tier by itself."""
    kept = Kept(slow.path)
    list(loader_of(kept))
    expected = [part for batch in loader_of(Slices(source, ".bin", by_seek), DataLoader) for part in batch]
    truth = Kept(source)
    assert [part for batch in DataLoader(kept, batch_size=8, collate_fn=joined, num_workers=2) for part in batch] == [
        truth[index] for index in range(NUM_SAMPLES)
    ]
    assert len(expected) == NUM_SAMPLES
    assert set(slow.opens_by_file().values()) == {1}
    kept.close()
    truth.close()


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("memory", ["4MiB", "64MiB"])
def test_parts_of_files_that_do_not_fit_are_read_directly(
    source: Path, slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    workers: dict[str, Any], memory: str,
) -> None:  # fmt: skip
    """Else each part would fetch its whole file again, in each epoch."""
    monkeypatch.setenv("PREFEED_MEMORY", memory)
    monkeypatch.setattr(samples, "_LEAST_PARTS", 4)
    monkeypatch.setattr(attachment, "_LEAST_HIT_RATIO_OF_PARTS", 0.99)  # three of four files fit
    ours = loader_of(Slices(slow.path, *WAYS["seek"]), **workers)
    truth = list(loader_of(Slices(source, *WAYS["seek"]), DataLoader))
    with caplog.at_level(logging.INFO, logger="prefeed"):
        for _ in range(3):
            assert list(ours) == truth
    said = [record.getMessage() for record in caplog.records if "small parts of large files" in record.getMessage()]
    assert len(said) == (memory == "4MiB")
    reads = prefeed.statistics().reads
    assert reads == (NUM_SAMPLES if said else 3 * NUM_SAMPLES)  # of the first epoch, or of all


def test_the_run_summary_counts_the_bytes_that_were_read(slow: SlowDirectory, tmp_path: Path) -> None:
    """Of a file of which parts were read these; what came from the origin came whole."""
    with counting(tmp_path / "counts") as sums:
        ours = loader_of(Slices(slow.path, *WAYS["seek"]))
        for _ in range(2):
            assert len(list(ours)) == NUM_SAMPLES // 8
        found = sums()
    assert (found["hits"], found["late_or_missed"], found["direct_reads"]) == (
        2 * NUM_SAMPLES - NUM_FILES,
        NUM_FILES,
        0,
    )
    assert (found["cache_bytes"], found["origin_bytes"]) == (2 * NUM_SAMPLES * SLICE_BYTES, NUM_FILES * FILE_BYTES)


class Sometimes(Dataset[bytes]):
    """Sample 0 opens its file in some epochs only, so that nothing of it is planned in the others."""

    def __init__(self, root: Path) -> None:
        self.path = root / "sometimes.bin"
        self.opens = True

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> bytes:
        return self.path.read_bytes() if self.opens and index == 0 else b""


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_a_file_that_is_opened_beside_the_plan_is_compared_once_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any]
) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    dataset = Sometimes(tmp_path)
    switch = torch.ones(1).share_memory_()
    dataset.__class__ = type("Switched", (Sometimes,), {"opens": property(lambda _: bool(switch), lambda *_: None)})
    dataset.path.write_bytes(b"old" * 200_000)
    os.utime(dataset.path, (1_600_000_000, 1_600_000_000))
    ours = prefeed.DataLoader(dataset, batch_size=1, collate_fn=joined, **workers)
    for epoch in range(5):
        switch[0] = epoch in (0, 4)
        if epoch == 4:
            dataset.path.write_bytes(b"new" * 200_000)
            os.utime(dataset.path, (1_700_000_000, 1_700_000_000))
        found = [sample for batch in ours for sample in batch]
        assert found[0][:3] == {0: b"old", 4: b"new"}.get(epoch, b"")


def test_another_name_of_a_file_that_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an epoch, a name that was read before."""
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    real, other = tmp_path / "real.bin", tmp_path / "other.bin"
    real.write_bytes(b"old" * 200_000)
    os.utime(real, (1_600_000_000, 1_600_000_000))
    other.hardlink_to(real)

    class Writing(Dataset[bytes]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> bytes:
            if index == 2:
                with open(real, "r+b") as file:
                    file.write(b"new")
            with open(other, "rb") as file:
                return file.read(3)

    ours = prefeed.DataLoader(Writing(), batch_size=1, collate_fn=joined)
    assert [sample for batch in ours for sample in batch] == [b"old", b"old", b"new", b"new"]
