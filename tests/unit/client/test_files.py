"""Files that samples open by path: which come from the cache, and what is noted of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from prefeed.client.access import AccessMap
from prefeed.client.files import SampleFiles
from prefeed.client.lending import Lent
from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError
from prefeed.sources.learned import LearnedMap, LearnedMapWriter
from prefeed.sources.mounts import Roots

ROOT = "/data"


class Server:
    """Stands for reader and server: knows files by path and by id, and remembers what it was asked.

    Attributes:
        paths: Of every object; more are added as they are asked for by path.
        bytes_of: Contents; a file that is not there is an error of the origin's.
        is_gone: Nobody answers.
        learned: What was reported.
        last_key: Of the bytes given last; nothing when it is not known.
    """

    def __init__(self, *names: str) -> None:
        self.paths = [f"{ROOT}/{name}" for name in names]
        self.bytes_of = {path: os.fsencode(path) for path in [*self.paths, f"{ROOT}/new", f"{ROOT}/other", "/else/a"]}
        self.is_gone = False
        self.by_id: list[int] = []
        self.by_path: list[str] = []
        self.learned: list[tuple[int, list[int]]] = []
        self.num_made = 0
        self.last_key = b""
        self.waited_seconds = 0.0

    def pass_by(self, object_id: int | None) -> None:
        """Count nothing."""

    def try_read(self, object_id: int) -> bytes | None:
        self.by_id.append(object_id)
        return None if self.is_gone else self._bytes(self.paths[object_id])

    def try_read_file(self, path: str) -> tuple[bytes | None, int | None]:
        self.by_path.append(path)
        if self.is_gone:
            return None, None
        if path not in self.paths:
            self.paths.append(path)
        return self._bytes(path), self.paths.index(path)

    def sample_made(self) -> list[Lent]:
        self.num_made += 1
        return []

    def learn(self, sample: int, ids: Sequence[int]) -> None:
        self.learned.append((sample, list(ids)))

    def _bytes(self, path: str) -> bytes:
        if path not in self.bytes_of:
            raise ObjectNotFoundError(path)
        return self.bytes_of[path]


class Catalogued:
    """Grows with the server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def path(self, index: int) -> str:
        return self._server.paths[index]

    @property
    def num_objects(self) -> int:
        return len(self._server.paths)


@pytest.fixture
def server() -> Server:
    return Server("0", "1", "2", "3")


def declared(server: Server) -> SampleFiles:
    """Sample 0 opens the files 0 and 1, sample 1 nothing, sample 2 the others."""
    dataset: Any = SimpleNamespace(manifest=Catalogued(server))
    access = AccessMap(dataset=dataset, starts=np.array([0, 2, 2, 4], dtype=np.int64))
    return files_of(server, access)


def files_of(server: Server, access: AccessMap) -> SampleFiles:
    return SampleFiles(server, access, Roots.of(resolve({"roots": [ROOT]})))  # type: ignore[arg-type]


def test_a_file_that_no_sample_is_known_to_open_is_asked_for_by_path_once(server: Server) -> None:
    files = declared(server)
    for _ in range(3):
        with files.sample(1):
            assert files.read_file("/data/new") == b"/data/new"
    assert server.by_path == ["/data/new"]
    assert server.by_id == [4, 4]  # what is found there was compared with the file in this epoch
    files.epoch_begins()
    with files.sample(1):
        assert files.read_file("/data/new") == b"/data/new"
    assert server.by_path == ["/data/new"] * 2


