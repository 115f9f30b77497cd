# ruff: noqa: SIM115 - an open call is what is tested
"""The same operations on a really opened file and on a served one."""

from __future__ import annotations

import copy
import io
import json
import mmap
import os
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefeed.interception import reads_from

from .conftest import KeptFiles, LendingFiles

CONTENT = b"first line\nsecond\r\nthird \xc3\xa4\n\nlast without end"


@pytest.fixture(params=[KeptFiles, LendingFiles], ids=["given", "lent"])
def reader(request: pytest.FixtureRequest) -> KeptFiles:
    """One that gives all bytes, and one that lends them."""
    made: KeptFiles = request.param()
    return made


@pytest.fixture
def path(tmp_path: Path, reader: KeptFiles) -> Path:
    path = tmp_path / "data.txt"
    path.write_bytes(CONTENT)
    reader.keep(path)
    return path


def outcome(operation: Callable[[Any], Any], file: Any) -> Any:
    """Result, or kind of error with its words where Python's own are the same for all kinds of file."""
    try:
        return operation(file)
    except (OSError, ValueError, TypeError, AttributeError, StopIteration) as error:
        return type(error), getattr(error, "errno", None)


def both(path: Path, reader: KeptFiles, operation: Callable[[Any], Any], *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    expected = finished(operation, open(path, *args, **kwargs))
    assert not reader.asked
    with reads_from(reader):
        served = finished(operation, open(path, *args, **kwargs))
    assert reader.asked == [str(path)]
    return served, expected


def finished(operation: Callable[[Any], Any], file: Any) -> Any:
    result = outcome(operation, file)
    with suppress(ValueError):  # detached
        file.close()
    return result


def closed(file: Any) -> Any:
    file.close()
    return file


def closed_after(file: Any, operation: Callable[[Any], Any]) -> Any:
    with file:
        return operation(file)


def then(*steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda file: [outcome(step, file) for step in steps]


BINARY: dict[str, Callable[[Any], Any]] = {
    "read": lambda f: (f.read(), f.read(), f.tell()),
    "read some": lambda f: (f.read(3), f.read(0), f.read(-1), f.read(None)),
    "read1": lambda f: (f.read1(4), f.read1(0)),
    "readinto": lambda f: (f.readinto(b := bytearray(7)), b, f.tell()),
    "readinto1": lambda f: (f.readinto1(b := bytearray(7)), b),
    "readinto past the end": lambda f: (f.readinto(b := bytearray(100)), b),
    "readline": lambda f: (f.readline(), f.readline(3), f.readlines()),
    "iterate": lambda f: (list(f), f.tell()),
    "next": lambda f: (next(f), f.tell()),
    "next at the end": lambda f: (f.read(), next(f)),
    "peek": lambda f: (f.peek(1)[:4], f.tell(), f.peek()[:4], f.read(2), f.peek(1)[:1]),
    "peek at the end": lambda f: (f.read(), f.peek(5)),
    "seek": lambda f: (f.seek(4), f.read(2), f.seek(-3, 1), f.tell(), f.seek(-2, 2), f.read()),
    "seek past the end": lambda f: (f.seek(1000), f.read(), f.read(3), f.readline(), f.seek(5, 2), f.tell()),
    "seek before the start": then(lambda f: f.seek(-1), lambda f: f.seek(-1, 1), lambda f: f.seek(-1000, 2)),
    "stays after a bad seek": then(lambda f: f.read(3), lambda f: f.seek(-1000, 2), lambda f: f.tell()),
    "seek by nonsense": then(lambda f: f.seek(0, 9), lambda f: f.seek(1.5), lambda f: f.seek("1"), lambda f: f.tell()),
    "seek to data": then(lambda f: f.seek(3, os.SEEK_DATA), lambda f: f.seek(0, os.SEEK_HOLE), lambda f: f.tell()),
    "attributes": lambda f: (f.name, f.mode, f.closed, f.isatty(), f.seekable(), f.readable(), f.writable()),
    "raw": lambda f: (f.raw.name == os.fspath(f.name), f.raw.mode, f.raw.tell() == f.tell()),
    "write": then(
        lambda f: f.write(b"x"), lambda f: f.writelines([b"x"]), lambda f: f.writelines([]), lambda f: f.flush()
    ),
    "truncate": then(lambda f: f.truncate(), lambda f: f.truncate(0), lambda f: f.read()),
    "close": lambda f: (f.close(), f.close(), f.closed),
    "read closed": lambda f: closed(f).read(),
    "seek closed": lambda f: closed(f).seek(0),
    "tell closed": lambda f: closed(f).tell(),
    "peek closed": lambda f: closed(f).peek(),
    "fileno closed": lambda f: closed(f).fileno(),
    "write closed": then(lambda f: closed(f).write(b"x")),
    "writelines closed": then(lambda f: closed(f).writelines([b"x"])),
    "writable closed": then(lambda f: closed(f).writable()),
    "enter closed": then(lambda f: closed(f).__enter__()),
    "iterate closed": then(lambda f: list(closed(f))),
    "detach": lambda f: (lambda raw: (raw.read(), raw.mode, raw.close()))(f.detach()),
    "detached": then(lambda f: f.detach().close(), lambda f: f.read()),
    "pickle": lambda f: pickle.dumps(f),
    "pickle, first protocol": lambda f: pickle.dumps(f, 0),
    "copy": lambda f: copy.copy(f),
    "deepcopy": lambda f: copy.deepcopy(f),
    "repr": lambda f: repr(f),
    "own attributes": lambda f: (setattr(f, "mine", 1), f.mine),
    "wrap in text": lambda f: closed_after(io.TextIOWrapper(f, "utf-8"), lambda w: w.readlines()),
    "buffer once more": lambda f: closed_after(io.BufferedReader(f), lambda w: w.read()),
    "fstat": lambda f: (os.fstat(f.fileno()).st_size, os.fstat(f.fileno()).st_ino),
    "mmap": lambda f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ).read(),
    "read the descriptor": lambda f: (f.seek(3), os.read(f.fileno(), 4), os.read(f.fileno(), 4)),
    "read the descriptor again": lambda f: (os.read(f.fileno(), 4), f.seek(1), os.read(f.fileno(), 4)),
    "memmap": lambda f: np.memmap(f, np.uint8, "r", offset=3).tobytes(),
    "is a buffered reader": lambda f: (isinstance(f, io.BufferedIOBase), isinstance(f, io.IOBase)),
    "hash": lambda f: (hash(f) is not None, f == f, bool(f)),
}


@pytest.mark.parametrize("operation", BINARY.values(), ids=BINARY.keys())
def test_a_binary_file_behaves_as_a_real_one(operation: Callable[[Any], Any], path: Path, reader: KeptFiles) -> None:
    served, expected = both(path, reader, operation, "rb")
    assert served == expected


TEXT: dict[str, Callable[[Any], Any]] = {
    "read": lambda f: (f.read(), f.tell()),
    "read some": lambda f: (f.read(3), f.tell(), f.readline(), f.readlines()),
    "iterate": list,
    "tell while iterating": lambda f: (next(f), f.tell()),
    "seek": lambda f: (f.readline(), f.seek(0), f.readline(), f.seek(0, 2), f.read()),
    "attributes": lambda f: (f.name, f.mode, f.encoding, f.errors, f.newlines, f.line_buffering, f.write_through),
    "abilities": lambda f: (f.isatty(), f.seekable(), f.readable(), f.writable()),
    "newlines": lambda f: (f.read(), f.newlines),
    "write": lambda f: f.write("x"),
    "truncate": lambda f: f.truncate(),
    "reconfigure": lambda f: (f.reconfigure(encoding="latin-1"), f.read()),
    "buffer": lambda f: (f.buffer.read(), f.buffer.mode, f.buffer.name),
    "detach": lambda f: closed_after(f.detach(), lambda b: b.read()),
    "repr": repr,
    "pickle": pickle.dumps,
    "close": lambda f: (f.close(), f.closed, f.buffer.closed),
    "read closed": lambda f: closed(f).read(),
    "mmap": lambda f: mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ).read(),
}


