# ruff: noqa: SIM115 - an open call is what is tested
from __future__ import annotations

import builtins
import bz2
import codecs
import csv
import gzip
import inspect
import io
import json
import lzma
import os
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefeed.interception import install, reads_from

from .conftest import KeptFiles


@pytest.fixture
def path(tmp_path: Path, reader: KeptFiles) -> Path:
    """A file that the reader alone has."""
    path = tmp_path / "data.json"
    path.write_text('{"a": [1, 2]}\n')
    reader.keep_and_remove(path)
    return path


@pytest.mark.parametrize(
    "args",
    [
        {"mode": "rb"},
        {"mode": "br"},
        {"mode": "r"},
        {"mode": "rt", "encoding": "utf-8"},
        {"mode": "tr", "newline": ""},
        {"mode": "rb", "buffering": 65536},
        {"mode": "r", "buffering": 2, "closefd": True, "opener": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", [str, Path, os.fsencode], ids=["str", "Path", "bytes"])
def test_reading_is_answered(kind: Callable[[Any], Any], args: dict[str, Any], path: Path, reader: KeptFiles) -> None:
    with reads_from(reader), open(kind(path), **args) as file:
        assert json.load(file) == {"a": [1, 2]}
        assert file.name == os.fspath(kind(path))
    assert reader.asked == [str(path)]


@pytest.mark.parametrize(
    "read",
    [
        lambda p: p.read_bytes(),
        lambda p: p.read_text(),
        lambda p: p.open("rb").read(),
        lambda p: io.open(p).read(),  # noqa: UP020
        lambda p: codecs.open(str(p), encoding="utf-8").read(),
        lambda p: list(csv.reader(p.open())),
        lambda p: open(os.path.relpath(p)).read(),
        lambda p: open(f"{p.parent}//./{p.name}").read(),
    ],
    ids=["read_bytes", "read_text", "Path.open", "io.open", "codecs", "csv", "relative", "not normal"],
)
def test_what_builds_on_open_is_answered(
    read: Callable[[Path], Any], path: Path, reader: KeptFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    with reads_from(reader):
        read(path)
    assert reader.asked == [str(path)]


def _compressed(path: Path, open_it: Callable[..., Any]) -> Any:
    with open_it(path, "wb") as file:
        file.write(b"inside")
    return lambda: open_it(path, "rb").read()


def _tar(path: Path) -> Any:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("nothing"))

    def names() -> list[str]:
        with tarfile.open(path) as archive:
            return archive.getnames()

    return names


def _zip(path: Path) -> Any:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("name", b"inside")

    def inside() -> bytes:
        with zipfile.ZipFile(path) as archive:
            return archive.read("name")

    return inside


@pytest.mark.parametrize(
    "prepare",
    [
        lambda p: _compressed(p, gzip.open),
        lambda p: _compressed(p, bz2.open),
        lambda p: _compressed(p, lzma.open),
        _tar,
        _zip,
    ],
    ids=["gzip", "bz2", "lzma", "tar", "zip"],
)
def test_archives_are_answered(prepare: Callable[[Path], Any], tmp_path: Path, reader: KeptFiles) -> None:
    path = tmp_path / "archive"
    read = prepare(path)
    expected = read()
    reader.keep_and_remove(path)
    with reads_from(reader):
        assert read() == expected


BAD_OR_OTHER: list[dict[str, Any]] = [
    {"mode": "w"},
    {"mode": "x"},
    {"mode": "a"},
    {"mode": "r+"},
    {"mode": "rb+"},
    {"mode": "w+b"},
    {"mode": "rr"},
    {"mode": "rbt"},
    {"mode": "U"},
    {"mode": ""},
    {"mode": None},
    {"mode": 3},
    {"mode": ["rb"]},
    {"mode": "rb", "encoding": "utf-8"},
    {"mode": "rb", "errors": "strict"},
    {"mode": "rb", "newline": ""},
    {"mode": "rb", "buffering": 0},
    {"mode": "r", "buffering": 0},
    {"mode": "r", "buffering": 1},
    {"mode": "rb", "buffering": -2},
    {"mode": "rb", "buffering": "large"},
    {"mode": "rb", "buffering": None},
    {"encoding": "no such"},
    {"encoding": 5},
    {"newline": "x"},
    {"newline": 5},
    {"errors": 5},
    {"mode": "rb", "closefd": False},
    {"mode": "rb", "closefd": 0},
    {"mode": "rb", "opener": lambda path, flags: os.open(path, flags)},
]


def _opened(path: Any, args: dict[str, Any]) -> Any:
    try:
        with open(path, **args) as file:
            return type(file), file.mode, file.name
    except (OSError, ValueError, TypeError, LookupError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("args", BAD_OR_OTHER, ids=lambda args: " ".join(args) if "opener" in args else str(args))
def test_everything_else_is_pythons_own(args: dict[str, Any], tmp_path: Path, reader: KeptFiles) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"content")
    reader.keep(path)
    wants_new = args.get("mode") == "x"
    if wants_new:
        path.unlink()
    expected = _opened(path, args)
    path.write_bytes(b"content")
    if wants_new:
        path.unlink()
    with reads_from(reader):
        got = _opened(path, args)
    assert got == expected


@pytest.mark.parametrize(
    "file",
    ["", "a\0b", "/no/such/file", "/", "/etc", "/etc/passwd/x", None, 1.5, -1, 10**6, ["x"], b"", b"/no\0"],
    ids=repr,
)
def test_what_cannot_be_opened_is_refused_in_pythons_words(file: Any, reader: KeptFiles) -> None:
    expected = _opened(file, {"mode": "rb"})
    with reads_from(reader):
        assert _opened(file, {"mode": "rb"}) == expected


def test_a_descriptor_is_opened_as_it_is(tmp_path: Path, reader: KeptFiles) -> None:
    (tmp_path / "data").write_bytes(b"content")
    with reads_from(reader), open(os.open(tmp_path / "data", os.O_RDONLY), "rb") as file:
        assert file.read() == b"content"
    assert reader.asked == []


def test_what_the_reader_has_not_is_opened(tmp_path: Path, reader: KeptFiles) -> None:
    (tmp_path / "data").write_bytes(b"content")
    with reads_from(reader), open(tmp_path / "data", "rb") as file:
        assert type(file) is io.BufferedReader
    assert reader.asked == [str(tmp_path / "data")]


def test_a_path_that_goes_up_is_left_to_the_kernel(tmp_path: Path, reader: KeptFiles) -> None:
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "elsewhere" / "data").write_bytes(b"meant")
    (tmp_path / "data").write_bytes(b"not meant")
    reader.keep(tmp_path / "data")
    with reads_from(reader), open(f"{tmp_path}/link/../data", "rb") as file:
        assert file.read() == b"meant"


def test_an_empty_file_is_answered(tmp_path: Path, reader: KeptFiles) -> None:
    (tmp_path / "empty").touch()
    reader.keep_and_remove(tmp_path / "empty")
    with reads_from(reader):
        assert open(tmp_path / "empty", "rb").read() == b""


def test_a_path_that_fails_to_say_itself_raises_its_own_error(reader: KeptFiles) -> None:
    class Odd:
        def __fspath__(self) -> str:
            raise RuntimeError("mine")

    with reads_from(reader), pytest.raises(RuntimeError, match="mine"):
        open(Odd())


def test_a_reader_may_open_files_itself(path: Path, tmp_path: Path) -> None:
    class Opening(KeptFiles):
        def may_have(self, path: str) -> bool:
            return True

        def read_file(self, path: str) -> bytes:
            super().read_file(path)
            return (tmp_path / "store").read_bytes()

    (tmp_path / "store").write_bytes(b"stored")
    reader = Opening()
    with reads_from(reader):
        assert open(path, "rb").read() == b"stored"
        assert open(path, "rb").read() == b"stored"
    assert reader.asked == [str(path)] * 2


def test_a_reader_that_breaks_leaves_its_scope_in_force(path: Path) -> None:
    class Breaking(KeptFiles):
        def may_have(self, path: str) -> bool:
            return True

        def read_file(self, path: str) -> bytes:
            self.asked.append(path)
            raise RuntimeError("broken")

    reader = Breaking()
    with reads_from(reader):
        for _ in range(2):
            with pytest.raises(RuntimeError, match="broken"):
                open(path, "rb")
    assert len(reader.asked) == 2


@pytest.mark.usefixtures("sandbox")
def test_other_threads_open_for_themselves(path: Path, reader: KeptFiles) -> None:
    errors: list[type[BaseException]] = []

    def elsewhere() -> None:
        try:
            open(path, "rb")
        except FileNotFoundError as error:
            errors.append(type(error))

    with reads_from(reader):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert open(path, "rb").read()
    assert errors == [FileNotFoundError]


def test_scopes_nest(path: Path, reader: KeptFiles) -> None:
    inner = KeptFiles()
    inner.kept[str(path)] = b"inner"
    with reads_from(reader):
        with reads_from(inner):
            assert open(path, "rb").read() == b"inner"
        assert json.load(open(path)) == {"a": [1, 2]}
    with pytest.raises(FileNotFoundError):
        open(path)


def test_open_looks_as_before() -> None:
    before = [inspect.signature(open), open.__name__, open.__qualname__, open.__module__, open.__doc__]
    install()
    assert [inspect.signature(open), open.__name__, open.__qualname__, open.__module__, open.__doc__] == before
    assert io.open is builtins.open


def test_open_stays_itself_as_an_attribute_of_a_class(tmp_path: Path) -> None:
    install()

    class Dataset:
        opener = open

    (tmp_path / "x").write_bytes(b"x")
    with Dataset().opener(tmp_path / "x", "rb") as file:
        assert file.read() == b"x"


def test_open_pickles_as_itself() -> None:
    plain = open
    install()
    assert pickle.loads(pickle.dumps(open)) == open
    data = pickle.dumps(open)
    assert b"prefeed" not in data
    from prefeed.interception import uninstall

    uninstall()
    assert pickle.loads(data) is plain


def test_what_a_reader_cannot_have_is_not_asked_for(tmp_path: Path) -> None:
    class Nothing:
        asked = 0

        def may_have(self, path: str) -> bool:
            self.asked += 1
            return False

        def read_file(self, path: str) -> bytes:
            raise AssertionError("it said that it does not have it")

    path = tmp_path / "file"
    path.write_bytes(b"real")
    reader = Nothing()
    with reads_from(reader):
        for mode in ("rb", "r"):
            with open(str(path), mode) as file:
                assert file.read() in (b"real", "real")
    assert reader.asked == 2
