"""Packs that the real webdataset reads, and what it writes, read by us."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import tarfile
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import webdataset

import servers
from prefeed.config import current
from prefeed.datasets import Packed
from prefeed.errors import CannotPackError, EmptyListingError, PackOccupiedError
from prefeed.packing.formats import scan_tar
from prefeed.packing.index_existing import index_files
from unit.packing.packs import make_files, names, packed, read_back

pytestmark = pytest.mark.usefixtures("sandbox")


def by_webdataset(files: list[Path]) -> list[dict[str, Any]]:
    """Return the samples as webdataset reads them, in a process of its own: it never closes what it opens."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send_samples, args=(files, sender))
    process.start()
    sender.close()
    with receiver:
        samples: list[dict[str, Any]] = receiver.recv()
    process.join()
    process.close()
    return samples


def _send_samples(files: list[Path], sender: Connection) -> None:
    dataset = webdataset.WebDataset(list(map(str, files)), shardshuffle=False, empty_check=False)
    left_out = ("__url__", "__local_path__")
    sender.send([{name: value for name, value in sample.items() if name not in left_out} for sample in dataset])


@contextlib.contextmanager
def webdatasets_writer(file: Path, compress: bool = False) -> Iterator[Any]:
    with file.open("wb") as stream, webdataset.TarWriter(stream, compress=compress) as writer:
        yield writer


def expected_samples(files: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = {}
    for path, data in files.items():
        directory, _, name = path.rpartition("/")
        stem, _, extension = name.partition(".")
        key = f"{directory}/{stem}"
        samples.setdefault(key, {"__key__": key})[extension.lower()] = data
    return samples


@pytest.mark.parametrize("seed", [None, 3])
def test_webdataset_reads_ours(tmp_path: Path, seed: int | None) -> None:
    files = make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "webdataset", shard_bytes=60_000, seed=seed)
    tars = sorted((tmp_path / "out").glob("*.tar"))
    assert len(tars) > 2
    found = by_webdataset(tars)

    assert {sample["__key__"]: sample for sample in found} == expected_samples(files)
    assert len(found) == 30  # no sample is split over two data files
    in_order = [sample["__key__"] for sample in found] == sorted(expected_samples(files), key=str.encode)
    assert in_order == (seed is None)


def test_long_names_and_odd_ones(tmp_path: Path) -> None:
    names_ = ["d" * 90 + "/" + "f" * 200 + ".jpg", "größe/日本.jpg", "x" * 99 + ".j", "a b/#%?.txt"]
    for name in names_:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / name).write_bytes(name.encode())
    packed(tmp_path / "src", tmp_path / "out", "webdataset")

    assert read_back(tmp_path / "out") == {name: name.encode() for name in names_}
    assert {sample["__key__"] for sample in by_webdataset(list((tmp_path / "out").glob("*.tar")))} == {
        name.rpartition(".")[0] for name in names_
    }


def test_tar_files_are_tarfiles_own(tmp_path: Path) -> None:
    """To the byte, with the end of the archive."""
    files = {"a.x": b"", "b" * 200 + ".x": bytes(513), "c/d.x": bytes(512), "e.x": b"1"}
    for path, data in files.items():
        (tmp_path / "src" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / path).write_bytes(data)
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(files):
            member = tarfile.TarInfo(path)
            member.size = len(files[path])
            tar.addfile(member, io.BytesIO(files[path]))
    assert (tmp_path / "out" / "shard-000000.tar").read_bytes() == buffer.getvalue()


# ------------------------------------------------------------ the reverse


def write_shards(root: Path, *, duplicate_keys: bool = False) -> list[Path]:
    """Write a WebDataset by its own writer; return its data files."""
    root.mkdir(parents=True, exist_ok=True)
    for shard in range(3):
        with webdatasets_writer(root / f"train-{shard:03}.tar") as writer:
            for i in range(5):
                key = f"{i:04}" if duplicate_keys else f"{shard}/{i:04}"
                writer.write({"__key__": key, "jpg": bytes([shard, i]) * 400, "cls": i, "json": {"shard": shard}})
    return sorted(root.glob("*.tar"))


def test_we_read_webdatasets(tmp_path: Path) -> None:
    expected = by_webdataset(write_shards(tmp_path / "data"))
    result = index_files(str(tmp_path / "data"), None, current())

    assert (result.objects, result.data_files, result.layout) == (45, 3, "webdataset")
    dataset = Packed(tmp_path / "data", group=True)
    assert [dataset[i] for i in range(len(dataset))] == expected
    assert [dataset.path(i) for i in range(len(dataset))] == [sample["__key__"] for sample in expected]


def test_names_that_come_again_are_told_apart_by_their_data_file(tmp_path: Path) -> None:
    expected = by_webdataset(write_shards(tmp_path / "data", duplicate_keys=True))
    index_files(str(tmp_path / "data"), None, current())
    dataset = Packed(tmp_path / "data", group=True)

    assert len(dataset) == 15
    assert dataset.path(7) == "train-001.tar/0002"
    assert {**dataset[7], "__key__": "0002"} == expected[7]


def test_what_is_indexed_already_is_not_read_again(tmp_path: Path) -> None:
    write_shards(tmp_path / "data")
    first = index_files(str(tmp_path / "data"), None, current())
    again = index_files(str(tmp_path / "data"), None, current())
    assert (first.packed, again.packed, again.kept) == (45, 0, 45)
    with webdatasets_writer(tmp_path / "data" / "train-003.tar") as writer:
        writer.write({"__key__": "new", "txt": "x"})
    assert index_files(str(tmp_path / "data"), None, current()).packed == 46


