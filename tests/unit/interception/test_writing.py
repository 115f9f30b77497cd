# ruff: noqa: SIM115, PTH - calls of every kind are what is tested
"""Whoever observes is told of each file before it changes, and after, whichever function changes it."""

from __future__ import annotations

import builtins
import inspect
import io
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision.io
from PIL import Image

from prefeed.interception import end_observing, install, observe_writes, uninstall


class Observer:
    """Remembers what it is told, and what was in the file then."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool]] = []
        self.before: dict[str, bytes | None] = {}
        self.num_changed = 0

    def changing(self, path: str, *, below: bool) -> Any:
        self.told.append((path, below))
        with open(path, "rb") if os.path.isfile(path) else io.BytesIO() as file:
            self.before.setdefault(path, file.read())
        return path

    def changed(self, told: Any) -> None:
        assert told in self.before
        self.num_changed += 1

    def paths(self) -> set[str]:
        return {os.path.realpath(path) for path, _ in self.told}


@pytest.fixture
def observer() -> Iterator[Observer]:
    observer = Observer()
    assert observe_writes(observer)
    assert not observe_writes(observer)
    yield observer
    end_observing(observer)
    end_observing(observer)
    assert os.open is OS_OPEN
    assert builtins.open is OPEN


OS_OPEN, OPEN = os.open, builtins.open
ARRAY = np.zeros((4, 4, 3), np.uint8)


def _with_descriptor(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.truncate(descriptor, 0)
    os.close(descriptor)


def _in_directory(path: str) -> None:
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    os.unlink(os.path.basename(path), dir_fd=directory)
    os.close(directory)


WAYS: dict[str, Callable[[str], Any]] = {
    "open": lambda path: open(path, "w").close(),
    "open, appending": lambda path: open(path, mode="ab").close(),
    "open, in place": lambda path: open(os.fsencode(path), "r+b", buffering=0).close(),
    "io.FileIO": lambda path: io.FileIO(path, "w").close(),
    "pathlib": lambda path: Path(path).write_text("new"),
    "os.open": lambda path: os.close(os.open(path, os.O_WRONLY | os.O_TRUNC)),
    "os.truncate": lambda path: os.truncate(path, 0),
    "os.truncate of a descriptor": _with_descriptor,
    "os.remove": lambda path: os.remove(path),  # looked up when it is called
    "dir_fd": _in_directory,
    "shutil.copyfile": lambda path: shutil.copyfile(__file__, path),
    "numpy.save": lambda path: np.save(path, ARRAY) if path.endswith(".npy") else None,
    "tofile": lambda path: ARRAY.tofile(path),
    "memmap": lambda path: np.memmap(path, mode="w+", shape=(4,)).flush(),
    "torch.save": lambda path: torch.save(torch.zeros(2), path),
    "torch.save, as before 1.6": lambda path: torch.save(torch.zeros(2), path, _use_new_zipfile_serialization=False),
    "Pillow": lambda path: Image.fromarray(ARRAY).save(path, "PNG"),
    "cv2.imwrite": lambda path: cv2.imwrite(path, ARRAY),
    "torchvision": lambda path: torchvision.io.write_png(torch.zeros(3, 4, 4, dtype=torch.uint8), path),
    "torchvision, raw": lambda path: torchvision.io.write_file(path, torch.zeros(3, dtype=torch.uint8)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")
def test_the_file_is_told_before_it_changes(tmp_path: Path, observer: Observer, way: str) -> None:
    path = str(tmp_path / "x.npy") if way == "numpy.save" else str(tmp_path / "x.png")
    with OPEN(path, "wb") as file:
        file.write(b"old")
    WAYS[way](path)
    assert path in observer.paths()
    assert observer.before[next(name for name, _ in observer.told if os.path.realpath(name) == path)] == b"old"
    assert observer.num_changed == len(observer.told)
    if os.path.exists(path):
        with OPEN(path, "rb") as file:
            assert file.read() != b"old" or way in ("open, appending", "open, in place")


@pytest.mark.parametrize("name", ["rename", "replace"])
def test_both_names_of_a_move(tmp_path: Path, observer: Observer, name: str) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    OPEN(source, "w").close()
    getattr(os, name)(source, target)
    assert observer.told == [(str(source), False), (str(target), False)]


def test_a_directory_takes_what_is_below_with_it(observer: Observer, tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    OPEN(tmp_path / "a" / "b" / "x", "w").close()
    shutil.move(tmp_path / "a", tmp_path / "c")
    assert (str(tmp_path / "a"), True) in observer.told
    observer.told.clear()
    shutil.rmtree(tmp_path / "c")
    assert str(tmp_path / "c" / "b" / "x") in [path for path, _ in observer.told]


def test_what_only_reads_is_not_told(observer: Observer, tmp_path: Path) -> None:
    path = tmp_path / "x"
    OPEN(path, "w").close()
    for _ in (path.read_bytes(), path.read_text(), os.close(os.open(path, os.O_RDONLY)), io.FileIO(path).close()):
        pass
    with tempfile.TemporaryFile("w"):
        pass
    with pytest.raises(TypeError):
        os.rename(path)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        os.open(path, "r")  # type: ignore[arg-type]
    assert str(path) not in [name for name, _ in observer.told]


def test_a_failure_is_the_functions_own(observer: Observer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open(tmp_path / "no" / "x", "w")
    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "no")
    with pytest.raises(ValueError, match="null"):
        open("a\0b", "w")
    assert observer.num_changed == len(observer.told)


def test_they_look_like_what_they_replace(observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    derived = type(io.FileIO)("Derived", (io.FileIO,), {"__module__": __name__})
    monkeypatch.setattr(sys.modules[__name__], "Derived", derived, raising=False)
    assert os.unlink in os.supports_dir_fd
    assert os.truncate in os.supports_fd
    assert os.remove.__name__ == "remove"
    assert inspect.getdoc(os.rename)
    for name in (os.rename, io.FileIO, derived):
        assert pickle.loads(pickle.dumps(name)) == name
    with OPEN(os.devnull, "rb", buffering=0) as raw:
        assert isinstance(raw, io.FileIO)
        assert issubclass(type(raw), io.FileIO)
    assert not isinstance(3, io.FileIO)

    class Own(io.FileIO):
        pass

    with Own(os.devnull) as own:
        assert isinstance(own, Own)
    with OPEN(os.devnull, "rb", buffering=0) as raw:
        assert not isinstance(raw, Own)


def test_nothing_is_reported_without_an_observer(tmp_path: Path) -> None:
    install()
    try:
        assert os.open is OS_OPEN
        with open(tmp_path / "x", "w") as file:
            file.write("a")
    finally:
        uninstall()
