"""``prefeed.open``: the bytes of any object, in blocks, whatever happens to it, to the server and to the process."""

from __future__ import annotations

import errno
import io
import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import prefeed
import servers
from limits import set_limits
from prefeed.client.block_file import BlockFile
from prefeed.client.blocks import blocks_of
from prefeed.config import current
from prefeed.errors import AccessDeniedError, ConfigError, ObjectChangedError, ObjectNotFoundError
from prefeed.files import close
from sandbox import Sandbox

BLOCK = 64 * 1024
SIZE = 20 * BLOCK + 321


def content(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def put(path: Path, data: bytes, second: int = 1_700_000_000) -> bytes:
    path.write_bytes(data)
    os.utime(path, (second, second))
    return data


@pytest.fixture
def root(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path))
    set_limits(monkeypatch, block_bytes=64 * 1024, start_seconds=120)
    yield tmp_path
    close()


@pytest.fixture
def data(root: Path) -> bytes:
    return put(root / "x.bin", content(SIZE))


def opened(root: Path, **options: Any) -> BlockFile:
    file = prefeed.open(root / "x.bin", **options)
    assert isinstance(file, BlockFile)
    return file


@pytest.mark.parametrize("has_server", [True, False])
def test_it_reads_as_a_file_does(root: Path, data: bytes, has_server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", str(int(has_server)))
    put(root / "lines.txt", lines := b"".join(b"%d\n" % number for number in range(30_000)))
    random = np.random.default_rng(3)
    for _ in range(2):
        with opened(root) as file, open(root / "x.bin", "rb") as plain:
            for _ in range(60):
                whence = int(random.integers(0, 3))
                offset = int(random.integers(-SIZE, SIZE)) if whence else int(random.integers(0, 2 * SIZE))
                if whence == 1:
                    offset = max(offset, -plain.tell())
                assert file.seek(offset, whence) == plain.seek(offset, whence)
                count = int(random.choice([0, 1, 100, 5000, BLOCK, 3 * BLOCK + 7, -1]))
                assert file.read(count) == plain.read(count)
                buffer = bytearray(int(random.choice([1, 70_000])))
                expected = bytearray(len(buffer))
                assert file.readinto(buffer) == plain.readinto(expected)
                assert buffer == expected
                seen = file._order.run_bytes
                assert plain.peek()[:10].startswith(file.peek()[:10]) or not file.peek()
                assert file._order.run_bytes == seen
                assert file.tell() == plain.tell()
            file.seek(0)
            assert file.read() == data
            assert file.read1(10) == file.read(5) == file.peek() == b""
            assert file.read_range(5, 10) == data[5:15]
            assert file.read_range(SIZE - 3, 10) == data[-3:]
            assert file.read_range(SIZE + 3, 10) == b""
            assert file.seek(-2, os.SEEK_END) == SIZE - 2
    with prefeed.open(root / "lines.txt") as file:
        assert list(file) == lines.splitlines(keepends=True)
        file.seek(0)
        assert io.TextIOWrapper(file).read() == lines.decode()  # type: ignore[arg-type]
    statistics = prefeed.statistics()
    assert statistics.origin_bytes == (SIZE + len(lines) if has_server else 0)
    assert statistics.hits > 100 or not has_server


def test_bad_calls(root: Path, data: bytes) -> None:
    file = opened(root)
    assert file.readable()
    assert file.seekable()
    assert not file.writable()
    for bad in (
        lambda: file.seek(-1),
        lambda: file.seek(0, 7),
        lambda: file.read_range(-1, 5),
        lambda: file.read_range_into(-BLOCK, memoryview(bytearray(5))),
    ):
        with pytest.raises(ValueError, match=r"negative|invalid whence|no range"):
            bad()
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with pytest.raises(io.UnsupportedOperation):
        file.fileno()
    file.close()
    file.close()
    for act in (
        file.read, file.tell, file.readable, file.seekable, file.writable, file.peek, lambda: file.seek(-1),
        lambda: file.readinto(bytearray(1)), lambda: file.read_range(-1, 1), lambda: next(file),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="closed file"):
            act()
    with pytest.raises(ConfigError, match="only reads"):
        prefeed.open(root / "x.bin", "wb")
    with pytest.raises(FileNotFoundError, match=r"none\.bin"):
        prefeed.open(root / "none.bin")
    with pytest.raises(IsADirectoryError):
        prefeed.open(root)


def test_a_file_of_a_local_disk_is_opened_as_it_is(root: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", "/nowhere")
    with prefeed.open(root / "x.bin") as file:
        assert isinstance(file, io.BufferedReader)
        assert (file.read_range(5, 10), file.tell()) == (data[5:15], 0)
        assert file.read_range(file.size - 3, 10) == data[-3:]
        assert file.read() == data
    with pytest.raises(ValueError, match="closed file"):
        file.read_range(0, 1)


def test_a_file_larger_than_the_memory_tier_streams_through(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_MEMORY", "16MiB")
    set_limits(monkeypatch, block_bytes=512 * 1024)
    expected = put(root / "x.bin", content(40 * 1024**2 + 5))
    for _ in range(2):
        with opened(root) as file:
            buffer = bytearray(1_000_000)
            at = 0
            while count := file.readinto(buffer):
                assert buffer[:count] == expected[at : at + count]
                at += count
            assert at == len(expected)
    statistics = prefeed.statistics()
    assert statistics.budget_bytes < 16 * 1024**2
    assert statistics.origin_requests > 80  # the second time as well, for not all of it was kept
    assert statistics.errors.keys() <= {"tier-full"}  # where the machine is short of memory, the tier has less


def test_readers_of_several_threads_and_processes_fetch_once(root: Path, data: bytes) -> None:
    def read() -> None:
        with opened(root) as file:
            assert file.read() == data
        close()

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=read) for _ in range(2)]
    for process in processes:
        process.start()
    with opened(root) as file:
        threads = [threading.Thread(target=_compare, args=(file, data, seed)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    statistics = prefeed.statistics()
    assert (statistics.origin_bytes, statistics.direct_reads) == (SIZE, 0)


def _compare(file: BlockFile, data: bytes, seed: int) -> None:
    random = np.random.default_rng(seed)
    for start in random.permutation(range(0, SIZE, BLOCK)).tolist():
        assert file.read_range(start, BLOCK) == data[start : start + BLOCK]


def test_an_open_file_continues_in_a_forked_child(root: Path, data: bytes) -> None:
    with opened(root) as file:
        assert file.read(3 * BLOCK + 100) == data[: 3 * BLOCK + 100]

        def go_on() -> None:
            assert file.read() == data[3 * BLOCK + 100 :]
            file.close()
            close()

        process = multiprocessing.get_context("fork").Process(target=go_on)
        process.start()
        process.join()
        assert process.exitcode == 0
        process.close()
        assert file.read() == data[3 * BLOCK + 100 :]


def test_an_object_that_changes_is_an_error_until_it_is_opened_again(root: Path, data: bytes) -> None:
    with opened(root) as file:
        assert file.read(10) == data[:10]
        changed = put(root / "x.bin", content(SIZE, seed=2), 1_700_000_500)
        assert file.read_range(BLOCK - 10, 10) == data[BLOCK - 10 : BLOCK]  # cached in its version
        with pytest.raises(ObjectChangedError, match=r"x\.bin changed while it was read") as caught:
            file.read_range(12 * BLOCK, 2 * BLOCK)
        assert caught.value.errno == errno.ESTALE
        with opened(root) as again:
            assert again.read() == changed
        put(root / "x.bin", content(100), 1_700_000_900)
        with pytest.raises(ObjectChangedError):
            file.read_range(15 * BLOCK, BLOCK)
        (root / "x.bin").unlink()
        with pytest.raises(FileNotFoundError):
            file.read_range(17 * BLOCK, BLOCK)


@pytest.mark.parametrize("has_server", [True, False])
def test_a_small_object_that_changes_is_an_error(root: Path, has_server: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a part of what it is now, nor bytes of another version than its size."""
    monkeypatch.setenv("PREFEED_ENABLED", str(int(has_server)))
    for size in (500, 1000, 1500):
        put(root / "small.bin", content(1000))
        with prefeed.open(root / "small.bin") as file:
            changed = put(root / "small.bin", content(size, seed=2), 1_700_000_000 + size)
            with pytest.raises(ObjectChangedError, match=r"small\.bin changed while it was read"):
                file.read()
        with prefeed.open(root / "small.bin") as file:
            assert file.read() == changed


@pytest.mark.parametrize("size", [100, SIZE])
def test_an_open_file_outlives_a_token(root: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", "0")
    expected = put(root / "x.bin", content(size))
    refused: list[str] = []

    def refuse(path: str, *_: int) -> None:
        refused.append(path)
        raise AccessDeniedError("its token has expired", path=path)

    with opened(root) as file:
        monkeypatch.setattr(file._opened.source._source, "fetch_range", refuse)
        assert file.read() == expected
        assert refused == ["x.bin"]


def test_readers_continue_without_a_server_and_with_the_next_one(root: Path, data: bytes, sandbox: Sandbox) -> None:
    from sandbox import end_all, servers_of

    with opened(root) as file:
        assert file.read(5 * BLOCK) == data[: 5 * BLOCK]
        end_all(servers_of(sandbox))
        assert file.read(5 * BLOCK) == data[5 * BLOCK : 10 * BLOCK]
        with opened(root) as another:
            assert another.read() == data
        assert file.read() == data[10 * BLOCK :]


def test_the_connection_to_a_server_that_has_ended_is_closed(root: Path, data: bytes, sandbox: Sandbox) -> None:
    from sandbox import end_all, servers_of

    with opened(root) as file:
        assert file.read(BLOCK) == data[:BLOCK]
    first = blocks_of(current())._control
    assert first is not None
    end_all(servers_of(sandbox))
    put(root / "y.bin", content(BLOCK))
    with prefeed.open(root / "y.bin") as file:
        assert file.read() == content(BLOCK)
    assert blocks_of(current())._control is not first
    assert first.is_closed


def test_ten_thousand_open_files_hold_no_descriptors(root: Path, data: bytes) -> None:
    for number in range(10):
        put(root / f"{number}.bin", data[number : number + 3 * BLOCK])
    with prefeed.open(root / "0.bin") as first:
        first.read(1)
    before = len(os.listdir("/proc/self/fd"))
    files = [prefeed.open(root / f"{number % 10}.bin") for number in range(10_000)]
    for number in range(0, 10_000, 100):
        assert files[number].read(1) == data[number % 10 : number % 10 + 1]
    assert len(os.listdir("/proc/self/fd")) <= before + 10
    for file in files:
        file.close()


def _decoded(paths: list[Path]) -> io.TextIOWrapper:
    return io.TextIOWrapper(prefeed.open(paths[0], readahead=True), encoding="latin-1", newline="\n")  # type: ignore[arg-type]


@pytest.mark.parametrize("holder", [prefeed.open, _decoded, prefeed.shards])
def test_a_file_that_is_collected_waits_for_no_lock(root: Path, data: bytes, holder: Callable[[Any], Any]) -> None:
    """Nor one that is closed by what holds it, as that is collected."""
    files = [opened(root, readahead=True) if holder is prefeed.open else holder([root / "x.bin"])]
    next(files[0])
    blocks = blocks_of(current())
    connection = blocks._control
    assert connection is not None
    collector = threading.Thread(target=files.clear)
    with blocks._lock, connection._lock:  # as if a finalizer ran in the middle of a call of another thread
        collector.start()
        collector.join(60)
        has_waited = collector.is_alive()
    collector.join()
    assert not has_waited
    with opened(root) as file:
        assert file.read() == data


def test_a_thread_that_reads_between_the_lines_of_another_ones_read(root: Path, data: bytes) -> None:
    """After each line of it another thread may read: here it does after one of them, elsewhere in the file."""
    elsewhere = 9 * BLOCK
    with opened(root) as file:
        for due in range(12):
            assert file.read_range(0, 100) == data[:100]
            lines = itertools.count()

            def trace(frame: FrameType, event: str, _: Any, due: int = due, lines: Iterator[int] = lines) -> Any:
                if frame.f_code is BlockFile._bytes_at.__code__ and event == "line" and next(lines) == due:
                    for start, count in ((elsewhere, 20_000), (elsewhere + 20_000, 100)):
                        assert file.read_range(start, count) == data[start : start + count]
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                found = file.read_range(300, 300)
            finally:
                sys.settrace(before)
            assert found == data[300:600]


def test_credentials_are_not_in_the_object(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.http_server(root) as server:
        server.ranges = True
        put(root / "x.bin", content(3 * BLOCK))
        url = server.url.replace("://", "://somebody:secret@")
        with prefeed.open(f"{url}/x.bin") as file:
            assert "secret" not in f"{file!r} {file.name} {vars(file)}"
            assert "secret" not in repr(file._opened)  # type: ignore[union-attr]
            assert file.read() == content(3 * BLOCK)
        assert all("Authorization" in headers or "authorization" in headers for _, _, headers in server.requests)
        close()


def test_a_reader_that_seeks_wildly_gets_hardly_more_than_it_asks_for(root: Path) -> None:
    size = 100 * BLOCK
    expected = put(root / "x.bin", content(size))
    with servers.http_server(root) as server:
        server.ranges = True
        with prefeed.open(f"{server.url}/x.bin") as file:
            random = np.random.default_rng(5)
            asked = 0
            for _ in range(60):
                offset, count = int(random.integers(0, size - 5000)), int(random.integers(1, 5000))
                file.seek(offset)
                assert file.read(count) == expected[offset : offset + count]
                asked += count
        assert server.sent_bytes <= 1.1 * asked + BLOCK
        close()


def test_names_of_any_characters_are_their_own(root: Path) -> None:
    (root / "d").mkdir()
    for number, name in enumerate(("a", "a?b", "a#b", "a%20b", "a b", "ä")):
        put(root / "d" / name, content(2 * BLOCK, seed=number))
    for number, name in enumerate(("a", "a?b", "a#b", "a%20b", "a b", "ä")):
        with prefeed.open(root / "d" / name) as file:
            assert file.read() == content(2 * BLOCK, seed=number)
    with servers.http_server(root) as server:
        server.ranges = True
        for number, name in enumerate(("a", "a%3Fb", "a%23b", "a%2520b", "a%20b", "%C3%A4")):
            with prefeed.open(f"{server.url}/d/{name}") as file:
                assert file.read() == content(2 * BLOCK, seed=number)
        with pytest.raises(ConfigError, match="%3F"):
            prefeed.open(f"{server.url}/d/a?b")
        close()


def test_a_server_that_runs_asks_for_the_object(root: Path) -> None:
    """It keeps connections; this process would have to open one."""
    expected = put(root / "x.bin", content(3 * BLOCK))
    with servers.http_server(root) as server:
        server.ranges = True
        for _ in range(2):
            with prefeed.open(f"{server.url}/x.bin") as file:
                assert file.read() == expected
            requests = [method for method, _, headers in server.requests if "bytes=0-0" not in headers.values()]
            assert requests.count("HEAD") == len(requests) - 3 > 0
            asked_here = blocks_of(current()).source(server.url)._source._store  # type: ignore[attr-defined]
            close()
        assert asked_here is None
        with pytest.raises(ObjectNotFoundError, match="none"):
            prefeed.open(f"{server.url}/none.bin")
        close()


def test_a_warm_up_in_blocks_is_what_open_reads(root: Path, data: bytes) -> None:
    from prefeed.client.node import NodeClient

    put(root / "small.bin", content(100))
    with NodeClient.connect(current()) as node:
        result = node.warm(f"blocks+file://{root}")
        assert (result.failed, result.resident) == (0, 22)
        before = node.statistics().origin_requests
        for name, expected in (("x.bin", data), ("small.bin", content(100))):
            with prefeed.open(root / name) as file:
                assert file.read() == expected
        assert node.statistics().origin_requests == before
        assert node.clear(str(root)).entries == 22