class Learning:
    """Samples of which nothing is declared; the server's half of learning is done by ``catch_up``."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.writer = LearnedMapWriter.open_or_create(directory, 4)
        dataset: Any = SimpleNamespace(manifest=Catalogued(server), num_samples=4)
        self.access = AccessMap(dataset=dataset, learned=LearnedMap.open(directory, 4))
        self.files = files_of(server, self.access)

    def catch_up(self) -> None:
        for sample, ids in self.server.learned:
            self.writer.record(sample, ids)
        self.server.learned.clear()

    def make(self, sample: Any, *names: str) -> list[Any]:
        with self.files.sample(sample):
            return [self.files.read_file(name if name.startswith("/") else f"{ROOT}/{name}") for name in names]


@pytest.fixture
def learning(server: Server, tmp_path: Path) -> Iterator[Learning]:
    made = Learning(server, tmp_path / "learned")
    yield made
    made.writer.close()


# ------------------------------------------------------------ where files come from


def test_a_file_that_the_sample_is_known_to_open_is_read_by_its_id(server: Server) -> None:
    files = declared(server)
    with files.sample(0):
        assert files.read_file("/data/1") == b"/data/1"
        assert files.read_file("/data/0") == b"/data/0"
    with files.sample(-1):
        assert files.read_file("/data/3") == b"/data/3"
    assert (server.by_id, server.by_path) == ([1, 0, 3], [])


def test_a_declared_file_is_read_by_its_id_wherever_it_lies(server: Server) -> None:
    server.paths[0] = "/else/a"
    files = declared(server)
    with files.sample(0):
        assert files.read_file("/else/a") == b"/else/a"
    assert (server.by_id, server.by_path) == ([0], [])


def test_any_other_file_below_the_roots_is_asked_for_by_path(server: Server) -> None:
    files = declared(server)
    with files.sample(0):
        assert files.read_file("/data/new") == b"/data/new"
        assert files.read_file("/data/2") == b"/data/2"  # another sample's
    with files.sample(1):
        assert files.read_file("/data/0") == b"/data/0"
    assert (server.by_id, server.by_path) == ([], ["/data/new", "/data/2", "/data/0"])


@pytest.mark.parametrize("path", ["/else/a", "/datax/a", "/data", "/data/../else/a", ""])
def test_a_file_outside_the_roots_is_for_the_process_that_asks(server: Server, path: str) -> None:
    files = declared(server)
    with files.sample(0):
        assert files.read_file(path) is None
    assert (server.by_id, server.by_path) == ([], [])


def test_an_error_of_the_origin_is_for_the_caller(server: Server) -> None:
    files = declared(server)
    del server.bytes_of["/data/0"]
    with files.sample(0):
        assert files.read_file("/data/0") is None
        assert files.read_file("/data/missing") is None
        assert files.read_file("/data/1") == b"/data/1"


def test_without_a_server_files_are_for_the_caller(server: Server) -> None:
    files = declared(server)
    server.is_gone = True
    with files.sample(0):
        assert files.read_file("/data/0") is None
        assert files.read_file("/data/new") is None


@pytest.mark.parametrize("sample", [99, "key", None, 1.5])
def test_a_sample_that_is_not_known_reads_its_files_by_path(server: Server, sample: Any) -> None:
    files = declared(server)
    with files.sample(sample):
        assert files.read_file("/data/0") == b"/data/0"
    assert (server.by_id, server.by_path) == ([], ["/data/0"])


def test_what_an_id_beyond_the_catalogue_means_is_not_asked(learning: Learning) -> None:
    """After a power failure more may have been learned than files are known."""
    learning.writer.record(0, [1, 99])
    assert learning.make(0, "1", "2") == [b"/data/1", b"/data/2"]
    assert (learning.server.by_id, learning.server.by_path) == ([1], ["/data/2"])


# ------------------------------------------------------------ once a sample


@pytest.mark.parametrize("name", ["0", "new"], ids=["expected", "by path"])
def test_a_second_open_in_a_sample_is_answered_from_memory(server: Server, name: str) -> None:
    files = declared(server)
    for times in (1, 2):
        with files.sample(0):
            first = files.read_file(f"/data/{name}")
            assert files.read_file(f"/data/{name}") is first
        assert len(server.by_id) + len(server.by_path) == times


@pytest.mark.parametrize("is_missing", [True, False], ids=["missing", "no server"])
def test_a_second_open_of_what_the_cache_does_not_have_asks_no_server(server: Server, is_missing: bool) -> None:
    files = declared(server)
    if is_missing:
        del server.bytes_of["/data/0"]
    server.is_gone = not is_missing
    with files.sample(0):
        assert [files.read_file("/data/0") for _ in range(3)] == [None] * 3
    assert server.by_id == [0]


# ------------------------------------------------------------ what a sample opened


def test_the_key_of_what_was_served_is_told_inside_the_sample(server: Server) -> None:
    files = declared(server)
    server.last_key = b"0123456789abcdef"
    with files.sample(0):
        files.read_file(f"{ROOT}/0")
        assert files.served_key(f"{ROOT}/0") == b"0123456789abcdef"
        assert files.served_key(f"{ROOT}/1") is None
        server.last_key = b""
        files.read_file(f"{ROOT}/1")
        assert files.served_key(f"{ROOT}/1") is None
    assert files.served_key(f"{ROOT}/0") is None


def test_what_a_sample_opened_is_reported_once(learning: Learning) -> None:
    for _ in range(3):
        assert learning.make(2, "3", "new", "3", "/else/a") == [b"/data/3", b"/data/new", b"/data/3", None]
        if learning.server.learned:
            assert learning.server.learned == [(2, [3, 4])]
            learning.catch_up()
    assert learning.server.by_path == ["/data/3", "/data/new"]  # the other times by id
    assert learning.server.by_id == [3, 4] * 2
    assert learning.access.objects_of(2) == (3, 4)


def test_a_sample_that_opens_nothing_is_reported_once(learning: Learning) -> None:
    learning.make(1)
    assert learning.server.learned == [(1, [])]
    learning.catch_up()
    learning.make(1)
    assert learning.server.learned == []


def test_a_sample_that_opens_other_files_than_before_is_reported_again(learning: Learning) -> None:
    learning.make(0, "0", "1")
    learning.catch_up()
    learning.make(0, "1")
    assert learning.server.learned == [(0, [1])]
    learning.catch_up()
    learning.make(0, "1", "2")
    assert learning.server.learned == [(0, [1, 2])]


def test_a_sample_counts_from_the_end_too(learning: Learning) -> None:
    learning.make(-1, "0")
    assert learning.server.learned == [(3, [0])]


def test_a_sample_that_failed_is_not_reported(learning: Learning) -> None:
    with pytest.raises(ZeroDivisionError), learning.files.sample(0):
        learning.files.read_file("/data/0")
        raise ZeroDivisionError
    assert learning.server.learned == []
    learning.make(1, "1")  # and what it had opened is not the next one's
    assert learning.server.learned == [(1, [1])]


def test_a_sample_that_is_made_in_parts_is_reported_whole(learning: Learning) -> None:
    with learning.files.parts():
        learning.make(0, "0")
        learning.make(1, "1")
        learning.make(0, "2", "0")
        learning.make(1)
        learning.make([2], "1")
        assert learning.server.learned == []
    assert learning.server.learned == [(0, [0, 2]), (1, [1])]


def test_a_sample_with_a_failed_part_is_not_reported(learning: Learning) -> None:
    with pytest.raises(ZeroDivisionError), learning.files.parts():
        learning.make(0, "0")
        raise ZeroDivisionError
    assert learning.server.learned == []
    learning.make(0, "0", "1")
    assert learning.server.learned == [(0, [0, 1])]


def test_files_of_several_samples_at_once_belong_to_none(learning: Learning) -> None:
    with learning.files.sample(0, 1):
        assert learning.files.read_file("/data/0") == b"/data/0"
    assert learning.server.learned == []


def test_samples_made_at_once_expect_the_files_of_all(server: Server) -> None:
    files = declared(server)
    with files.sample(0, 2):
        assert files.read_file("/data/3") == b"/data/3"
        assert files.read_file("/data/0") == b"/data/0"
    assert (server.by_id, server.by_path) == ([3, 0], [])


def test_a_sample_without_a_number_is_not_reported(learning: Learning) -> None:
    learning.make("key", "0")
    learning.make(4, "0")
    assert learning.server.learned == []


def test_what_is_declared_is_not_reported(server: Server) -> None:
    files = declared(server)
    with files.sample(0):
        files.read_file("/data/new")
    assert server.learned == []


def test_without_a_server_nothing_is_learned(learning: Learning) -> None:
    learning.make(0, "0", "1")
    learning.catch_up()
    learning.server.is_gone = True
    learning.make(0, "0", "1")
    learning.make(1, "2")
    assert learning.server.learned == []
    learning.server.is_gone = False
    learning.make(1, "2")
    assert learning.server.learned == [(1, [2])]


# ------------------------------------------------------------ batches made in one go, of samples that are guessed


@pytest.mark.parametrize(
    ("opened", "expected"),
    [
        (["0", "1", "2"], [(0, [0, 1]), (1, [2])]),  # as was guessed
        (["0", "2"], [(0, [0]), (1, [2])]),  # less: it is known of which sample
        (["1", "0", "new"], [(0, [0, 1])]),  # sample 1 may have opened the other one
        (["new"], []),
        ([], [(0, []), (1, [])]),
    ],
)
def test_a_batch_tells_how_right_a_guess_was(learning: Learning, opened: list[str], expected: Any) -> None:
    learning.writer.suppose(0, [0, 1])
    learning.writer.suppose(1, [2])
    learning.access.refresh()
    with learning.files.sample(0, 1, -1):
        assert [learning.files.read_file(f"{ROOT}/{name}") for name in opened] == [
            os.fsencode(f"{ROOT}/{name}") for name in opened
        ]
    assert learning.server.learned == expected
    assert learning.server.by_path == [f"{ROOT}/{name}" for name in opened if name == "new"]
