"""The index of a pack: what is written is read, and what is damaged is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from xxhash import xxh3_128

from prefeed.errors import StoreFormatError
from prefeed.sources.pack_index import HEAD_BYTES, Extent, Head, PackHeader, PackIndex, encode_index
from prefeed.system.files import write_durably

PATHS = [b"a.jpg", b"b/1.jpg", "é\udcff".encode("utf-8", "surrogateescape")]


def parts(paths: list[bytes] = PATHS, columns: dict[str, Any] | None = None, **changed: Any) -> list[Any]:
    count = len(paths)
    header = {
        "layout": "lmdb", "num_objects": count, "total_bytes": 30, "path_bytes": sum(map(len, paths)),
        "data_files": ["x.tar", "sub/y.tar"],
    }  # fmt: skip
    own = {
        "sizes": np.arange(count, dtype=np.uint64),
        "offsets": np.arange(count, dtype=np.uint64) * np.uint64(512),
        "checksums": np.full(count, 2**64 - 1, np.uint64),
        "files": np.arange(count, dtype=np.uint32) % 2,
        "starts": np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.uint64),
    }
    return encode_index(PackHeader(**{**header, **changed}), **{**own, **(columns or {})}, paths=b"".join(paths))


def written(path: Path, content: list[Any]) -> PackIndex:
    write_durably(path, content)
    return PackIndex.open(path)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    index = written(tmp_path / "i", parts())

    index.validate()
    assert [index.path_bytes(i) for i in range(len(index))] == PATHS
    assert [index.find(index.path(i)) for i in range(3)] == [0, 1, 2]
    assert index.extent(1) == Extent("sub/y.tar", 512, 1, 2**64 - 1)
    assert [info.version for infos in index.infos() for info in infos] == ["f" * 16] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["i"]


@pytest.mark.parametrize("path", ["", "a", "a.jpg2", "b", "b/1.jp", "zzz"])
def test_what_is_not_there_is_not_found(tmp_path: Path, path: str) -> None:
    assert written(tmp_path / "i", parts()).find(path) is None


@pytest.mark.parametrize("count", [1, 2, 1001])
def test_any_number_of_objects(tmp_path: Path, count: int) -> None:
    index = written(tmp_path / "i", parts([f"{i:05}".encode() for i in range(count)]))

    assert [info.path for infos in index.infos() for info in infos] == [f"{i:05}" for i in range(count)]
    assert index.find(f"{count - 1:05}") == count - 1


@pytest.mark.parametrize("keep", [0, 10, HEAD_BYTES, HEAD_BYTES + 20, -1])
def test_cut_off_is_refused(tmp_path: Path, keep: int) -> None:
    whole = b"".join(parts())
    (tmp_path / "i").write_bytes(whole[:keep])

    with pytest.raises(StoreFormatError):
        PackIndex.open(tmp_path / "i")


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    whole = b"".join(parts())
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 0x41
        with pytest.raises(StoreFormatError):
            PackIndex(memoryview(bytes(damaged)), "here").validate()


@pytest.mark.parametrize("name", ["/etc/passwd", "../x.tar", "a/../../x.tar"])
def test_data_files_lie_beside_the_index(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreFormatError, match="outside"):
        written(tmp_path / "i", parts(data_files=[name, name]))


def test_columns_must_fit() -> None:
    with pytest.raises(ValueError, match="no index of 4 objects"):
        parts(num_objects=4)


# ------------------------------------------------------------ indices that somebody else made, digest and all


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("starts", [0, 5, 3, 15]),
        ("starts", [0, 5, 5, 15]),
        ("starts", [1, 5, 12, 15]),
        ("starts", [0, 5, 12, 14]),
        ("starts", [0, 5, 2**64 - 1, 15]),
        ("sizes", [1, 2**62, 1]),
        ("offsets", [0, 0, 2**64 - 1]),
        ("files", [0, 1, 2]),
    ],
)
def test_columns_that_cannot_be_are_refused(name: str, values: list[int]) -> None:
    column = np.array(values, np.uint32 if name == "files" else np.uint64)
    index = PackIndex(memoryview(b"".join(parts(columns={name: column}))), "here")

    with pytest.raises(StoreFormatError, match="columns cannot be"):
        index.validate()


@pytest.mark.parametrize(("count", "path_bytes", "body"), [(-1, 44, b"\0" * 16), (3, -34, b"\0" * 82)])
def test_counts_that_cannot_be_are_refused(count: int, path_bytes: int, body: bytes) -> None:
    text = msgspec.json.encode(
        PackHeader(layout="lmdb", num_objects=count, total_bytes=0, path_bytes=path_bytes, data_files=["x"])
    )
    head = Head(len(text), len(body), xxh3_128(text + body).digest())

    with pytest.raises(StoreFormatError, match="cannot be"):
        PackIndex(memoryview(head.encode() + text + body), "here")
