from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_sources import Fault, FaultySource, MemorySource
from prefeed.config import resolve
from prefeed.errors import ObjectNotFoundError, TruncatedBodyError
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.sources.urls import open_source
from prefeed.transfer.engine import PIECE_BYTES, PiecewiseBody, open_body
from prefeed.transfer.entries import Entry, stamp_of
from prefeed.transfer.flow import BandwidthLimit, PacedSource
from prefeed.transfer.ordered_walk import OrderedWalk
from servers import http_server, nginx_server, write_index

pytestmark = pytest.mark.usefixtures("sandbox")

LARGE = PIECE_BYTES * 2 + 12345


def listed(source: Source) -> dict[str, Entry]:
    return {info.path: Entry.of(info) for batch in source.list_objects() for info in batch}


def large_file(directory: Path) -> bytes:
    data = os.urandom(1 << 20) * (LARGE >> 20) + os.urandom(LARGE % (1 << 20))
    (directory / "large").write_bytes(data)
    return data


def test_a_small_file_comes_whole_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    source = PosixSource(str(tmp_path))
    info = listed(source)["a"]

    body = open_body(source, info)

    assert ([*body.chunks()], body.version, body.size_bytes) == ([b"abc"], source.fetch("a").version, 3)


def test_a_file_that_changed_since_it_was_listed_comes_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    source = PosixSource(str(tmp_path))
    info = listed(source)["a"]
    (tmp_path / "a").write_bytes(b"other")

    body = open_body(source, info)

    assert (body.size_bytes, body.version) == (5, source.fetch("a").version)
    assert stamp_of(info, body.version) == (tmp_path / "a").stat().st_mtime_ns


def test_a_large_file_comes_in_pieces(tmp_path: Path) -> None:
    data = large_file(tmp_path)
    source = PosixSource(str(tmp_path))

    body = open_body(source, listed(source)["large"])
    pieces = [bytes(piece) for piece in body.chunks()]

    assert max(map(len, pieces)) == PIECE_BYTES
    assert b"".join(pieces) == data


def test_a_large_file_comes_in_pieces_also_as_a_sync_lists_it(tmp_path: Path) -> None:
    """Else all of it would be in memory."""
    data = large_file(tmp_path)
    [entry] = OrderedWalk(str(tmp_path), follow=True)

    body = open_body(PacedSource(PosixSource(str(tmp_path)), BandwidthLimit(1e12), wait=lambda _: None), entry)

    assert isinstance(body, PiecewiseBody)
    assert b"".join(bytes(piece) for piece in body.chunks()) == data


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_large_file_that_changes_meanwhile_is_noticed(tmp_path: Path, after: int) -> None:
    large_file(tmp_path)
    source = PosixSource(str(tmp_path))
    chunks = open_body(source, listed(source)["large"]).chunks()
    for _ in range(after):
        next(chunks)
    os.utime(tmp_path / "large", ns=(1, 1))

    with pytest.raises(TruncatedBodyError, match="changed while it was copied"):
        list(chunks)


def test_a_large_object_of_a_server_comes_in_pieces(tmp_path: Path) -> None:
    """nginx sends ranges, and its etag says what they are of."""
    root = tmp_path / "files"
    root.mkdir()
    data = large_file(root)
    with nginx_server(root, tmp_path / "nginx") as url:
        source = open_source(url, resolve())
        version = source.fetch("large").version
        body = open_body(source, Entry("large", LARGE, None, version))
        assert isinstance(body, PiecewiseBody)
        assert b"".join(bytes(piece) for piece in body.chunks()) == data
        source.close()


def test_a_server_without_ranges_sends_it_whole(tmp_path: Path) -> None:
    data = large_file(tmp_path)
    with http_server(tmp_path) as server:
        source = open_source(server.url, resolve())
        version = source.fetch("large").version
        body = open_body(source, Entry("large", LARGE, None, version))
        assert b"".join(bytes(piece) for piece in body.chunks()) == data
        source.close()


def test_an_index_that_tells_another_size_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    write_index(tmp_path)
    (tmp_path / "a").write_bytes(b"longer")
    with http_server(tmp_path) as server:
        source = open_source(server.url, resolve())
        with pytest.raises(TruncatedBodyError, match=r"6 bytes came, 3 are listed, and the origin reports no change"):
            open_body(source, listed(source)["a"])
        source.close()


def test_too_few_bytes_of_the_same_version_are_an_error() -> None:
    source = FaultySource(MemorySource({"a": b"abcdef"}), {"a": Fault("short", times=1)})
    info = listed(source)["a"]

    with pytest.raises(TruncatedBodyError):
        open_body(source, info)
    assert open_body(source, info).size_bytes == 6


def test_what_is_gone_is_the_origins_error(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        open_body(PosixSource(str(tmp_path)), Entry("a", 1, None, "v"))
