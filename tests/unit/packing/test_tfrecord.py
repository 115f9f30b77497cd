"""TFRecord files: what we write, read by a reader of its own; what others write, read by us."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefeed.config import Config, current
from prefeed.datasets import Packed
from prefeed.errors import CannotPackError
from prefeed.packing import formats
from prefeed.packing.driver import PackRequest, pack
from prefeed.packing.formats import scan_tfrecord, tfrecord_frame
from prefeed.packing.index_existing import index_files
from unit.packing.packs import make_files, packed, read_back

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


def write_foreign(file: Path, payloads: list[bytes]) -> None:
    with file.open("wb") as out:
        for payload in payloads:
            length = struct.pack("<Q", len(payload))
            out.write(length + struct.pack("<I", masked(length)) + payload + struct.pack("<I", masked(payload)))


def test_records_of_others_are_samples(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    payloads = [[b"", b"one", bytes(3000)], [b"two" * 50]]
    for number, content in enumerate(payloads):
        write_foreign(tmp_path / "data" / f"train.tfrecord-{number:05}-of-00002", content)
    index_files(str(tmp_path / "data"), None, current())

    assert read_back(tmp_path / "data") == {
        "train.tfrecord-00000-of-00002/000000": b"",
        "train.tfrecord-00000-of-00002/000001": b"one",
        "train.tfrecord-00000-of-00002/000002": bytes(3000),
        "train.tfrecord-00001-of-00002/000000": b"two" * 50,
    }
    assert Packed(tmp_path / "data", decode=len)[2] == 3000


def test_names_that_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_foreign(tmp_path / "data" / "train-00000-of-01024", [b"x"])
    index_files(str(tmp_path / "data"), None, current(), layout="tfrecord")
    assert read_back(tmp_path / "data") == {"train-00000-of-01024/000000": b"x"}


@pytest.mark.parametrize(
    ("at", "words"), [(3, "or damaged"), (9, "or damaged"), (14, "do not match its checksum"), (-1, "its checksum")]
)
def test_damaged_records_are_refused(tmp_path: Path, at: int, words: str) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "a.tfrecord"
    write_foreign(file, [b"12345678"])
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.raises(CannotPackError, match=words):
        index_files(str(tmp_path / "data"), None, current())


@pytest.mark.parametrize("keep", [5, 13, 21])
def test_cut_records_are_refused(tmp_path: Path, keep: int) -> None:
    (tmp_path / "data").mkdir()
    write_foreign(tmp_path / "data" / "a.tfrecord", [b"12345678"])
    with (tmp_path / "data" / "a.tfrecord").open("r+b") as file:
        file.truncate(keep)
    with pytest.raises(CannotPackError, match="record 0"):
        index_files(str(tmp_path / "data"), None, current())


@pytest.mark.parametrize("size", [9, 2**40, 2**63, 2**64 - 1])
def test_no_memory_is_taken_for_a_length_that_the_file_does_not_have(tmp_path: Path, size: int) -> None:
    length = struct.pack("<Q", size)
    content = length + struct.pack("<I", masked(length)) + b"12345678" + bytes(4)
    with pytest.raises(CannotPackError, match=rf"cut off: 8 of {size} bytes"):
        list(scan_tfrecord(io.BytesIO(content), "x"))


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
