"""A mount shows what its origin has, reads it once, and outlives the death of any of its processes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import prefeed
import prefeed.files
from leaks import wait_until
from mounting import (
    CAP_SYS_ADMIN,
    daemon_of,
    dead_fuse,
    drop_capability,
    has_ended,
    mounted,
    needs_root,
    with_own_mounts,
)
from prefeed.config import resolve
from prefeed.errors import EmptyListingError, MountError, UnknownSchemeError
from prefeed.fuse.device import missing, mount_directly, mounted_at
from prefeed.mount.request import KIND
from prefeed.mount.starting import start_mount, stop_mount
from process.children import stopped
from process.conditions import kill, server_pid, status, wait_for
from sandbox import Sandbox
from servers import FileServer, Handler, http_server, write_index
from slow_files import slow_files, write_files

pytestmark = pytest.mark.usefixtures("sandbox")

MIB = 1024 * 1024
SMALL = bytes(range(256)) * 300
MIDDLE = bytes(range(251)) * 20_000  # 5 MB: larger than one request, and fetched whole
LARGE = os.urandom(64 * 1024) * 320  # 20 MiB: read in parts
BLOCKS = [f"bytes={start}-{start + MIB - 1}" for start in range(0, len(LARGE), MIB)]
MANY = 10_000
RELEASE = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
needs_new_kernel = pytest.mark.skipif(RELEASE < (6, 9), reason="only Linux 6.9 and later can do that")
ODD = os.fsdecode(b"\xff\xfe b")


@pytest.fixture
def point(sandbox: Sandbox) -> Path:
    return sandbox.root / "mnt"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    files = {"a.bin": SMALL, "deep/er/b c.txt": b"text", "deep/x": b"x", "empty": b"", "middle": MIDDLE, ODD: b"odd"}
    return write_files(tmp_path / "source", files)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[FileServer]:
    root = write_files(tmp_path / "web", {"a.bin": SMALL, "b.bin": SMALL[::-1], "middle": MIDDLE, "large": LARGE})
    with http_server(root, webdav=True) as server:
        server.ranges = True
        yield server


def gate(server: FileServer, path: str) -> threading.Event:
    """Have requests of a file wait for the event."""
    event = threading.Event()

    def answer(handler: Handler) -> None:
        assert event.wait(120)
        data = (server.directory / path.lstrip("/")).read_bytes()
        status = (server.directory / path.lstrip("/")).stat()
        handler.reply(200, data, {"ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"'})

    server.answers[path] = answer
    return event


@contextlib.contextmanager
def blocks_held(server: FileServer) -> Iterator[list[str]]:
    """Answer requests of whole blocks of the large file after the block only; give those that have waited too long for that."""
    released = threading.Event()
    late: list[str] = []
    status = (server.directory / "large").stat()

    def answer(handler: Handler) -> None:
        span = handler.headers["Range"]
        if span in BLOCKS and not released.wait(120):
            late.append(span)
        first, last = map(int, span.removeprefix("bytes=").split("-"))
        headers = {
            "ETag": f'"{status.st_mtime_ns:x}-{status.st_size:x}"',
            "Content-Range": f"bytes {first}-{last}/{len(LARGE)}",
        }
        handler.reply(206, LARGE[first : last + 1], headers)

    server.answers["/large"] = answer
    try:
        yield late
    finally:
        del server.answers["/large"]
        released.set()


def gets(server: FileServer, path: str) -> list[str]:
    """Return the ranges of a file that were asked for, "" for all of it."""
    return [
        headers.get("range", headers.get("Range", ""))
        for method, where, headers in server.requests
        if (method, where) == ("GET", path)
    ]


def num_bytes(ranges: list[str]) -> int:
    """Return how many bytes these ranges have."""
    spans = [span.removeprefix("bytes=").split("-") for span in ranges]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def require_fetched_once(ranges: list[str], *, num_readers: int) -> None:
    """Each block was fetched once at most, and hardly anything else."""
    assert len(ranges) >= len(BLOCKS) // 2
    assert all(ranges.count(block) <= 1 for block in BLOCKS)
    assert num_bytes(ranges) <= 1.1 * len(LARGE) + num_readers * MIB


def test_it_shows_what_the_origin_has(source: Path, point: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with mounted(source, point, links={"logs": str(tmp_path / "out")}):
        files = {path.relative_to(source): path for path in source.rglob("*") if path.is_file()}
        shown = {path.relative_to(point): path for path in point.rglob("*") if path.is_file()}
        assert set(shown) == set(files)
        for name, path in shown.items():
            assert path.read_bytes() == files[name].read_bytes()
            found, expected = path.stat(), files[name].stat()
            assert (found.st_size, found.st_mtime_ns) == (expected.st_size, expected.st_mtime_ns)
            assert stat.S_IMODE(found.st_mode) == 0o444
        assert sorted(os.listdir(os.fsencode(point))) == sorted([*os.listdir(os.fsencode(source)), b"logs"])
        assert os.statvfs(point).f_files == len(files)
        assert not (point / "none").exists()
        (point / "logs" / "epoch").write_bytes(b"written")
        assert (tmp_path / "out" / "epoch").read_bytes() == b"written"
        for change in (lambda: (point / "new").write_bytes(b""), lambda: (point / "a.bin").unlink()):
            with pytest.raises(OSError) as caught:
                change()
            assert caught.value.errno == errno.EROFS
            del caught
    assert mounted_at(os.fspath(point)) is None
    assert list(point.iterdir()) == []


def test_each_file_is_opened_at_the_origin_once_however_it_is_read(source: Path, point: Path) -> None:
    with slow_files(source) as slow, mounted(slow.path, point):
        for _ in range(2):
            assert (point / "a.bin").read_bytes() == SMALL
            with (point / "a.bin").open("rb", buffering=0) as file:
                assert b"".join(iter(lambda: file.read(4000), b"")) == SMALL
                assert os.pread(file.fileno(), 100, len(SMALL) - 10) == SMALL[-10:]
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                    assert view[:] == SMALL
        assert slow.opens_by_file() == {"a.bin": 1}


def test_a_reader_with_much_room_gets_all_of_a_file_though_the_kernel_asks_for_little(
    point: Path, tmp_path: Path
) -> None:
    files = {f"{number}.bin": SMALL for number in range(19)} | {"large": MIDDLE[: 7 * MIB // 8]}
    with mounted(write_files(tmp_path / "source", files), point):
        (mount,) = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {point} " in line]
        assert f"max_read={128 * 1024}" in mount
        for name, expected in files.items():
            with (point / name).open("rb", buffering=0) as file:
                assert file.read(MIB) == expected
                assert file.read(MIB) == b""


def test_many_readers_get_their_own_bytes(point: Path, tmp_path: Path) -> None:
    names = [f"{i:03d}" for i in range(200)]
    write_files(tmp_path / "many", {name: name.encode() * 1000 for name in names})
    with mounted(tmp_path / "many", point), ThreadPoolExecutor(8) as pool:
        for _ in range(2):
            for name, data in zip(names, pool.map(lambda name: (point / name).read_bytes(), names), strict=True):
                assert data == name.encode() * 1000


@needs_root
@needs_new_kernel
def test_polars_scans_parquet_over_a_mount(web: FileServer, point: Path) -> None:
    columns = {"id": range(50_000), "noise": list(os.urandom(50_000))}
    pq.write_table(pa.table(columns), web.directory / "x.parquet", row_group_size=10_000)
    write_index(web.directory)
    program = (
        "import sys, polars as pl; table = pl.scan_parquet(sys.argv[1]).filter(pl.col('id') >= 49_998).select('id').collect(); "
        "print(table['id'].to_list(), pl.read_parquet(sys.argv[1]).height)"
    )
    with mounted(web.url, point):
        done = subprocess.run([sys.executable, "-c", program, str(point / "x.parquet")], capture_output=True, text=True)
    assert done.stdout == "[49998, 49999] 50000\n", done.stderr
    assert gets(web, "/x.parquet")


def test_the_kernel_reads_large_files_of_this_machine_by_itself(source: Path, point: Path) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        mounted(source, point) as mounting,
        (point / "middle").open("rb", buffering=0) as file,
    ):
        if "the kernel refuses to read them" in mounting.log.read_text():
            pytest.skip("the kernel lets no process here have it read files")
        with stopped(daemon_of(mounting)):
            # In a thread: a read that the daemon would have to answer is over when it goes on.
            assert pool.submit(os.pread, file.fileno(), len(MIDDLE), 0).result(timeout=60) == MIDDLE
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                assert view[MIB : 2 * MIB] == MIDDLE[MIB : 2 * MIB]
        kill(daemon_of(mounting))
        assert os.pread(file.fileno(), 100, MIB) == MIDDLE[MIB : MIB + 100]
        assert (point / "middle").read_bytes() == MIDDLE  # a second open, and the daemon is another one


def test_objects_of_a_store_come_whole_or_in_parts(web: FileServer, point: Path) -> None:
    with mounted(web.url, point):
        web.requests.clear()
        for _ in range(2):
            assert (point / "middle").read_bytes() == MIDDLE
        assert gets(web, "/middle") == [""]
        assert (point / "large").read_bytes() == LARGE
        require_fetched_once(gets(web, "/large"), num_readers=1)


def test_readers_of_a_large_object_share_its_blocks(web: FileServer, point: Path) -> None:
    with ThreadPoolExecutor(3) as pool, mounted(web.url, point):
        for data in pool.map(lambda _: (point / "large").read_bytes(), range(3)):
            assert data == LARGE
        with contextlib.closing(prefeed.files), prefeed.open(f"{web.url}/large") as file:
            assert file.read() == LARGE
        require_fetched_once(gets(web, "/large"), num_readers=3)


def test_a_reader_that_jumps_costs_what_it_reads_until_all_of_the_object_is_worth_it(
    web: FileServer, point: Path
) -> None:
    places = [(number * 37) % 20 * MIB + number * 4096 for number in range(80)]
    with mounted(web.url, point), (point / "large").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)

        def num_requests(chosen: list[int], beside: int = 0) -> int:
            """Read 4 KiB at these places, or so many bytes behind them; return how many requests that took."""
            before = len(gets(web, "/large"))
            for place in chosen:
                start = place + beside
                assert os.pread(file.fileno(), 4096, start) == LARGE[start : start + 4096]
            return len(gets(web, "/large")) - before

        assert num_requests(places[:60])
        assert num_bytes(gets(web, "/large")) <= 1.1 * 60 * 4096 + MIB
        with blocks_held(web) as late:
            num_requests(places[60:])
            wait_for(
                lambda: len({span for span in gets(web, "/large") if span in BLOCKS}) > 1, "all of it is asked for"
            )
            assert num_requests(places[:20], beside=80 * 4096)
            assert not late, "a reader has waited for a block"
        wait_for(lambda: len({span for span in gets(web, "/large") if span in BLOCKS}) == 20, "all of it is fetched")
        unread = itertools.count(4096 * 80, 4096)
        wait_for(lambda: num_requests(places, next(unread)) == 0, "all reads are answered from the tier")


def test_large_objects_are_read_without_the_node_server(web: FileServer, point: Path) -> None:
    with mounted(web.url, point), (point / "large").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), MIB, 0) == LARGE[:MIB]
        kill(server_pid())
        assert os.pread(file.fileno(), len(LARGE), MIB) == LARGE[MIB:]
        assert os.pread(file.fileno(), MIB, 0) == LARGE[:MIB]


@needs_new_kernel
def test_a_read_of_a_large_object_outlives_the_daemon(web: FileServer, point: Path) -> None:
    with ThreadPoolExecutor(1) as pool, mounted(web.url, point) as mounting:
        released = threading.Event()
        spans: list[str] = []

        def answer(handler: Handler) -> None:
            span = handler.headers.get("Range", "")
            if span:
                spans.append(span)
                assert released.wait(120)
            del web.answers["/large"]
            handler.do_GET()

        web.answers["/large"] = answer
        daemon = daemon_of(mounting)
        result = pool.submit((point / "large").read_bytes)
        try:
            wait_for(lambda: gets(web, "/large"), "a block is asked for")
            kill(daemon)
            wait_for(lambda: daemon_of(mounting) not in (0, daemon), "another daemon")
        finally:
            released.set()
        assert result.result(timeout=120) == LARGE


def test_what_a_program_reads_next_is_there_before(point: Path, tmp_path: Path) -> None:
    names = [f"{i:03d}" for i in range(100)]
    write_files(tmp_path / "many", {name: name.encode() * 1000 for name in names})
    with mounted(tmp_path / "many", point):
        for name in names[:40]:
            assert (point / name).read_bytes() == name.encode() * 1000
        wait_for(lambda: prefeed.statistics().origin_requests == 100, "the server has fetched what follows")
        for name in names[40:]:
            assert (point / name).read_bytes() == name.encode() * 1000
    counts = prefeed.statistics()
    assert counts.origin_requests == 100
    assert counts.hits >= 60


def test_another_version_is_an_error_and_never_a_mixture(web: FileServer, point: Path) -> None:
    with mounted(web.url, point):
        sizes = {"a.bin": len(SMALL), "b.bin": len(SMALL) // 2, "middle": len(MIDDLE), "large": len(LARGE)}
        for name, size in sizes.items():
            (web.directory / name).write_bytes(bytes(size))
            os.utime(web.directory / name, ns=(1, 1))
        for name in sizes:
            with (point / name).open("rb", buffering=0) as file, pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 100, 50)
            assert caught.value.errno == errno.ESTALE
            del caught
        assert (point / "a.bin").read_bytes() == bytes(len(SMALL))  # whole, and of one version


@pytest.mark.parametrize("has_server", [True, False])
def test_parts_of_a_large_object_whose_version_was_not_listed_are_of_one(
    tmp_path: Path, point: Path, has_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index file lists no versions: the first one that is seen is the one of the mount."""
    monkeypatch.setenv("PREFEED_ENABLED", str(int(has_server)))
    root = write_files(tmp_path / "web", {"large": LARGE})
    write_index(root)
    with http_server(root) as server:
        server.ranges = True
        with mounted(server.url, point), (point / "large").open("rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), 4096, 0) == LARGE[:4096]
            (root / "large").write_bytes(bytes(len(LARGE)))
            os.utime(root / "large", ns=(1, 1))
            with pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 4096, 10 * MIB)
            assert caught.value.errno == errno.ESTALE
            del caught


