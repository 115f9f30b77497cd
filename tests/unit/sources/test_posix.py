import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefeed.errors import AccessDeniedError, ObjectNotFoundError, PassedThroughError, TruncatedBodyError
from prefeed.sources import file_names
from prefeed.sources.file_versions import _packed
from prefeed.sources.listing import split_paths
from prefeed.sources.posix import PosixSource, stat_files, stat_paths
from source_contract import list_all

pytestmark = pytest.mark.usefixtures("sandbox")


def test_links_to_files_and_directories_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "a.bin").write_bytes(b"abc")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link.bin").symlink_to(real / "a.bin")
    (root / "dir").symlink_to(real)
    (root / "broken.bin").symlink_to(tmp_path / "nowhere")
    source = PosixSource(str(root))
    assert {path: info.size_bytes for path, info in list_all(source).items()} == {"link.bin": 3, "dir/a.bin": 3}
    assert source.fetch("dir/a.bin").data == b"abc"


def test_a_link_to_a_parent_is_not_followed_for_ever(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.bin").write_bytes(b"1")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    assert list(list_all(PosixSource(str(tmp_path)))) == ["sub/a.bin"]


def test_special_files_are_no_objects(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.bin").write_bytes(b"1")
    assert list(list_all(PosixSource(str(tmp_path)))) == ["a.bin"]


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.bin")
    (tmp_path / name).write_bytes(b"1")
    source = PosixSource(str(tmp_path))
    assert list(list_all(source)) == [name]
    assert source.fetch(name).data == b"1"


def test_missing_root_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="mounted on this node"):
        list_all(PosixSource(f"{tmp_path}/missing"))


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    with pytest.raises(ObjectNotFoundError, match="pass the directory"):
        list_all(PosixSource(f"{tmp_path}/a.bin"))


@pytest.mark.parametrize("name", ["nul\0byte", "a.bin/below", "x" * 300])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    with pytest.raises((ObjectNotFoundError, PassedThroughError)):
        PosixSource(str(tmp_path)).fetch(name)


def test_refusal_is_permanent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        with pytest.raises(AccessDeniedError, match=r"a\.bin"):
            PosixSource(str(tmp_path)).fetch("a.bin")


@pytest.mark.parametrize("change", [b"", b"longer than before", b"same"])
def test_a_file_that_changes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"four")
    os.utime(file, ns=(1, 1))
    read = os.read

    def read_then_change(descriptor: int, size: int) -> bytes:
        file.write_bytes(change)
        return read(descriptor, size)

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read_then_change)
        with pytest.raises(TruncatedBodyError, match="changed while it was read") as caught:
            PosixSource(str(tmp_path)).fetch("a.bin")
    assert caught.value.retryable


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(b"0123456789" * 10)
    read = os.read
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 7)))
        assert PosixSource(str(tmp_path)).fetch("a.bin").data == b"0123456789" * 10


