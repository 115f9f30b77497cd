"""TFRecord files, read by a reader of the test's own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.config import Config
from prefeed.errors import CannotPackError
from prefeed.packing import formats
from prefeed.packing.driver import PackRequest, pack
from prefeed.packing.formats import tfrecord_frame
from unit.packing.packs import make_files, packed

pytestmark = pytest.mark.usefixtures("sandbox")

TABLE = []
for number in range(256):
    for _ in range(8):
        number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
    TABLE.append(number)


def masked(data: bytes) -> int:
    """CRC-32C by its definition, a byte at a time, and TensorFlow's mask."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32


def frames(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        payload = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(payload)
        yield payload
        at += 16 + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each length-delimited field."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        assert tag & 7 == 2
        size, at = varint(data, at)
        yield tag >> 3, data[at : at + size]
        at += size


def features(payload: bytes) -> dict[str, bytes]:
    """Return the features of an Example, read by the wire format alone: Example → Features → entries → BytesList."""
    ((_, content),) = fields(payload)
    found = {}
    for _, entry in fields(content):
        parts = dict(fields(entry))
        ((number, values),) = fields(parts[2])
        assert number == 1
        ((_, value),) = fields(values)
        found[parts[1].decode("utf-8", "surrogateescape")] = value
    return found


def test_an_independent_reader_reads_ours(tmp_path: Path) -> None:
    files = make_files(tmp_path / "src", samples=9)
    packed(tmp_path / "src", tmp_path / "out", "tfrecord", shard_bytes=60_000)
    shards = sorted((tmp_path / "out").glob("*.tfrecord"))
    assert len(shards) > 1
    found = [features(payload) for shard in shards for payload in frames(shard.read_bytes())]

    assert {sample["path"].decode(): sample["data"] for sample in found} == files
    assert all(sample.keys() == {"path", "data"} for sample in found)


@pytest.mark.parametrize("data", [b"", b"x", b"data", b"path", b"data" * 100, bytes(127), bytes(128), bytes(70_000)])
@pytest.mark.parametrize("path", ["p", "data", "path/data", "é" * 100, "a" * 5000])
def test_the_data_is_where_it_is_said_to_be(path: str, data: bytes) -> None:
    head, tail = tfrecord_frame(path, data)
    (payload,) = frames(head + data + tail)

    assert features(payload) == {"path": path.encode(), "data": data}


def test_without_its_libraries_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.bin").write_bytes(b"a")
    request = PackRequest(source=str(tmp_path / "src"), out=str(tmp_path / "out"), layout="tfrecord")
    config = Config(home=tmp_path / "home")
    monkeypatch.setattr(formats, "_IS_INSTALLED", False)
    with pytest.raises(CannotPackError, match=r"pip install 'prefeed\[pack\]'"):
        pack(request, config)
    assert not (tmp_path / "out").exists()
    assert pack(replace(request, layout="webdataset"), config).objects == 1