def test_the_index_may_lie_elsewhere(tmp_path: Path) -> None:
    """Where the data files' place cannot be written."""
    expected = by_webdataset(write_shards(tmp_path / "data"))
    before = names(tmp_path / "data")
    index_files(str(tmp_path / "data"), str(tmp_path / "index"), current())

    assert names(tmp_path / "data") == before
    assert Packed(tmp_path / "index", group=True)[4] == expected[4]


def test_data_files_behind_a_web_server(tmp_path: Path) -> None:
    expected = by_webdataset(write_shards(tmp_path / "data"))
    servers.write_index(tmp_path / "data")
    with servers.nginx_server(tmp_path / "data", tmp_path / "nginx") as url:
        with pytest.raises(CannotPackError, match="name a directory for it"):
            index_files(url, None, current())
        index_files(url, str(tmp_path / "index"), current())
        dataset = Packed(tmp_path / "index", group=True)
        assert [dataset[i] for i in range(len(dataset))] == expected
        assert Packed(tmp_path / "index").url == f"pack+file://{tmp_path}/index"


def test_our_own_packs_have_their_index(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    packed(tmp_path / "src", tmp_path / "out", "tfrecord")
    with pytest.raises(PackOccupiedError, match="has its index already"):
        index_files(str(tmp_path / "out"), None, current())


def test_no_data_files(tmp_path: Path) -> None:
    make_files(tmp_path / "src")
    with pytest.raises(EmptyListingError, match=r"wanted \*\.tar"):
        index_files(str(tmp_path / "src"), None, current())
    (tmp_path / "src" / "x.tar.gz").write_bytes(b"x")
    with pytest.raises(EmptyListingError, match=r"x\.tar\.gz is compressed"):
        index_files(str(tmp_path / "src"), None, current())


@pytest.mark.parametrize("damage", ["cut", "compressed", "noise"])
def test_data_files_that_are_no_tar_files(tmp_path: Path, damage: str) -> None:
    write_shards(tmp_path / "data")
    file = tmp_path / "data" / "train-001.tar"
    whole = file.read_bytes()
    if damage == "compressed":
        with webdatasets_writer(tmp_path / "x.tar.gz", compress=True) as writer:
            writer.write({"__key__": "a", "txt": "x"})
        whole = (tmp_path / "x.tar.gz").read_bytes()
    file.write_bytes({"cut": whole[:700], "compressed": whole, "noise": b"\x01" * 2000}[damage])
    with pytest.raises(CannotPackError, match=r"train-001\.tar is"):
        index_files(str(tmp_path / "data"), None, current())
    assert "prefeed-pack.index" not in names(tmp_path / "data")


def test_only_regular_files_are_objects(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("l", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("f", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "f" if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
            tar.addfile(member, io.BytesIO())
    buffer.seek(0)
    assert [record.path for record in scan_tar(buffer, "x.tar")] == ["f"]


def tar_of(*paths: str, data: bytes = b"12345678") -> bytearray:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in paths:
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return bytearray(buffer.getvalue())


def with_sum(header: bytes) -> bytes:
    """Return a tar header with the sum that belongs to it."""
    total = sum(header[:148]) + 8 * 32 + sum(header[156:512])
    return header[:148] + b"%06o\0 " % total + header[156:]


def test_paths_are_relative() -> None:
    """As ``tar -C photos -cf x.tar .`` writes them: else all of an ImageFolder is of the class ``.``."""
    content = tar_of("./cat/1.jpg", "/cat/2.jpg", "cat/3.jpg", "./", "/")
    assert [record.path for record in scan_tar(io.BytesIO(content), "x.tar")] == ["cat/1.jpg", "cat/2.jpg", "cat/3.jpg"]


@pytest.mark.parametrize("at", [1024, 1024 + 150, 2048 + 3])
def test_a_damaged_header_is_no_end(at: int) -> None:
    """tarfile ends there without a word, and what follows would be missing."""
    content = tar_of("1.jpg", "2.jpg", "3.jpg")
    content[at] ^= 1
    with pytest.raises(CannotPackError, match=r"x\.tar is damaged"):
        list(scan_tar(io.BytesIO(content), "x.tar"))


@pytest.mark.parametrize("keep", [1100, 2048 + 100])
def test_a_header_that_is_cut_off_is_no_end(keep: int) -> None:
    with pytest.raises(CannotPackError, match=r"x\.tar is .*cut off"):
        list(scan_tar(io.BytesIO(tar_of("1.jpg", "2.jpg", "3.jpg")[:keep]), "x.tar"))


def test_an_archive_without_its_end_is_whole() -> None:
    content = tar_of("1.jpg", "2.jpg")[: 4 * 512]
    assert [record.path for record in scan_tar(io.BytesIO(content), "x.tar")] == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize("size", [b"\x80" + (2**60).to_bytes(11, "big"), b"\xff" * 12, b"77777777777\0"])
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_no_memory_is_taken_for_a_size_that_the_file_does_not_have(size: bytes, kind: bytes) -> None:
    content = tar_of("1.jpg", "2.jpg")
    header = bytes(content[1024:1536])
    content[1024:1536] = with_sum(header[:124] + size + header[136:156] + kind + header[157:])
    file = io.BufferedReader(io.BytesIO(content))  # type: ignore[arg-type]  # takes memory for all that is asked for
    words = r"x\.tar is cut off: \d+ of .* bytes of 2\.jpg" if kind == tarfile.REGTYPE else r"x\.tar is"
    with pytest.raises(CannotPackError, match=words):
        list(scan_tar(file, "x.tar"))
