"""Samples and loops that write files which samples read: everybody reads what was written, as with plain torch."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets

import prefeed
from leaks import wait_until
from sandbox import Sandbox, end_all, servers_of


def put(path: str, value: int) -> None:
    np.save(path, np.full(300, value))


def value_of(path: str) -> int:
    return int(np.load(path)[-1])


# ---------------------------------------------------------------- ways to change a file


def _memory_map(path: str, value: int) -> None:
    mapped = np.lib.format.open_memmap(path, mode="r+")
    mapped[:] = value


def _system_calls(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    data = Path(path + ".tmp.npy").read_bytes()
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, data)
    os.close(descriptor)


def _raw(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    with io.FileIO(path, "r+") as file:
        file.write(Path(path + ".tmp.npy").read_bytes())


def _replaced(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    os.replace(path + ".tmp.npy", path)


def _moved(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    shutil.move(path + ".tmp.npy", path)


def _copied(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    shutil.copyfile(path + ".tmp.npy", path)


def _removed(path: str, value: int) -> None:
    os.remove(path)
    put(path, value)


def _linked(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    Path(path).unlink()
    os.link(path + ".tmp.npy", path)


def _path_of_pathlib(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    Path(path).write_bytes(Path(path + ".tmp.npy").read_bytes())


def _by_directory(path: str, value: int) -> None:
    put(path + ".tmp.npy", value)
    data = Path(path + ".tmp.npy").read_bytes()
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    descriptor = os.open(os.path.basename(path), os.O_RDWR, dir_fd=directory)
    os.write(descriptor, data)
    os.close(descriptor)
    os.close(directory)


def _relative(path: str, value: int) -> None:
    before = os.getcwd()
    os.chdir(os.path.dirname(path))
    put(os.path.basename(path), value)
    os.chdir(before)


def _through_a_link(path: str, value: int) -> None:
    """The file's directory has another name."""
    directory, name = os.path.split(path)
    link = f"{directory}-link-{os.getpid()}-{name}"
    os.symlink(directory, link)
    put(f"{link}/{name}", value)
    os.unlink(link)


def _by_another_name(path: str, value: int) -> None:
    """The file has a second name."""
    name = f"{path}.other.npy"
    if not os.path.exists(name):
        os.link(path, name)
    put(name, value)


def _directory_moved(path: str, value: int) -> None:
    """Another directory comes into the place of that of the file."""
    directory, name = os.path.split(path)
    shutil.copytree(directory, directory + ".new")
    put(f"{directory}.new/{name}", value)
    os.rename(directory, directory + ".old")
    os.rename(directory + ".new", directory)
    shutil.rmtree(directory + ".old")


WAYS: list[Callable[[str, int], None]] = [
    put, _memory_map, _system_calls, _raw, _replaced, _moved, _copied, _removed, _linked, _path_of_pathlib, _by_directory,
    _relative, _through_a_link, _by_another_name, _directory_moved,
]  # fmt: skip


class Counting(Dataset[list[int]]):
    """Each sample reads its file, writes it in one of many ways, and reads it again."""

    def __init__(self, root: Path, ways: list[Callable[[str, int], None]], times: int = 3) -> None:
        self.root = str(root)
        self.ways = ways
        self.times = times
        for index in range(len(self)):
            os.makedirs(os.path.dirname(self.path(index)), exist_ok=True)
            put(self.path(index), 10 * index)

    def path(self, index: int) -> str:
        return f"{self.root}/{index}/x.npy"

    def __len__(self) -> int:
        return len(self.ways)

    def __getitem__(self, index: int) -> list[int]:
        path = self.path(index)
        seen = [value_of(path)]
        for _ in range(self.times):
            self.ways[index](path, seen[-1] + 1)
            seen.append(value_of(path))
        return seen


def batches(loader: Any, epochs: int) -> list[Any]:
    return [list(loader) for _ in range(epochs)]


def as_is(batch: Any) -> Any:
    return batch


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    return tmp_path


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


@pytest.mark.parametrize("workers", WORKERS, ids=["0", "2", "2-kept"])
def test_a_sample_reads_what_it_wrote(roots: Path, workers: dict[str, Any]) -> None:
    kwargs: dict[str, Any] = {"batch_size": 2, "collate_fn": as_is, **workers}
    ours = prefeed.DataLoader(Counting(roots / "ours", WAYS), **kwargs)
    truth = DataLoader(Counting(roots / "truth", WAYS), **kwargs)
    assert batches(ours, 3) == batches(truth, 3)


# ---------------------------------------------------------------- written by one process, read by another


class Sharing(Dataset[list[int]]):
    """Sample i reads file i; those of ``writers`` write the file of a sample that another worker makes later."""

    def __init__(self, root: Path, length: int, writers: tuple[int, ...] = ()) -> None:
        self.root = str(root)
        self.length = length
        self.writers = writers
        os.makedirs(root)
        for index in range(length):
            put(self.path(index), index)

    def path(self, index: int) -> str:
        return f"{self.root}/{index}.npy"

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> list[int]:
        seen = [value_of(self.path(index))]
        if index in self.writers:
            later = self.path(index + 9)
            put(later + ".tmp.npy", value_of(later) + 100)
            os.rename(later + ".tmp.npy", later)
        return seen


def epoch_with_writes(loader: Any, dataset: Sharing, number: int) -> list[Any]:
    """Return the batches; after the first, the loop writes the last file. Workers have not come so far by then."""
    batches = []
    for batch in loader:
        if not batches:
            put(dataset.path(len(dataset) - 1), 1000 * number)
        batches.append(batch)
    return batches


KEPT: dict[str, Any] = {"persistent_workers": True}
SPAWNED: dict[str, Any] = {**KEPT, "multiprocessing_context": "spawn", "num_workers": 1}


