"""Packs as an origin, on a directory, behind web servers and in a bucket; and the ranges that they stand on."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

import servers
from prefeed.config import Config, current, resolve
from prefeed.errors import (
    ObjectNotFoundError,
    SourceError,
    TransientSourceError,
    TruncatedBodyError,
    UnknownSchemeError,
)
from prefeed.sources import fork_proxy, objectstore
from prefeed.sources import packed as packed_module
from prefeed.sources.pack_index import INDEX_NAME, PackHeader, encode_index
from prefeed.sources.packed import PackedSource
from prefeed.sources.urls import canonical_url, open_plain_source, open_source, pack_url
from prefeed.system.files import write_durably
from prefeed.system.machine import process_mark
from source_contract import SourceContract, list_all

pytestmark = pytest.mark.usefixtures("sandbox")

_ticks = itertools.count(1)


def write_pack(directory: Path, objects: dict[str, bytes]) -> None:
    """Write objects as one data file with a gap before each, and its index, in the place of an older pack."""
    ordered = sorted((path.encode("utf-8", "surrogateescape"), content) for path, content in objects.items())
    offsets, blob = [], b""
    for _, content in ordered:
        blob += b"gap"
        offsets.append(len(blob))
        blob += content
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("data-*.bin"):
        old.unlink()
    name = f"data-{next(_ticks)}.bin"
    (directory / name).write_bytes(blob)
    paths = [path for path, _ in ordered]
    sizes = [len(content) for _, content in ordered]
    header = PackHeader(
        layout="webdataset", num_objects=len(paths), total_bytes=sum(sizes), path_bytes=sum(map(len, paths)),
        data_files=[name],
    )  # fmt: skip
    content = encode_index(
        header,
        sizes=np.array(sizes, np.uint64),
        offsets=np.array(offsets, np.uint64),
        checksums=np.array([xxh3_64_intdigest(content) for _, content in ordered], np.uint64),
        files=np.zeros(len(paths), np.uint32),
        starts=np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.uint64),
        paths=b"".join(paths),
    )
    write_durably(directory / INDEX_NAME, content)


class PackOrigin:
    """Objects that are packed when the suite looks."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url
        self.objects: dict[str, bytes] = {}
        self.sources: list[Any] = []

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        if self.sources:
            write_pack(self.directory, self.objects)

    def open(self) -> Any:
        write_pack(self.directory, self.objects)
        self.sources.append(open_source(self.url, current()))
        return self.sources[-1]

    def close(self) -> None:
        for source in self.sources:
            source.close()


class TestPackInDirectory(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[PackOrigin]:
        origin = PackOrigin(tmp_path / "a pack", pack_url(tmp_path / "a pack"))
        yield origin
        origin.close()


class TestPackBehindNginx(SourceContract):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> Iterator[PackOrigin]:
        root = tmp_path / "www"
        root.mkdir()
        with servers.nginx_server(root, tmp_path / "nginx") as url:
            origin = PackOrigin(root / "pack", f"pack+{url}/pack")
            yield origin
            origin.close()


class TestPackThroughHelperProcess(SourceContract):
    """As in a forked child of a process that has used the native client."""

    @pytest.fixture
    def origin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PackOrigin]:
        root = tmp_path / "www"
        root.mkdir()
        monkeypatch.setattr(objectstore, "_runtime_pid", 1)
        with servers.nginx_server(root, tmp_path / "nginx") as url:
            origin = PackOrigin(root / "pack", f"pack+{url}/pack")
            yield origin
            origin.close()


# ------------------------------------------------------------ ranges


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        yield url