@pytest.mark.parametrize("has_server", [True, False])
def test_the_next_daemon_knows_which_version_was_read(
    tmp_path: Path, point: Path, has_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_ENABLED", str(int(has_server)))
    files = {"middle": MIDDLE, "large": LARGE}
    root = write_files(tmp_path / "web", files)
    write_index(root)
    with http_server(root) as server, contextlib.ExitStack() as stack:
        server.ranges = True
        mounting = stack.enter_context(mounted(server.url, point))
        opened = {name: stack.enter_context((point / name).open("rb", buffering=0)) for name in files}
        for name, file in opened.items():
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            assert os.pread(file.fileno(), 4096, 0) == files[name][:4096]
        for name, data in files.items():
            (root / name).write_bytes(bytes(len(data)))
            os.utime(root / name, ns=(1, 1))
        daemon = daemon_of(mounting)
        kill(daemon)
        wait_for(lambda: daemon_of(mounting) not in (0, daemon), "another daemon")
        for name, file in opened.items():
            try:
                data = os.pread(file.fileno(), 4096, 3 * MIB)
            except OSError as err:
                assert err.errno == errno.ESTALE  # noqa: PT017 - old bytes are right as well
            else:
                assert data == files[name][3 * MIB : 3 * MIB + 4096], name


def test_another_file_of_the_size_and_time_of_a_large_one_is_another_version(source: Path, point: Path) -> None:
    with mounted(source, point):
        other = source / "deep" / "other"
        other.write_bytes(MIDDLE[::-1])
        shutil.copystat(source / "middle", other)
        other.replace(source / "middle")
        with (point / "middle").open("rb", buffering=0) as file, pytest.raises(OSError) as caught:
            os.pread(file.fileno(), 100, 0)
        assert caught.value.errno == errno.ESTALE
        del caught


def test_a_large_object_that_becomes_shorter_is_an_error_from_there_on(web: FileServer, point: Path) -> None:
    with mounted(web.url, point), (point / "large").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        assert os.pread(file.fileno(), 4096, 0) == LARGE[:4096]
        assert os.pread(file.fileno(), 4096, len(LARGE) - 100) == LARGE[-100:]
        assert os.pread(file.fileno(), 4096, len(LARGE)) == b""
        (web.directory / "large").write_bytes(bytes(5 * MIB))
        for place in (10 * MIB, 2 * MIB):  # behind the new end, and before it
            with pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 4096, place)
            assert caught.value.errno == errno.ESTALE
            del caught
        assert os.pread(file.fileno(), 4096, MIB // 2) == LARGE[MIB // 2 : MIB // 2 + 4096]  # cached


def test_ten_thousand_open_files_take_nothing_of_the_daemon(web: FileServer, point: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limits[1] < MANY + 500:
        pytest.skip(f"this user may open {limits[1]} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    files: list[int] = []
    try:
        with mounted(web.url, point) as mounting:
            held = f"/proc/{daemon_of(mounting)}/fd"
            try:
                for name, data in (("a.bin", SMALL), ("large", LARGE)):
                    assert (point / name).read_bytes() == data
                before = len(os.listdir(held))
                files += [os.open(point / name, os.O_RDONLY) for _ in range(MANY // 2) for name in ("a.bin", "large")]
                assert len(os.listdir(held)) <= before + 16  # of threads that have just ended a read
                for number in range(0, MANY, 201):
                    assert os.pread(files[number], 1000, 40_000) == (SMALL, LARGE)[number % 2][40_000:41_000]
            finally:
                for file in files:
                    os.close(file)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_reader_that_waits_delays_no_other(web: FileServer, point: Path) -> None:
    with ThreadPoolExecutor(12) as pool, mounted(web.url, point):
        released = gate(web, "/a.bin")
        waiting = [pool.submit((point / "a.bin").read_bytes) for _ in range(12)]
        try:
            wait_for(lambda: gets(web, "/a.bin"), "the daemon has taken a read")
            assert (point / "b.bin").read_bytes() == SMALL[::-1]
            assert (point / "middle").read_bytes() == MIDDLE
        finally:
            released.set()
        assert [future.result(timeout=60) for future in waiting] == [SMALL] * 12
        assert len(gets(web, "/a.bin")) == 1


@needs_new_kernel
def test_a_read_under_way_outlives_the_daemon(web: FileServer, point: Path) -> None:
    with ThreadPoolExecutor(1) as pool, mounted(web.url, point) as mounting:
        released = gate(web, "/a.bin")
        daemon = daemon_of(mounting)
        result = pool.submit((point / "a.bin").read_bytes)
        try:
            wait_for(lambda: gets(web, "/a.bin"), "the daemon has taken the read")
            kill(daemon)
            wait_for(lambda: daemon_of(mounting) not in (0, daemon), "another daemon")
        finally:
            released.set()
        assert result.result(timeout=60) == SMALL
        assert (point / "b.bin").read_bytes() == SMALL[::-1]


def test_reads_continue_without_the_node_server(web: FileServer, point: Path) -> None:
    with mounted(web.url, point):
        assert (point / "a.bin").read_bytes() == SMALL
        kill(server_pid())
        assert (point / "a.bin").read_bytes() == SMALL
        assert (point / "b.bin").read_bytes() == SMALL[::-1]
        wait_for(lambda: status() is not None, "the mount has started another server")


def test_a_mount_in_use_is_taken_away_lazily_only(source: Path, point: Path) -> None:
    with mounted(source, point) as mounting:
        with (point / "a.bin").open("rb", buffering=0) as file:
            with pytest.raises(MountError, match=r"is in use: .*--lazy"):
                stop_mount(point)
            stop_mount(point, lazily=True)
            assert list(point.iterdir()) == []
            assert file.read(len(SMALL)) == SMALL
            assert mounting.holder.poll() is None
        assert mounting.holder.wait(60) == 0
    with mounted(source, point) as mounting:
        stop_mount(point)
        assert mounting.holder.wait(60) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_mounted_after_the_holder_ends(source: Path, point: Path, number: signal.Signals) -> None:
    with mounted(source, point) as mounting:
        daemon = daemon_of(mounting)
        with (point / "a.bin").open("rb", buffering=0) as file:
            assert file.read(10) == SMALL[:10]
            mounting.holder.send_signal(number)
            wait_for(lambda: mounted_at(os.fspath(point)) is None, "it is unmounted")
            if number == signal.SIGKILL:
                assert os.pread(file.fileno(), len(SMALL), 0) == SMALL
        wait_for(lambda: has_ended(daemon), "the daemon has ended")


@needs_root
def test_root_without_the_right_to_mount_is_told_what_lacks(source: Path, point: Path) -> None:
    """As in a container."""
    if missing() is not None:
        pytest.skip("this machine has no FUSE")
    point.mkdir()
    with_own_mounts(_without_rights, source, point)


def _without_rights(source: Path, point: Path) -> None:
    drop_capability(CAP_SYS_ADMIN)
    with pytest.raises(PermissionError) as caught:
        mount_directly(os.fspath(point), subtype=KIND, shown=os.fspath(source), others=False)
    for words in ("CAP_SYS_ADMIN", "--device /dev/fuse", "--cap-add SYS_ADMIN", "fusermount3"):
        assert words in str(caught.value)


def test_a_daemon_that_dies_again_and_again_is_given_up(source: Path, point: Path) -> None:
    with mounted(source, point) as mounting:
        seen = [0]
        while wait_until(
            lambda: mounting.holder.poll() is not None or daemon_of(mounting) not in (0, seen[-1]), timeout_seconds=60
        ):
            if mounting.holder.poll() is not None:
                break
            seen.append(daemon_of(mounting))
            with contextlib.suppress(ProcessLookupError):
                os.kill(seen[-1], signal.SIGKILL)
        assert mounting.holder.wait() != 0
        assert mounted_at(os.fspath(point)) is None
        assert "its daemon has ended 5 times" in mounting.log.read_text()


def test_what_stands_in_the_way_is_said(source: Path, point: Path, tmp_path: Path) -> None:
    if missing() is not None:
        pytest.skip("no FUSE")
    config = resolve()
    point.mkdir()
    (tmp_path / "none").mkdir()
    places = {
        source: r"is not empty \(5 names, such as '",
        source / "a.bin": "is not a directory: name an empty one",
        tmp_path / "absent": r"does not exist: create the directory first \(mkdir -p ",
    }
    for place, words in places.items():
        with pytest.raises(MountError, match=words):
            start_mount(os.fspath(source), place, config)
    with pytest.raises(UnknownSchemeError):
        start_mount("nfs5://host/x", point, config)
    with pytest.raises(EmptyListingError):
        start_mount(os.fspath(tmp_path / "none"), point, config)
    with pytest.raises(MountError, match="has 'deep' already"):
        start_mount(os.fspath(source), point, config, links={"deep": os.fspath(tmp_path)})
    with pytest.raises(MountError, match="without slashes"):
        start_mount(os.fspath(source), point, config, links={"x/y": os.fspath(tmp_path)})
    with pytest.raises(MountError, match="is not a directory: create it first"):
        start_mount(os.fspath(source), point, config, links={"x": os.fspath(tmp_path / "absent")})
    with pytest.raises(MountError, match=f"nothing is mounted at {point}"):
        stop_mount(point)
    with mounted(source, point), pytest.raises(MountError, match=f"is already mounted at {point}; run `prefeed umount"):
        start_mount(os.fspath(source), point, config)


@needs_root
def test_a_dead_mount_of_prefeed_is_replaced_and_another_one_is_not(sandbox: Sandbox, tmp_path: Path) -> None:
    write_files(tmp_path / "source", {"a": b"a"})
    with_own_mounts(_in_own_mounts, tmp_path / "source", sandbox.root / "mnt")


def _in_own_mounts(source: Path, point: Path) -> None:
    with dead_fuse(point), pytest.raises(MountError, match="cannot be used: Transport endpoint is not connected"):
        start_mount(os.fspath(source), point, resolve())
    with mounted(source, point) as mounting:
        daemon = daemon_of(mounting)
        os.kill(mounting.holder.pid, signal.SIGSTOP)  # it cannot unmount
        os.kill(daemon, signal.SIGKILL)
        os.kill(mounting.holder.pid, signal.SIGKILL)
        mounting.holder.wait()
        wait_for(lambda: has_ended(daemon), "the daemon has ended")
        with pytest.raises(OSError, match=r"not connected|connection abort"):  # the latter while it ends
            os.listdir(point)
        found = mounted_at(os.fspath(point))
        assert found is not None
        assert found.kind == KIND
        with mounted(source, point):
            assert (point / "a").read_bytes() == b"a"


def test_statistics_count_what_a_mount_reads(source: Path, point: Path) -> None:
    with mounted(source, point):
        for _ in range(3):
            assert (point / "a.bin").read_bytes() == SMALL
    counts = prefeed.statistics()
    assert counts.origin_requests == 1
    assert counts.hits == 2