@pytest.mark.parametrize(
    ("kwargs", "is_killed"),
    [({}, False), ({}, True), (KEPT, False), (KEPT, True), (SPAWNED, False)],
    ids=["forked", "forked-killed", "kept", "kept-killed", "spawned"],
)
def test_others_read_what_was_written(roots: Path, sandbox: Sandbox, kwargs: dict[str, Any], is_killed: bool) -> None:
    kwargs = {"batch_size": 1, "collate_fn": as_is, "num_workers": 2, "prefetch_factor": 1, **kwargs}
    ours, truth = (Sharing(roots / name, 16, writers=(0, 3)) for name in ("ours", "truth"))
    loader, torchs = (
        prefeed.DataLoader(ours, **kwargs),
        DataLoader(truth, **(kwargs | {"multiprocessing_context": None})),
    )
    for epoch in range(3):
        assert epoch_with_writes(loader, ours, epoch) == epoch_with_writes(torchs, truth, epoch)
        if is_killed and epoch == 0:
            end_all(servers_of(sandbox))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_file_that_stays_open_for_writing(roots: Path, num_workers: int) -> None:
    """It was opened before there was a loader, and is written in every epoch without being opened again."""
    seen: dict[str, list[Any]] = {}
    for name, cls in (("ours", prefeed.DataLoader), ("truth", DataLoader)):
        dataset = Sharing(roots / name, 16)
        mapped = np.lib.format.open_memmap(dataset.path(15), mode="r+")
        loader: Any = cls(
            dataset, batch_size=1, collate_fn=as_is, num_workers=num_workers, persistent_workers=num_workers > 0,
            **({"prefetch_factor": 1} if num_workers else {}),
        )  # fmt: skip
        for epoch in range(4):
            for number, batch in enumerate(loader):
                seen.setdefault(name, []).append(batch)
                if number == 1:
                    mapped[:] = 100 + epoch
        del mapped
    assert seen["ours"] == seen["truth"]


def test_what_was_written_is_cached_again(roots: Path, sandbox: Sandbox) -> None:
    """Once it is closed, from the next epoch on."""
    dataset = Sharing(roots / "data", 16)
    loader = prefeed.DataLoader(dataset, batch_size=4, collate_fn=as_is)
    list(loader)
    with open(dataset.path(3), "r+b") as held:
        put(dataset.path(5), 55)
        assert [sample[0] for batch in loader for sample in batch][5] == 55
        counts = prefeed.statistics()
        for _ in range(3):  # the file that is open stays with its writer
            list(loader)
        assert wait_until(lambda: prefeed.statistics().reads == counts.reads + 48, timeout_seconds=60)
        assert prefeed.statistics().direct_reads >= counts.direct_reads + 3
        held.seek(-8, os.SEEK_END)
        held.write(np.int64(33).tobytes())

    def epoch_is_cached() -> bool:
        before = prefeed.statistics().direct_reads
        assert [sample[0] for batch in loader for sample in batch][3:6] == [33, 4, 55]
        return prefeed.statistics().direct_reads == before

    assert wait_until(epoch_is_cached, timeout_seconds=60)


def test_declared_datasets_read_what_was_written(roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a listing, and of torchvision's list of a directory that is not below the roots."""
    seen: dict[str, Any] = {}
    (roots / "other").mkdir()
    for name, make, cls in (
        ("listed", prefeed.datasets.ImageFolder, prefeed.DataLoader),
        ("declared", datasets.ImageFolder, prefeed.DataLoader),
        ("truth", datasets.ImageFolder, DataLoader),
    ):
        root = roots / name / "images"
        for kind in "ab":
            (root / kind).mkdir(parents=True)
            for index in range(4):
                Image.new("RGB", (4, 4), (index, 0, 0)).save(root / kind / f"{index}.png")
        if name == "declared":
            monkeypatch.setenv("PREFEED_ROOTS", str(roots / "other"))
        loader: Any = cls(make(str(root), transform=first_pixel), batch_size=2)
        seen[name] = [batch[0].tolist() for batch in loader]
        for value in (77, 78):
            Image.new("RGB", (4, 4), (value, 0, 0)).save(root / "a" / "2.png")
            os.replace(root / "b" / "3.png", root / "b" / "1.png")
            shutil.copy(root / "b" / "0.png", root / "b" / "3.png")
            seen[name] += [batch[0].tolist() for batch in loader]
    assert seen["listed"] == seen["truth"]
    assert seen["declared"] == seen["truth"]


def first_pixel(image: Any) -> int:
    return int(image.getpixel((0, 0))[0])


def test_nothing_stays_in_place(roots: Path) -> None:
    """Functions that write are torch's and Python's own again when no loader is left."""
    before = [os.open, os.replace, io.FileIO, open]
    loader = prefeed.DataLoader(Sharing(roots / "data", 4), batch_size=4, collate_fn=as_is)
    list(loader)
    assert os.open is not before[0]
    assert os.open in os.supports_dir_fd
    with open(os.devnull, "rb", buffering=0) as file:
        assert isinstance(file, io.FileIO)  # and of the original class
    del loader
    assert [os.open, os.replace, io.FileIO, open] == before
    assert all(getattr(function, "__module__", "") != "prefeed" for function in os.supports_dir_fd)


def test_roots_that_hold_prefeeds_own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``PREFEED_ROOTS=/``: the record of what is written is itself written below the roots."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    path = str(tmp_path / "0.npy")
    put(path, 1)

    class Rewriting(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 2:
                put(path, 2)
            return value_of(path)

    assert [int(value) for value in prefeed.DataLoader(Rewriting(), batch_size=None)] == [1, 1, 2, 2]
