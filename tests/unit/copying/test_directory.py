from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefeed.copying.bodies import WholeBody
from prefeed.copying.directory import DirectorySink, probe_folds_case, probe_time_step
from prefeed.copying.room import Ledger, room_of
from prefeed.errors import BadTargetNameError, CopyError, TargetFullError, TransientSourceError, TruncatedBodyError
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
        self.data.mkdir()
        self.incoming.mkdir()
        self.ledger = Ledger(room_bytes, lambda: (PLENTY, ""))
        self.sink = DirectorySink(self.data, self.incoming, self.ledger)

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.data)): path.read_bytes() for path in self.data.rglob("*") if path.is_file()}

    def leftovers(self) -> list[str]:
        return os.listdir(self.incoming)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_files_have_their_bytes_their_time_and_are_private(place: Place) -> None:
    place.sink.write("a/b/c", WholeBody(b"abc", "1700000000123456789-3"))
    place.sink.write("empty", WholeBody(b"", "e"))

    assert place.files() == {"a/b/c": b"abc", "empty": b""}
    status = (place.data / "a/b/c").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (1700000000123456789, 0o600)
    assert place.leftovers() == []


def test_names_may_be_any_bytes(place: Place) -> None:
    place.sink.write("\udcff\n ü", WholeBody(b"x", ""))

    assert os.listdir(os.fsencode(place.data)) == [b"\xff\n \xc3\xbc"]


@pytest.mark.parametrize("err", [TruncatedBodyError("changed"), TransientSourceError("gone"), None])
def test_a_body_that_breaks_off_leaves_nothing(tmp_path: Path, err: Exception | None) -> None:
    place = Place(tmp_path, room_of(10))

    for _ in range(2):  # its room is given back
        with pytest.raises(type(err) if err else TruncatedBodyError):
            place.sink.write("a", Breaking(err))
    assert (place.files(), place.leftovers()) == ({}, [])


def test_a_new_file_takes_the_place_of_a_file_or_link_and_links_are_not_followed(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"origin")
    place.sink.link("a", str(outside))
    place.sink.link("b/c", str(outside))
    assert place.files() == {"a": b"origin", "b/c": b"origin"}

    place.sink.write("a", WholeBody(b"copy", "v"))
    place.sink.link("a2", str(outside))
    place.sink.write("a2", WholeBody(b"copy", "v"))

    assert place.files() == {"a": b"copy", "a2": b"copy", "b/c": b"origin"}
    assert outside.read_bytes() == b"origin"


def test_no_more_is_written_than_there_is_room(tmp_path: Path) -> None:
    place = Place(tmp_path, room_of(5000))
    place.sink.write("a", WholeBody(b"x" * 3000, ""))

    with pytest.raises(TargetFullError):
        place.sink.write("b", WholeBody(b"x" * 3000, ""))
    assert (list(place.files()), place.leftovers()) == (["a"], [])


@pytest.mark.parametrize("size", [900_000, 3_000_000])
def test_a_full_file_system_is_an_error_of_its_own(tmp_path: Path, size: int) -> None:
    with small_file_system(tmp_path / "small", "1m") as small:
        place = Place(small)
        place.sink.write("a", WholeBody(b"x" * 400_000, ""))

        with pytest.raises(TargetFullError, match="the file system is full"):
            place.sink.write("b", WholeBody(b"x" * size, ""))
        assert (list(place.files()), place.leftovers()) == (["a"], [])


def test_a_name_that_cannot_be_there_concerns_one_file(place: Place) -> None:
    with pytest.raises(BadTargetNameError):
        place.sink.write("x" * 300, WholeBody(b"", ""))
    with pytest.raises(BadTargetNameError):
        place.sink.link("y" * 300, "/nowhere")
    assert place.leftovers() == []


def test_a_place_that_cannot_be_written_is_an_error(place: Place) -> None:
    place.sink.write("a", WholeBody(b"", ""))

    with pytest.raises(CopyError, match="what was copied stays"):
        place.sink.write("a/b", WholeBody(b"", ""))


def test_what_the_file_system_tells_apart(tmp_path: Path) -> None:
    assert probe_time_step(tmp_path) in (1, 100, 1000, 10**6, 10**9, 2 * 10**9)
    assert probe_folds_case(tmp_path) is (tmp_path / tmp_path.name).exists()
    assert list(tmp_path.iterdir()) == []