@pytest.mark.parametrize("mode", ["r", "rt", "tr"])
@pytest.mark.parametrize("operation", TEXT.values(), ids=TEXT.keys())
def test_a_text_file_behaves_as_a_real_one(
    operation: Callable[[Any], Any], mode: str, path: Path, reader: KeptFiles
) -> None:
    served, expected = both(path, reader, operation, mode, encoding="utf-8")
    assert served == expected


@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
@pytest.mark.parametrize(("encoding", "errors"), [("utf-8", None), ("ascii", "replace"), ("ascii", None), (None, None)])
def test_text_is_decoded_alike(
    newline: str | None, encoding: str | None, errors: str | None, path: Path, reader: KeptFiles
) -> None:
    served, expected = both(path, reader, lambda f: f.readlines(), encoding=encoding, errors=errors, newline=newline)
    assert served == expected


def test_the_descriptor_is_opened_when_asked_for_and_closed_with_the_file(path: Path, reader: KeptFiles) -> None:
    with reads_from(reader):
        file = open(path, "rb")
        descriptor = file.fileno()
    assert os.readlink(f"/proc/self/fd/{descriptor}") == str(path)
    file.close()
    assert not Path(f"/proc/self/fd/{descriptor}").exists()


def test_a_forgotten_file_warns_of_nothing(path: Path, reader: KeptFiles) -> None:
    with warnings.catch_warnings(), reads_from(reader):
        warnings.simplefilter("error")
        open(path, "rb").fileno()
        json.dumps(open(path, encoding="utf-8").read())


def test_the_reader_may_keep_its_buffer(tmp_path: Path) -> None:
    class Lending(KeptFiles):
        def may_have(self, path: str) -> bool:
            return True

        def read_file(self, path: str) -> Any:
            return memoryview(memory)

    memory = bytearray(b"lent")
    with reads_from(Lending()), open(tmp_path / "x", "rb") as file:
        memory[:] = b"gone"
        assert file.read() == b"lent"
    memory.extend(b"nobody holds an export")