@pytest.fixture(params=["directory", "nginx", "helper", "s3"])
def root(
    request: pytest.FixtureRequest, tmp_path: Path, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A source with the object ``dir/a.bin``: the bytes 0 to 255."""
    directory = tmp_path / "root"
    (directory / "dir").mkdir(parents=True)
    (directory / "dir" / "a.bin").write_bytes(bytes(range(256)))
    if request.param == "directory":
        yield from opened(str(directory))
    elif request.param == "s3":
        import boto3

        for name, value in {**servers.S3_ENVIRONMENT, "AWS_ENDPOINT_URL": s3_endpoint}.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=s3_endpoint, region_name="us-east-1")
        client.create_bucket(Bucket="ranges")
        client.put_object(Bucket="ranges", Key="below/dir/a.bin", Body=bytes(range(256)))
        yield from opened("s3://ranges/below")
        client.close()
    else:
        if request.param == "helper":
            monkeypatch.setattr(objectstore, "_runtime_pid", 1)
        with servers.nginx_server(directory, tmp_path / "nginx") as url:
            yield from opened(url)


def opened(url: str) -> Iterator[Any]:
    source = open_plain_source(url, current())
    yield source
    source.close()


@pytest.mark.parametrize(("offset", "size"), [(0, 256), (0, 1), (100, 56), (255, 1), (10, 0)])
def test_a_range_is_these_bytes(root: Any, offset: int, size: int) -> None:
    assert bytes(root.fetch_range("dir/a.bin", offset, size).data) == bytes(range(256))[offset : offset + size]


def test_a_range_has_the_version_of_the_whole(root: Any) -> None:
    assert root.fetch_range("dir/a.bin", 3, 4).version == root.fetch("dir/a.bin").version


@pytest.mark.parametrize(("offset", "size"), [(200, 57), (256, 1), (1000, 10), (0, 2**61), (2**61, 3)])
def test_a_range_beyond_the_end_is_an_error(root: Any, offset: int, size: int) -> None:
    with pytest.raises(SourceError, match=r"dir/a\.bin"):
        root.fetch_range("dir/a.bin", offset, size)


@pytest.mark.parametrize(("offset", "size"), [(0, 2**63 - 1), (0, 2**64 - 1), (2**64 - 1, 3)])
def test_no_memory_is_taken_for_what_a_file_does_not_have(tmp_path: Path, offset: int, size: int) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    with pytest.raises(TruncatedBodyError, match=r"a\.bin ends early"):
        open_plain_source(str(tmp_path), current()).fetch_range("a.bin", offset, size)


def test_a_range_of_nothing_is_named(root: Any) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"dir/none\.bin"):
        root.fetch_range("dir/none.bin", 0, 4)


def test_a_directory_has_no_ranges(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        open_plain_source(str(tmp_path.parent), current()).fetch_range(tmp_path.name, 0, 1)


def test_a_server_without_ranges_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    with servers.http_server(tmp_path) as server:  # it answers with the whole file
        source = open_plain_source(server.url, resolve(limits={"max_object_bytes": 99}))
        with pytest.raises(SourceError, match="does not send parts of files") as caught:
            source.fetch_range("a.bin", 10, 20)
        assert not caught.value.retryable
        source.close()


# ------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ("pack+file:///data/a b", "pack+file:///data/a%20b"),
        ("pack+file:///data/a%20b/", "pack+file:///data/a%20b"),
        ("PACK+S3://bucket/p/", "pack+s3://bucket/p"),
        ("pack+https://user:secret@host:443/p?q", "pack+https://host/p"),
        ("pack+file:///%FF", "pack+file:///%FF"),
    ],
)
def test_canonical_url(given: str, canonical: str) -> None:
    assert canonical_url(given) == canonical
    assert canonical_url(canonical) == canonical


def test_pack_url_takes_what_people_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pack_url("data") == f"pack+file://{tmp_path}/data"
    assert pack_url(tmp_path) == f"pack+file://{tmp_path}"
    assert pack_url("s3://user:secret@bucket/p") == "pack+s3://user:secret@bucket/p"
    assert pack_url("pack+s3://bucket/p") == "pack+s3://bucket/p"


def test_a_pack_lies_on_no_pack() -> None:
    with pytest.raises(UnknownSchemeError, match=r"write pack\+ or blocks\+ alone"):
        open_source("pack+pack+s3://bucket/p", current())


# ------------------------------------------------------------ what goes wrong


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[PackedSource]:
    write_pack(tmp_path / "p", {"a.bin": b"a" * 50, "b.bin": b"b" * 50})
    source = open_source(pack_url(tmp_path / "p"), current())
    assert isinstance(source, PackedSource)
    yield source
    source.close()


def data_file(directory: Path) -> Path:
    (found,) = directory.glob("data-*.bin")
    return found


def test_changed_bytes_are_never_given(packed: PackedSource, tmp_path: Path) -> None:
    file = data_file(tmp_path / "p")
    content = bytearray(file.read_bytes())
    content[content.index(b"aa") + 7] ^= 1
    file.write_bytes(content)

    with pytest.raises(TruncatedBodyError, match=r"a\.bin.*pack again") as caught:
        packed.fetch("a.bin")
    assert caught.value.retryable
    assert bytes(packed.fetch("b.bin").data) == b"b" * 50


def test_cut_off_data_is_never_given(packed: PackedSource, tmp_path: Path) -> None:
    os.truncate(data_file(tmp_path / "p"), 80)

    with pytest.raises(TruncatedBodyError, match=r"b\.bin"):
        packed.fetch("b.bin")


def test_lost_data_is_said_with_the_objects_path(packed: PackedSource, tmp_path: Path) -> None:
    data_file(tmp_path / "p").unlink()

    with pytest.raises(ObjectNotFoundError, match=r"a\.bin: .*data-"):
        packed.fetch("a.bin")


def test_a_pack_that_was_replaced_is_read_again(packed: PackedSource, tmp_path: Path) -> None:
    assert bytes(packed.fetch("a.bin").data) == b"a" * 50
    data_file(tmp_path / "p").unlink()
    write_pack(tmp_path / "p", {"a.bin": b"other", "c.bin": b"c"})

    assert bytes(packed.fetch("a.bin").data) == b"other"
    assert list_all(packed).keys() == {"a.bin", "c.bin"}


def test_without_an_index_there_is_no_pack(tmp_path: Path) -> None:
    source = open_source(pack_url(tmp_path), current())

    with pytest.raises(ObjectNotFoundError, match="not a finished pack"):
        list_all(source)
    source.close()


@pytest.mark.parametrize("at", [3, 20, 60, -3])
def test_a_damaged_index_is_refused(tmp_path: Path, at: int) -> None:
    write_pack(tmp_path / "p", {"a.bin": b"a" * 50})
    content = bytearray((tmp_path / "p" / INDEX_NAME).read_bytes())
    content[at] ^= 0x20
    (tmp_path / "p" / INDEX_NAME).write_bytes(content)
    source = open_source(pack_url(tmp_path / "p"), current())

    with pytest.raises(SourceError):
        source.fetch("a.bin")
    source.close()


def test_the_copy_of_the_index_is_checked(packed: PackedSource, tmp_path: Path) -> None:
    """What is in the home is used again, and made anew when it is damaged; older ones go."""
    packed.fetch("a.bin")
    (copy,) = (current().home / "packs").rglob("*.index")
    first = copy.stat().st_ino
    second = open_source(packed.url, current())
    second.fetch("a.bin")
    assert copy.stat().st_ino == first
    os.truncate(copy, 60)
    third = open_source(packed.url, current())
    assert bytes(third.fetch("a.bin").data) == b"a" * 50
    write_pack(tmp_path / "p", {"a.bin": b"other"})
    fourth = open_source(packed.url, current())
    fourth.fetch("a.bin")
    assert len(list((current().home / "packs").rglob("*.index"))) == 1
    for source in (second, third, fourth):
        source.close()


def test_what_a_killed_process_copied_goes_in_the_end(packed: PackedSource, tmp_path: Path) -> None:
    packed.fetch("a.bin")
    (copy,) = (current().home / "packs").rglob("*.index")
    old, young = (f".{copy.name}.{process_mark()}.{digit * 8}" for digit in "01")
    for name, age in ((old, 90_000), (young, 10), (".somebody-elses", 90_000)):
        file = copy.parent / name
        file.write_bytes(b"half")
        os.utime(file, (time.time() - age, time.time() - age))
    write_pack(tmp_path / "p", {"a.bin": b"other"})
    assert bytes(packed.fetch("a.bin").data) == b"other"
    left = {file.name for file in copy.parent.iterdir() if file.suffix != ".index"}
    assert left == {young, ".somebody-elses"}


def test_a_home_that_cannot_be_written_is_not_needed(tmp_path: Path) -> None:
    write_pack(tmp_path / "p", {"a.bin": b"a" * 50})
    (tmp_path / "home").write_bytes(b"a file")
    source = open_source(pack_url(tmp_path / "p"), Config(home=tmp_path / "home"))

    assert bytes(source.fetch("a.bin").data) == b"a" * 50
    source.close()


IN_A_FORKED_CHILD = """
import os, signal, sys
from prefeed.config import current
from prefeed.sources.urls import open_source
source = open_source(sys.argv[1], current())
assert bytes(source.fetch("a.bin").data) == b"a" * 50
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    try:
        assert bytes(source.fetch("b.bin").data) == b"b" * 50
        source.close()
        os._exit(0)
    finally:
        os._exit(1)
sys.exit(os.waitpid(pid, 0)[1])
"""


def test_after_a_fork(tmp_path: Path) -> None:
    root = tmp_path / "www"
    write_pack(root / "p", {"a.bin": b"a" * 50, "b.bin": b"b" * 50})
    with servers.nginx_server(root, tmp_path / "nginx") as url:
        command = [sys.executable, "-c", IN_A_FORKED_CHILD, f"pack+{url}/p"]
        assert subprocess.run(command, timeout=120, check=False).returncode == 0


def test_a_helper_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    monkeypatch.setattr(objectstore, "_runtime_pid", 1)
    with servers.nginx_server(tmp_path, tmp_path / "nginx") as url:
        source = open_plain_source(url, current())
        assert isinstance(source, objectstore.ObjectStoreSource)
        assert bytes(source.fetch_range("a.bin", 5, 3).data) == bytes([5, 6, 7])
        assert source._reader is not None
        process = source._reader._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(TransientSourceError, match="a new one is started"):
            source.fetch_range("a.bin", 5, 3)
        assert bytes(source.fetch_range("a.bin", 5, 3).data) == bytes([5, 6, 7])
        source.close()


def test_an_answer_that_was_not_awaited_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    monkeypatch.setattr(objectstore, "_runtime_pid", 1)

    def interrupted(pipe: Any) -> bytes:
        raise KeyboardInterrupt

    with servers.nginx_server(tmp_path, tmp_path / "nginx") as url:
        source = open_plain_source(url, current())
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(fork_proxy, "_read_frame", interrupted)
            source.fetch_range("a.bin", 5, 3)
        assert bytes(source.fetch_range("a.bin", 50, 3).data) == bytes([50, 51, 52])
        source.close()


def test_copies_that_another_node_may_have_mapped_stay(
    packed: PackedSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_module, "is_on_own_disk", lambda _: False)
    packed.fetch("a.bin")
    for content in (b"second", b"third"):
        (copy,) = (
            path for path in (current().home / "packs").rglob("*.index") if path.stat().st_mtime > time.time() - 60
        )
        age = 29 if content == b"second" else 31
        os.utime(copy, (0, time.time() - age * 24 * 3600))
        write_pack(tmp_path / "p", {"a.bin": content})
        source = open_source(packed.url, current())
        assert bytes(source.fetch("a.bin").data) == content
        source.close()
    ages = sorted((time.time() - path.stat().st_mtime) // 86400 for path in (current().home / "packs").rglob("*.index"))
    assert ages == [0, 29]
