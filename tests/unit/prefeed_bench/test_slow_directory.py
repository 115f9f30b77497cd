"""The slow directory shows what its source shows, counts, waits side by side, and is gone afterwards."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leaks import parent_of, read_proc, wait_until
from prefeed_bench import slow_directory as module
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.slow_directory import slow_directory
from slow_files import slow_files, write_files

pytestmark = pytest.mark.usefixtures("sandbox")

DATA = bytes(range(256)) * 5000  # more than one read of the kernel


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = write_files(tmp_path / "source", {"a.bin": DATA, "deep/er/ö b.txt": b"text", "empty": b""})
    (root / "none").mkdir()
    (root / "link").symlink_to("deep/er")
    return root


def mount_type(path: Path) -> str:
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return next((words[words.index("-") + 1] for words in lines if words[4] == str(path)), "")


def tree(root: Path) -> dict[str, object]:
    """Everything below root: type and mode, size, time, and bytes."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        data = path.read_bytes() if path.is_file() else None
        where = str(path.relative_to(root))
        found[where] = (facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_nlink, facts.st_uid, data)
    return found


def test_it_shows_what_the_source_shows(source: Path) -> None:
    with slow_files(source) as slow:
        assert tree(slow.path) == tree(source)
        assert os.readlink(slow.path / "link") == "deep/er"
        assert sorted(os.listdir(slow.path)) == sorted(os.listdir(source))


def test_long_listings_are_complete(tmp_path: Path) -> None:
    names = {f"{i:05d}-{'x' * (i % 200)}" for i in range(3000)}
    root = write_files(tmp_path / "many", dict.fromkeys(names, b""))
    with slow_files(root) as slow:
        assert set(os.listdir(slow.path)) == names
        assert {entry.name for entry in os.scandir(slow.path) if entry.is_file()} == names


def test_the_kernel_takes_it_for_a_network_file_system(source: Path) -> None:
    with slow_files(source) as slow:
        assert mount_type(slow.path) == "fuse.slow"


def test_opens_and_reads_are_counted_by_file(source: Path) -> None:
    with slow_files(source) as slow:
        assert (slow.opens(), slow.reads()) == (0, 0)
        for _ in range(3):
            (slow.path / "a.bin").read_bytes()
        (slow.path / "link" / "ö b.txt").read_bytes()
        (slow.path / "a.bin").stat()
        os.listdir(slow.path)

        assert slow.opens_by_file() == {"a.bin": 3, "deep/er/ö b.txt": 1}
        assert slow.opens() == 4
        assert set(slow.reads_by_file()) == {"a.bin", "deep/er/ö b.txt"}


def test_bytes_in_the_page_cache_are_not_asked_for_again(source: Path) -> None:
    with slow_files(source) as slow:
        (slow.path / "a.bin").read_bytes()
        reads = slow.reads()
        assert (slow.path / "a.bin").read_bytes() == DATA
        assert slow.reads() == reads


def test_any_piece_of_a_file_can_be_read(source: Path) -> None:
    with slow_files(source) as slow, (slow.path / "a.bin").open("rb") as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == DATA[-10:]
        assert os.pread(file.fileno(), 7, 4093) == DATA[4093:4100]
        assert os.pread(file.fileno(), 7, len(DATA)) == b""


def test_opens_wait_side_by_side(source: Path) -> None:
    # Were they to wait in turn, 50 opens of 0.2 s would take 10 s; which thread is slow to start does not matter.
    opening = threading.Barrier(50)

    def read() -> bytes:
        opening.wait()
        return (slow.path / "deep/er/ö b.txt").read_bytes()

    with slow_files(source, open_seconds=0.2) as slow, ThreadPoolExecutor(50) as threads:
        pending = [threads.submit(read) for _ in range(50)]
        assert wait_until(lambda: slow.opens() == 50, timeout_seconds=60)
        assert [done.result() for done in pending] == [b"text"] * 50