def test_absolute_paths_reach_outside_the_root(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    source = PosixSource("/somewhere/else")
    assert source.fetch(f"{tmp_path}/a.bin").data == b"1"
    assert source.locate(f"{tmp_path}/a.bin") == f"{tmp_path}/a.bin"


def test_the_whole_file_system_as_a_root(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    assert PosixSource("/").fetch(str(tmp_path).lstrip("/") + "/a.bin").data == b"1"


def test_stat_paths_keeps_order_and_marks_what_is_missing(tmp_path: Path) -> None:
    paths = [f"{tmp_path}/{i}.bin" for i in range(2500)]
    for i, path in enumerate(paths):
        if i % 3:
            Path(path).write_bytes(b"x" * (i % 7))
    sizes, versions = stat_paths(paths, threads=4)
    assert sizes.dtype == np.int64
    assert sizes.tolist() == [i % 7 if i % 3 else -1 for i in range(2500)]
    assert [bool(version) for version in versions] == [bool(i % 3) for i in range(2500)]
    assert versions[1] == PosixSource(str(tmp_path)).fetch("1.bin").version


def test_stat_paths_of_nothing() -> None:
    sizes, versions = stat_paths([])
    assert len(sizes) == len(versions) == 0


# ------------------------------------------------------------ what is read past the cache


def test_a_pipe_is_passed_through_and_its_writer_is_not_awaited(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PassedThroughError, match="not a regular file") as caught:
        PosixSource(str(tmp_path)).fetch("pipe")
    assert not caught.value.retryable
    assert str(tmp_path / "pipe") in str(caught.value)


def test_what_asking_again_does_not_change_is_passed_through(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop", "n" * 300):
        with pytest.raises(PassedThroughError) as caught:
            PosixSource(str(tmp_path)).fetch(name)
        assert not caught.value.retryable


def test_a_pipe_that_somebody_writes_to_loses_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)
    try:
        os.write(writer, b"for another")
        with pytest.raises(PassedThroughError):
            PosixSource(str(tmp_path)).fetch("pipe")
        assert os.read(reader, 100) == b"for another"
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("path", ["/dev/null", "/dev/zero", "/dev/urandom"])
def test_a_device_is_passed_through(path: str) -> None:
    with pytest.raises(PassedThroughError, match="not a regular file"):
        PosixSource("/").fetch(path)


@pytest.mark.parametrize("path", ["/proc/self/status", "/proc/meminfo"])
def test_a_file_that_the_kernel_makes_up_is_passed_through(path: str) -> None:
    with pytest.raises(PassedThroughError, match="reports a size of 0, and is not empty") as caught:
        PosixSource("/").fetch(path)
    assert not caught.value.retryable


def test_a_file_that_is_empty_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert PosixSource(str(tmp_path), max_bytes=0).fetch("empty").data == b""


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="is not a file"):
        PosixSource(str(tmp_path.parent)).fetch(tmp_path.name)


def test_a_file_that_is_too_large_is_passed_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (10, 11):
        (tmp_path / f"{size}.bin").write_bytes(b"x" * size)
    source = PosixSource(str(tmp_path), max_bytes=10)
    assert len(source.fetch("10.bin").data) == 10

    def refuse(*_: object) -> bytes:
        raise AssertionError("not one byte of it is read")

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", refuse)
        with pytest.raises(PassedThroughError, match=r"has 11 bytes, more than 10, and is not cached whole") as caught:
            source.fetch("11.bin")
    assert not caught.value.retryable
    assert len(PosixSource(str(tmp_path)).fetch("11.bin").data) == 11


def test_what_is_refused_is_closed_again(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd")
    for path in (f"{tmp_path}/pipe", str(tmp_path), "/proc/self/status"):
        with pytest.raises((PassedThroughError, ObjectNotFoundError)):
            PosixSource("/", max_bytes=10).fetch(path)
    assert os.listdir("/proc/self/fd") == before


def test_stat_files_is_told_nothing_by_what_cannot_be_asked(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    os.utime(tmp_path / "a.bin", ns=(5, 7))
    sizes, versions = stat_files([f"{tmp_path}/a.bin", f"{tmp_path}/missing", "nul\0byte", f"{tmp_path}/a.bin/below"])
    assert (sizes, versions[1:]) == ([3, -1, -1, -1], ["", "", ""])
    assert versions[0].startswith(f"{b'file'.hex()}{7:016x}{3:016x}{(tmp_path / 'a.bin').stat().st_ino:016x}")


def test_directories_are_read_at_the_same_time_where_the_storage_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory is held up until 16 are being read, and then until the files of 16 are being asked for."""
    for index in range(40):
        (tmp_path / f"class{index}").mkdir()
        (tmp_path / f"class{index}" / "a.bin").write_bytes(b"1")
    changed = threading.Condition()
    state = {"reading": 0, "most": 0}

    def hold() -> None:
        with changed:
            state["reading"] += 1
            state["most"] = max(state["most"], state["reading"])
            changed.notify_all()
            assert changed.wait_for(lambda: state["most"] >= 16, timeout=60)
            state["reading"] -= 1

    def slow(original: Callable[..., Any]) -> Callable[..., Any]:
        def held(path: Any, *arguments: Any, **named: Any) -> Any:
            if b"class" in os.fsencode(path):
                hold()
            return original(path, *arguments, **named)

        return held

    source = PosixSource(str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", slow(os.scandir))
        names = source.list_names()
    assert (len(names), state["most"] >= 16) == (40, True)
    state["most"] = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", slow(os.open))
        table = source.ask(split_paths(names.blob, names.offsets))
    assert (table.sizes.tolist(), state["most"] >= 16) == ([1] * 40, True)


def test_a_storage_that_answers_at_once_is_read_by_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_names, "_PATIENCE_SECONDS", 60)
    for index in range(30):
        (tmp_path / f"class{index}").mkdir()
        for name in range(150):
            (tmp_path / f"class{index}" / str(name)).touch()
    threads: set[int] = set()
    scandir, stat = os.scandir, os.stat

    def seen(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread().name.startswith("prefeed-list"):
                threads.add(threading.get_ident())
            return original(*arguments, **named)

        return noted

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", seen(scandir))
        names = PosixSource(str(tmp_path)).list_names()
        assert (len(names), len(threads)) == (30 * 150, 1)
        threads.clear()
        patched.setattr(os, "stat", seen(stat))
        PosixSource(str(tmp_path)).ask(split_paths(names.blob, names.offsets))
    assert len(threads) == 1


# ------------------------------------------------------------ columns


def make_tree(root: Path) -> None:
    """Names whose order as paths is another than as names, links of all kinds, and what is no file."""
    for path in ("a/b", "a.txt", "a/b.c/d", "a/b/c", "a!", "a0", "z/y/x", "z.d/1", "caf/\udce9", "b", "empty/"):
        file = Path(os.fsdecode(os.fsencode(f"{root}/{path}")))
        if path == "a/b":
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith("/"):
            file.mkdir()
        else:
            file.write_bytes(path.encode("utf-8", "surrogateescape"))
    (root / "to file").symlink_to(root / "a.txt")
    (root / "to directory").symlink_to(root / "z")
    (root / "up").symlink_to(root)
    (root / "nowhere").symlink_to(root / "missing")
    (root / "itself").symlink_to(root / "itself")
    os.mkfifo(root / "pipe")


def test_names_are_those_that_a_walk_finds_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "gone").mkdir()
    walked = [
        os.path.relpath(os.path.join(directory, name), os.fsencode(tmp_path))
        for directory, below, names in os.walk(os.fsencode(tmp_path), followlinks=True)
        if not (below.remove(b"up") if b"up" in below else None)
        for name in names
        if os.path.isfile(os.path.join(directory, name))
    ]
    names = PosixSource(str(tmp_path)).list_names()
    assert split_paths(names.blob, names.offsets) == sorted(walked)
    assert not names.is_whole, "what leads nowhere may become a file"
    directories = {os.fsdecode(directory.path) for directory in names.directories}
    assert directories == {"", "a", "a/b.c", "a/b", "z", "z/y", "z.d", "caf", "empty", "gone", "to directory",
                           "to directory/y"}  # fmt: skip


def test_what_vanishes_meanwhile_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "vanishing", "two"):
        (tmp_path / name).mkdir()
    for index in range(20):
        (tmp_path / f"{index:02}").touch()
    stat = os.stat

    def vanish(path: Any, **how: Any) -> os.stat_result:
        if os.fsencode(path).endswith(b"/vanishing"):
            raise FileNotFoundError
        return stat(path, **how)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", vanish)
        names = PosixSource(str(tmp_path)).list_names()
    assert split_paths(names.blob, names.offsets) == [f"{index:02}".encode() for index in range(20)]
    assert [directory.path for directory in names.directories if directory.path] in ([b"one", b"two"], [b"two", b"one"])
    assert not names.is_whole


def test_versions_in_columns_are_those_of_each_file(tmp_path: Path) -> None:
    """Also of links to another file system, and of times and inodes that no signed number holds."""
    make_tree(tmp_path)
    (tmp_path / "elsewhere").symlink_to("/proc/self/status")
    os.utime(tmp_path / "a0", ns=(0, -5))
    source = PosixSource(str(tmp_path))
    paths = [b"a!", b"a.txt", b"a/b/c", b"a0", b"elsewhere", b"gone", b"pipe", b"to directory/y/x", b"up"]
    table = source.ask(paths)
    versions = [version.decode() for version in table.versions()]
    for path, size, version, is_beside in zip(paths, table.sizes.tolist(), versions, table.is_beside, strict=True):
        if path in (b"gone", b"pipe", b"up"):
            assert size == -1
            continue
        assert ([size], [version]) == source.versions([os.fsdecode(os.fsencode(tmp_path) + b"/" + path)])
        assert is_beside == (path != b"elsewhere")
    assert _packed([2**63 + 5, -7, 2**64 - 1, 3]).tolist() == [5 - 2**63, -7, -1, 3]
