"""``open`` inside a sample: the sample's own file comes from the cache, everything else is as ever."""

from __future__ import annotations

import builtins
import io
import mmap
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefeed.client.access import AccessMap
from prefeed.client.active import active_reader
from prefeed.errors import ObjectNotFoundError
from prefeed.torch.serving import Served

CACHED = b"from the cache"


class Cache:
    """Stands in for the reader: holds every object, or none."""

    def __init__(self, answer: bytes | Exception | None = CACHED) -> None:
        self.answer = answer
        self.asked: list[int] = []
        self.dataset: Any = None

    def try_read(self, object_id: int) -> bytes | None:
        self.asked.append(object_id)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Files:
    """A dataset that does with the file of each sample what it is told."""

    def __init__(self, paths: list[Path], act: Any) -> None:
        self.paths = paths
        self.act = act

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.act(self.paths[index])


def served(paths: list[Path], act: Any, cache: Any, *, ids: list[int] | None = None) -> Served:
    manifest = SimpleNamespace(path=lambda i: str(paths[i]), num_objects=len(paths), directory=Path("/m"))
    dataset: Any = SimpleNamespace(manifest=manifest)
    access = AccessMap(dataset=dataset, ids=None if ids is None else np.array(ids))
    made = Served.__new__(Served)
    cache.dataset = dataset
    made.__dict__.update(inner=Files(paths, act), reader=cache, _access=access, _opens_files=True)
    return made


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for index, path in enumerate(paths):
        path.write_bytes(b"on disk %d" % index)
    return paths


def read(path: Any) -> bytes:
    with open(path, "rb") as file:
        return bytes(file.read())


def test_own_file_is_served(paths: list[Path]) -> None:
    cache = Cache()
    assert [served(paths, read, cache)[i] for i in (2, 0)] == [CACHED, CACHED]
    assert cache.asked == [2, 0]
    assert served(paths, lambda path: read(str(path)), cache)[1] == CACHED
    assert builtins.open is io.open


def test_served_file_is_like_a_file(paths: list[Path]) -> None:
    def look(path: Path) -> Any:
        with open(path, "rb") as file:
            return file.name, file.mode, file.readable(), file.seek(5), file.read(3)

    assert served(paths, look, Cache())[0] == (str(paths[0]), "rb", True, 5, CACHED[5:8])


@pytest.mark.parametrize(
    ("mode", "kwargs"),
    [("rb", {"buffering": 0}), ("r+b", {}), ("r", {"encoding": "ascii"}), ("br", {"buffering": -1})],
    ids=["unbuffered", "update", "text", "other words"],
)
def test_other_ways_are_the_real_ones(paths: list[Path], mode: str, kwargs: Any) -> None:
    def other(path: Path) -> Any:
        with open(path, mode, **kwargs) as file:
            return file.read()

    assert served(paths, other, Cache())[0] in (b"on disk 0", "on disk 0")


@pytest.mark.parametrize(
    "other",
    [lambda path: read(bytes(path)), lambda path: path.read_bytes(), lambda path: read(path.with_name("1.bin"))],
    ids=["bytes path", "Path", "another file"],
)
def test_other_files_are_the_real_ones(paths: list[Path], other: Any) -> None:
    assert served(paths, other, Cache())[0].startswith(b"on disk")


def test_descriptor_is_the_real_files(paths: list[Path]) -> None:
    """What reads past Python, as ``numpy.fromfile`` and ``mmap`` do, reads the file; it is closed with the rest."""

    def act(path: Path) -> Any:
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            descriptor = file.fileno()
            text = mapped[:]
            mapped.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
        return text, np.fromfile(path, dtype=np.uint8).tobytes()

    assert served(paths, act, Cache())[1] == (b"on disk 1", b"on disk 1")


def test_peek(paths: list[Path]) -> None:
    def act(path: Path) -> Any:
        with open(path, "rb") as file:
            file.seek(2)
            return file.peek(3), file.peek(), file.read()

    assert served(paths, act, Cache())[1] == (CACHED[2:], CACHED[2:], CACHED[2:])


def test_cache_without_the_object(paths: list[Path]) -> None:
    assert served(paths, read, Cache(None))[1] == b"on disk 1"


def test_error_of_the_cache_is_not_the_users(paths: list[Path]) -> None:
    """The real ``open`` says it in the words that the user knows, or succeeds."""
    error = ObjectNotFoundError("gone")
    assert served(paths, read, Cache(error))[1] == b"on disk 1"
    paths[1].unlink()
    with pytest.raises(FileNotFoundError) as caught:
        served(paths, read, Cache(error))[1]
    assert type(caught.value) is FileNotFoundError
    assert builtins.open is io.open


def test_index_without_an_object(paths: list[Path]) -> None:
    """A sample that the map does not have is the dataset's own affair."""
    cache = Cache()
    made = served(paths, read, cache, ids=[0, 1])
    assert made[2] == b"on disk 2"
    assert cache.asked == []
    with pytest.raises(IndexError, match="list index"):
        made[7]


def test_other_threads_are_left_alone(paths: list[Path]) -> None:
    """While one thread makes a sample, another opens the same file as it is."""
    seen: list[bytes] = []

    def act(path: Path) -> bytes:
        other = threading.Thread(target=lambda: seen.append(read(path)))
        other.start()
        other.join()
        return read(path)

    assert served(paths, act, Cache())[0] == CACHED
    assert seen == [b"on disk 0"]


def test_reader_is_in_charge_only_inside(paths: list[Path]) -> None:
    cache = Cache()
    made = served(paths, lambda path: active_reader(Path("/m")), cache)
    assert made[0] is cache
    assert active_reader(Path("/m")) is None
    assert served(paths, lambda path: active_reader(Path("/another")), cache)[0] is None


def test_batch_method_of_the_dataset(paths: list[Path]) -> None:
    """``__getitems__`` is passed on where nothing depends on one file at a time."""
    made = served(paths, read, Cache())
    made.inner.__getitems__ = lambda indices: [made.inner[i] for i in indices]
    assert made.__getitems__ is None  # a file opened in a batch belongs to an unknown sample
    made._opens_files = False
    assert made.__getitems__ is not None
    assert made.__getitems__([0, 2]) == [b"on disk 0", b"on disk 2"]
    del made.inner.__getitems__
    assert made.__getitems__ is None