def test_a_read_takes_its_time_and_what_the_kernel_has_takes_none(source: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        with slow_files(source, read_seconds=600) as slow, (slow.path / "a.bin").open("rb", buffering=0) as file:
            pending = threads.submit(os.pread, file.fileno(), 7, 0)
            assert wait_until(lambda: slow.reads() == 1, timeout_seconds=60)
            (slow.path / "deep/er/ö b.txt").open("rb").close()
            assert not pending.done()
        with pytest.raises(OSError):
            pending.result(timeout=60)
    with slow_files(source, read_seconds=0.01) as slow, (slow.path / "a.bin").open("rb", buffering=0) as file:
        assert [os.pread(file.fileno(), 7, 0) for _ in range(3)] == [DATA[:7]] * 3
        assert slow.reads() == 1


def test_an_open_takes_its_time_and_nothing_else_does(source: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        with slow_files(source, open_seconds=600) as slow:
            pending = threads.submit((slow.path / "a.bin").open, "rb")
            assert wait_until(lambda: slow.opens() == 1, timeout_seconds=60)
            assert (slow.path / "deep/er/ö b.txt").stat().st_size == 4
            assert len(os.listdir(slow.path)) == 5
            assert not pending.done()
        with pytest.raises(OSError):
            pending.result()


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        (lambda root: (root / "nothing").read_bytes(), errno.ENOENT),
        (lambda root: (root / "a.bin" / "below").read_bytes(), errno.ENOTDIR),
        (lambda root: (root / "none").read_bytes(), errno.EISDIR),
        (lambda root: (root / "a.bin").write_bytes(b"x"), errno.EROFS),
        (lambda root: (root / "new").write_bytes(b"x"), errno.EROFS),
        (lambda root: (root / "a.bin").unlink(), errno.EROFS),
    ],
    ids=["missing", "below-a-file", "directory", "write", "create", "delete"],
)
def test_errors_are_those_of_a_read_only_directory(source: Path, use: Callable[[Path], object], expected: int) -> None:
    with slow_files(source) as slow:
        with pytest.raises(OSError) as caught:
            use(slow.path)
        assert caught.value.errno == expected
    assert (source / "a.bin").read_bytes() == DATA


def test_changes_are_seen_at_once_if_wanted(source: Path) -> None:
    with slow_files(source, remember_seconds=0) as slow:
        assert (slow.path / "empty").read_bytes() == b""
        assert not (slow.path / "new").exists()
        (source / "empty").write_bytes(b"no more")
        (source / "new").write_bytes(b"new")
        (source / "a.bin").unlink()
        (source / "b").write_bytes(b"other")
        (source / "b").rename(source / "deep/er/ö b.txt")

        assert (slow.path / "empty").read_bytes() == b"no more"
        assert (slow.path / "new").read_bytes() == b"new"
        assert not (slow.path / "a.bin").exists()
        assert (slow.path / "deep/er/ö b.txt").read_bytes() == b"other"


def test_nothing_is_left_while_somebody_still_reads(source: Path) -> None:
    with slow_files(source) as slow:
        descriptor = os.open(slow.path / "a.bin", os.O_RDONLY)
    with pytest.raises(OSError, match="not connected"):
        os.read(descriptor, 1)
    with contextlib.suppress(OSError):  # closed all the same; the kernel had something to tell the server
        os.close(descriptor)
    assert not slow.path.exists()
    assert not mount_type(slow.path)
    assert not read_proc(slow.pid, "cmdline")


def test_a_killed_server_is_said_and_cleaned_up(source: Path) -> None:
    with slow_files(source) as slow:
        os.kill(slow.pid, signal.SIGKILL)
        with pytest.raises(BenchFailedError, match="has ended with status -9"):
            slow.opens()
    assert not slow.path.exists()
    assert wait_until(lambda: not fuse_programs(slow.path), timeout_seconds=60)


def test_it_is_unmounted_when_its_maker_is_killed(source: Path) -> None:
    with slow_files(source):
        pass  # or skip
    script = (
        "import pathlib, sys\n"
        "from prefeed_bench.slow_directory import slow_directory\n"
        "with slow_directory(pathlib.Path(sys.argv[1])) as slow:\n"
        "    print(slow.path, slow.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", script, str(source)],
        env={**os.environ, "TMPDIR": str(source.parent / "scratch")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with maker:
        assert maker.stdout is not None
        path, pid = maker.stdout.readline().decode().split()
        assert mount_type(Path(path))
        maker.kill()
    assert wait_until(lambda: not mount_type(Path(path)), timeout_seconds=60)
    assert wait_until(lambda: not parent_of(int(pid)), timeout_seconds=60)


def fuse_programs(path: Path) -> list[int]:
    names = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in names if os.fsencode(path) in read_proc(pid, "cmdline")]


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    with (
        pytest.raises(MissingRequirementError, match="fusermount3 is not installed: apt-get install fuse3"),
        slow_directory(tmp_path),
    ):
        pass


def test_a_refused_mount_says_why(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "fusermount3").write_text("#!/bin/sh\necho 'mount failed: Operation not permitted' >&2\nexit 1\n")
    (programs / "fusermount3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    with (
        pytest.raises(MissingRequirementError, match=r"cannot be mounted with FUSE:(.|\n)*Operation not permitted"),
        slow_directory(source),
    ):
        pass
    assert os.listdir(tmp_path / "scratch") == []


@pytest.mark.parametrize("arguments", [{"open_seconds": -1.0}, {"read_seconds": -1.0}, {"remember_seconds": -1}])
def test_negative_times_are_refused(tmp_path: Path, arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cannot be negative"), slow_directory(tmp_path, **arguments):  # type: ignore[arg-type]
        pass


def test_a_source_that_is_no_directory_is_refused(source: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"a\.bin is not a directory"), slow_directory(source / "a.bin"):
        pass
