from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.copying.space import BoundedSink, SpaceBudget, footprint
from prefeed.errors import BadTargetNameError, CopyError, TargetFullError, TransientSourceError, TruncatedBodyError
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.engine import Body, WholeBody
from prefeed.transfer.entries import Entry
from prefeed.transfer.rooted_dir import RootedDir
from prefeed.types import Buffer
from small_files import small_file_system

pytestmark = pytest.mark.usefixtures("sandbox")

PLENTY = 1 << 40


class Breaking:
    """A body of ten bytes of which three come."""

    version = "v"
    size_bytes = 10

    def __init__(self, err: Exception | None) -> None:
        self._err = err

    def chunks(self) -> Iterator[Buffer]:
        yield b"abc"
        if self._err is not None:
            raise self._err


class Place:
    def __init__(self, root: Path, room_bytes: int = PLENTY) -> None:
        self.data, self.incoming = root / "data", root / "incoming"
        self.own = RootedDir(str(root))
        self.inner = self.own.open_inner("data")
        self.sink = DirectorySink(self.inner, work=(self.own, "incoming"), mode=0o600)
        self.bounded = BoundedSink(self.sink, SpaceBudget(room_bytes, lambda: (PLENTY, "")))

    def write(self, path: str, body: Body) -> None:
        self.bounded.write(Entry(path, body.size_bytes, None, body.version), body)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    def leftovers(self) -> list[str]:
        return os.listdir(self.incoming)

    def close(self) -> None:
        self.sink.close()
        self.inner.close()
        self.own.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with contextlib.closing(Place(tmp_path)) as place:
        yield place


def test_files_have_their_bytes_their_time_and_are_private(place: Place) -> None:
    place.write("a/b/c", WholeBody(b"abc", "1700000000123456789-3"))
    place.write("empty", WholeBody(b"", "e"))

    assert place.files() == {"a/b/c": b"abc", "empty": b""}
    status = (place.data / "a/b/c").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (1700000000123456789, 0o600)
    assert place.leftovers() == []


def test_names_may_be_any_bytes(place: Place) -> None:
    place.write("\udcff\n ü", WholeBody(b"x", ""))

    assert os.listdir(os.fsencode(place.data)) == [b"\xff\n \xc3\xbc"]


@pytest.mark.parametrize("err", [TruncatedBodyError("changed"), TransientSourceError("gone"), None])
def test_a_body_that_breaks_off_leaves_nothing(tmp_path: Path, err: Exception | None) -> None:
    with contextlib.closing(Place(tmp_path, footprint(10))) as place:
        for _ in range(2):  # its room is given back
            with pytest.raises(type(err) if err else TruncatedBodyError):
                place.write("a", Breaking(err))
        assert (place.files(), place.leftovers()) == ({}, [])


def test_a_new_file_takes_the_place_of_a_file_or_link_and_links_are_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"origin")
    place.sink.link("a", str(outside))
    place.sink.link("b/c", str(outside))
    assert place.files() == {"a": b"origin", "b/c": b"origin"}

    place.write("a", WholeBody(b"copy", "v"))
    place.sink.link("a2", str(outside))
    place.write("a2", WholeBody(b"copy", "v"))

    assert place.files() == {"a": b"copy", "a2": b"copy", "b/c": b"origin"}
    assert outside.read_bytes() == b"origin"


def test_no_more_is_written_than_there_is_room(tmp_path: Path) -> None:
    with contextlib.closing(Place(tmp_path, footprint(5000))) as place:
        place.write("a", WholeBody(b"x" * 3000, ""))

        with pytest.raises(TargetFullError):
            place.write("b", WholeBody(b"x" * 3000, ""))
        assert (list(place.files()), place.leftovers()) == (["a"], [])


@pytest.mark.parametrize("size", [900_000, 3_000_000])
def test_a_full_file_system_is_an_error_of_its_own(tmp_path: Path, size: int) -> None:
    with small_file_system(tmp_path / "small", "1m") as small, contextlib.closing(Place(small)) as place:
        place.write("a", WholeBody(b"x" * 400_000, ""))

        with pytest.raises(TargetFullError, match="the file system is full"):
            place.write("b", WholeBody(b"x" * size, ""))
        assert (list(place.files()), place.leftovers()) == (["a"], [])


def test_a_name_that_cannot_be_there_concerns_one_file(place: Place) -> None:
    with pytest.raises(BadTargetNameError):
        place.write("x" * 300, WholeBody(b"", ""))
    with pytest.raises(BadTargetNameError):
        place.sink.link("y" * 300, "/nowhere")
    assert place.leftovers() == []


def test_what_is_in_the_way_concerns_one_file(place: Place) -> None:
    place.write("a", WholeBody(b"", ""))

    with pytest.raises(BadTargetNameError, match="not a directory"):
        place.write("a/b", WholeBody(b"", ""))


def test_a_place_that_cannot_be_written_is_an_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(CopyError, match="copied files stay"):
        place.write("a", WholeBody(b"", ""))
    assert place.leftovers() == []


def test_what_the_file_system_tells_apart(place: Place, tmp_path: Path) -> None:
    (tmp_path / "lower").touch()
    assert place.sink.step_ns in (1, 100, 1000, 10**6, 10**9, 2 * 10**9)
    assert place.sink.folds_case is (tmp_path / "LOWER").exists()
    assert place.leftovers() == []


def test_where_files_are_made_is_gone_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "0").write_bytes(b"of a killed one")
    with contextlib.closing(Place(tmp_path)) as place:
        assert place.leftovers() == []
    assert os.listdir(tmp_path) == ["data"]


def test_a_thread_that_was_left_behind_writes_nowhere_else(tmp_path: Path) -> None:
    """After Ctrl-C: the number of a closed directory may be another one's by now."""
    (tmp_path / "own").mkdir()
    with contextlib.closing(Place(tmp_path / "own")) as place:
        pass
    (tmp_path / "other").mkdir()
    opened = [os.open(tmp_path / "other", os.O_RDONLY | os.O_DIRECTORY) for _ in range(8)]
    try:
        with pytest.raises(CopyError, match="Bad file descriptor"):
            place.write("a/b", WholeBody(b"late", ""))
        with pytest.raises(CopyError, match="Bad file descriptor"):
            place.sink.make_directory("a")
        with pytest.raises(OSError, match="Bad file descriptor"):
            list(place.inner.remove("", failed=lambda _, err: pytest.fail(str(err))))
    finally:
        for descriptor in opened:
            os.close(descriptor)
    assert os.listdir(tmp_path / "other") == []
