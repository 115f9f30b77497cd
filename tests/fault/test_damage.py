"""Files of a home and of stage caches in memory are damaged between two runs: the next server comes up, and every byte is right."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
from e2e.parity import make_session
from limits import set_limits
from process.children import child_running
from process.conditions import kill, server_pid, wait_for
from sandbox import Sandbox

pytestmark = pytest.mark.timeout(600 if "DAMAGE_TRIALS" not in os.environ else 3000)

NUM_FILES = 24
DATA_BYTES = 550_000
"""Where the data of stores end: what comes after in their files is empty, and damage there is none."""


class Files:
    """Opens its files by path."""

    def __init__(self, root: Path) -> None:
        self.paths = [str(path) for path in sorted(root.iterdir())]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self.paths[index], "rb") as file:
            return file.read()


class Arrays(Files):
    """The same as arrays, which a cache can hold."""

    def __getitem__(self, index: int) -> Any:
        return np.frombuffer(super().__getitem__(index), np.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> Iterator[Path]:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(NUM_FILES):
        (root / f"{number:03}.bin").write_bytes(random.Random(number).randbytes((300, 9_000, 60_000)[number % 3]))
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    monkeypatch.setenv("PREFEED_MEMORY", "64MiB")
    monkeypatch.setenv("PREFEED_DISK", "64MiB")
    set_limits(monkeypatch, disk_free_bytes=0)
    yield root
    prefeed.datasets._readers.close()


def _train(root: Path, session: int, pipe: Connection) -> None:
    """Read everything in each way, twice; a wrong byte ends it."""
    expected = [path.read_bytes() for path in sorted(root.iterdir())]
    for dataset in (prefeed.datasets.Objects(root), Files(root)):
        loader = prefeed.DataLoader(dataset, batch_size=4, collate_fn=list)
        for _ in range(2):
            assert [bytes(data) for batch in loader for data in batch] == expected
    with contextlib.suppress(prefeed.errors.SessionNotFoundError, prefeed.errors.SpillingDisabledError):
        cached = prefeed.CachedDataset(Arrays(root), prefeed.DatasetCache(session, size=1, spilling=True), version="1")
        for _ in range(2):
            assert [cached[index].tobytes() for index in range(len(cached))] == expected
    pipe.send("right")


def train(root: Path, session: int) -> None:
    """In a process of its own: a signal would be its end."""
    with child_running(_train, root, session) as (process, pipe):
        assert pipe.poll(90), f"the trainer ended with {process.exitcode}"
        assert pipe.recv() == "right"
        process.join()
        assert process.exitcode == 0


def files_below(*directories: Path) -> list[Path]:
    return [
        Path(parent, name) for top in directories for parent, _, names in os.walk(top) for name in names
        if not name.endswith(".sock")
    ]  # fmt: skip


def _flipped(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(20 if content else 0):
        content[rng.randrange(min(len(content), DATA_BYTES))] ^= 1 << rng.randrange(8)
    with path.open("r+b") as file:
        file.write(content)


def _cut(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(min(path.stat().st_size, 400_000) + 1))


def _zeroed(path: Path, _: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _emptied(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _directory(path: Path, _: random.Random) -> None:
    path.unlink()
    (path / "x").mkdir(parents=True)


def _gone(path: Path, _: random.Random) -> None:
    path.unlink()


WAYS = [_flipped, _cut, _zeroed, _directory, _emptied, _gone]
Way = Callable[[Path, random.Random], None]


def start(root: Path) -> int:
    """Fill all there is, kill the server, and return the session of the cache."""
    session = make_session()
    train(root, session)
    wait_for(lambda: prefeed.statistics().disk.objects >= 1, "objects on disk")
    return session


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__[1:])
def test_every_file(root: Path, sandbox: Sandbox, way: Way) -> None:
    session = start(root)
    pid = server_pid()
    kill(pid)
    for path in files_below(sandbox.home, sandbox.memory_dir):
        way(path, random.Random(path.name))  # the same damage to a file, whatever other files there are
    train(root, session)
    assert server_pid() != pid
    found = prefeed.statistics()
    is_noticed = found.errors.get("store-damaged", 0) + found.disk.corrupt > 0
    assert is_noticed == (way is not _directory)  # a directory in the place of a file is a file that is not there


def _read_both(root: Path, pipe: Connection) -> None:
    loader = prefeed.DataLoader(prefeed.datasets.Objects(root), batch_size=4, collate_fn=list)
    objects = [bytes(data) for batch in loader for data in batch]
    cached = prefeed.CachedDataset(Arrays(root), version="1")
    pipe.send((objects, [cached[index].tobytes() for index in range(len(cached))]))


def read_both(root: Path) -> int:
    """Read objects, and samples of a stage, in a process of its own; return the hits."""
    hits = prefeed.statistics().hits
    with child_running(_read_both, root) as (process, pipe):
        objects, samples = pipe.recv()
        process.join()
    assert objects == samples == [path.read_bytes() for path in sorted(root.iterdir())]
    return prefeed.statistics().hits - hits


@pytest.mark.parametrize("removed", ["index", "segment", "store", "."])
def test_files_in_memory_that_are_removed(root: Path, sandbox: Sandbox, removed: str) -> None:
    """Under a server that runs: the objects are still there, for they are in no file; the stage cache is made again."""
    read_both(root)
    assert read_both(root) == NUM_FILES
    pid = server_pid()
    for path in list(sandbox.memory_dir.glob("prefeed-*" if removed == "." else f"prefeed-*/**/{removed}")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert read_both(root) == NUM_FILES
    assert read_both(root) == NUM_FILES
    assert server_pid() == pid


@pytest.mark.skipif("DAMAGE_TRIALS" not in os.environ, reason="for whoever looks for more")
def test_file_by_file(root: Path, sandbox: Sandbox) -> None:
    session = start(root)
    names = sorted(path.relative_to(top) for top in (sandbox.home, sandbox.memory_dir) for path in files_below(top))
    names = [name for name in names if name.parts[0] != "manifests"]
    for way in WAYS[int(os.environ.get("DAMAGE_FROM", 0)) :]:
        for name in names:
            kill(server_pid())
            prefeed.datasets._readers.close()
            for top in (sandbox.home, sandbox.memory_dir):
                if (top / name).is_file():
                    print(way.__name__, name, flush=True)
                    way(top / name, random.Random(str(name)))
            train(root, session)
            server_pid()
    shutil.rmtree(root)
