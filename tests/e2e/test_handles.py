"""Datasets that open a file once, in ``__init__``, and read it in every worker: archives, HDF5, databases."""

from __future__ import annotations

import gc
import io
import sqlite3
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import h5py
import lmdb
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import prefeed
import prefeed.files
from limits import set_limits
from prefeed.client.node import NodeClient
from prefeed.errors import ServerUnavailableError

NUM_SAMPLES = 12
SIZE = 9_000


def data_of(index: int) -> bytes:
    return np.random.default_rng(index).integers(0, 256, SIZE, dtype=np.uint8).tobytes()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    set_limits(monkeypatch, block_bytes=64 * 1024)
    with (
        zipfile.ZipFile(tmp_path / "x.zip", "w") as archive,
        tarfile.open(tmp_path / "x.tar", "w") as tar,
        h5py.File(tmp_path / "x.h5", "w") as hdf5,
        lmdb.open(str(tmp_path / "x.lmdb"), map_size=1 << 24) as environment,
        environment.begin(write=True) as transaction,
        sqlite3.connect(tmp_path / "x.db") as database,
    ):
        database.execute("create table samples (number integer primary key, data blob)")
        for index in range(NUM_SAMPLES):
            name, data = str(index), data_of(index)
            archive.writestr(name, data)
            member = tarfile.TarInfo(name)
            member.size = SIZE
            tar.addfile(member, io.BytesIO(data))
            hdf5[name] = np.frombuffer(data, np.uint8)
            transaction.put(name.encode(), data)
            database.execute("insert into samples values (?, ?)", (index, data))
    database.close()
    (tmp_path / "x.bin").write_bytes(b"".join(map(data_of, range(NUM_SAMPLES))))
    yield tmp_path
    prefeed.files.close()


class Handle:
    """Samples that are read from what ``opened`` has opened once."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> bytes:
        name = str(index)
        match self.opened:
            case zipfile.ZipFile():
                return self.opened.read(name)
            case tarfile.TarFile():
                return self.opened.extractfile(name).read()  # type: ignore[union-attr]
            case h5py.File():
                return self.opened[name][:].tobytes()
            case sqlite3.Connection():
                return self.opened.execute("select data from samples where number = ?", (index,)).fetchone()[0]
            case lmdb.Environment():
                with self.opened.begin() as transaction:
                    return bytes(transaction.get(name.encode()))
            case np.ndarray():
                return self.opened[index * SIZE : (index + 1) * SIZE].tobytes()
        self.opened.seek(index * SIZE)
        return self.opened.read(SIZE)


BY_PATH: dict[str, Callable[[Path], Any]] = {
    "zip": lambda root: zipfile.ZipFile(root / "x.zip"),
    "tar": lambda root: tarfile.open(root / "x.tar"),  # noqa: SIM115
    "file": lambda root: open(root / "x.bin", "rb"),  # noqa: SIM115
    "h5": lambda root: h5py.File(root / "x.h5"),
    "sqlite": lambda root: sqlite3.connect(root / "x.db"),
    "lmdb": lambda root: lmdb.open(str(root / "x.lmdb"), readonly=True, lock=False),
    "memmap": lambda root: np.memmap(root / "x.bin", np.uint8, "r"),
}
SHARE_A_POSITION = ("zip", "tar", "file")
"""Forked workers share the position of these, with which two of them get each other's bytes, in torch as well."""

THROUGH_PREFEED: dict[str, Callable[[Path], Any]] = {
    "zip": lambda root: zipfile.ZipFile(prefeed.open(root / "x.zip")),
    "tar": lambda root: tarfile.open(fileobj=prefeed.open(root / "x.tar")),  # noqa: SIM115
    "file": lambda root: prefeed.open(root / "x.bin"),
    "h5": lambda root: h5py.File(prefeed.open(root / "x.h5")),
}


def outcome(loader_class: Any, opened: Any, **kwargs: Any) -> list[Any]:
    """Return the batches of two epochs, and the exception that ended them."""
    seen: list[Any] = []
    generator = torch.Generator().manual_seed(3)
    loader = loader_class(
        Handle(opened), batch_size=5, shuffle=True, generator=generator, collate_fn=list, **kwargs
    )  # fmt: skip
    try:
        for _ in range(2):
            seen.extend(loader)
    except Exception as err:  # noqa: BLE001 - compared with torch's
        seen.append((type(err), str(err)))
    if hasattr(opened, "close"):
        opened.close()
    return seen


@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start a worker:UserWarning")
@pytest.mark.parametrize("kind", BY_PATH)
def test_a_handle_that_was_opened_once_gives_the_batches_and_errors_of_torch(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    open_it = BY_PATH[kind]
    cases: list[dict[str, Any]] = [{"num_workers": 0}, {"num_workers": 1 if kind in SHARE_A_POSITION else 2}]
    if kind != "memmap":  # which is pickled whole, and nothing shared
        cases.append({"num_workers": 1, "multiprocessing_context": "spawn"})
    for kwargs in cases:
        expected = outcome(DataLoader, open_it(root), **kwargs)
        assert len(expected) == (1 if "multiprocessing_context" in kwargs else 6)
        for in_place in (False, True):
            set_limits(monkeypatch, read_in_place=in_place)
            assert outcome(prefeed.DataLoader, open_it(root), **kwargs) == expected


@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start a worker:UserWarning")
@pytest.mark.parametrize("kind", THROUGH_PREFEED)
def test_a_handle_over_an_open_file_of_prefeed_is_read_by_forked_workers(root: Path, kind: str) -> None:
    """Each has a position of its own."""
    open_it = THROUGH_PREFEED[kind]
    expected = outcome(DataLoader, BY_PATH[kind](root), num_workers=0)
    for loader_class in (DataLoader, prefeed.DataLoader):
        for num_workers in (0, 2):
            assert outcome(loader_class, open_it(root), num_workers=num_workers) == expected
        ((error, message),) = outcome(loader_class, open_it(root), num_workers=1, multiprocessing_context="spawn")
        assert error is TypeError
        assert kind == "h5" or f"{root}/x." in message


@pytest.mark.parametrize("starts", [False, True], ids=["waits", "starts"])
def test_a_dataset_that_was_let_go_is_gone_while_a_server_may_be_joined(
    root: Path, monkeypatch: pytest.MonkeyPatch, starts: bool
) -> None:
    """LMDB opens an environment once per process: the next dataset of a program opens it again."""
    released, began = threading.Event(), threading.Event()

    def wait(*_: Any, **__: Any) -> NodeClient:
        began.set()
        released.wait(60)
        raise ServerUnavailableError("it does not start")

    monkeypatch.setattr(NodeClient, "connect", wait)
    set_limits(monkeypatch, read_in_place=not starts, start_ahead=True)
    for _ in range(3):
        dataset = Handle(BY_PATH["lmdb"](root))
        loader = prefeed.DataLoader(dataset, batch_size=5, collate_fn=list)
        assert sum(map(len, loader)) == NUM_SAMPLES
        assert not starts or began.wait(60)
        gone = ref(dataset)
        del dataset, loader
        gc.collect()
        assert gone() is None
    released.set()
    for thread in threading.enumerate():
        if thread.name == "prefeed-join":
            thread.join(60)
