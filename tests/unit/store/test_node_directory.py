"""What belongs to one node server: nobody else has it, and what an earlier boot left is taken over only when that is safe."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefeed.errors import ServerError
from prefeed.store import node_directory
from prefeed.store.node_directory import (
    NODES,
    NodeDirectory,
    name_of,
    remove_left,
    remove_unused,
    servers_elsewhere,
)
from prefeed.system import machine

Boot = Callable[[str], None]
BEFORE_THE_BOOT = 1000.0


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Boot:
    """From then on this is another kernel, or another boot."""

    def as_boot(name: str) -> None:
        for module in (machine, node_directory):
            monkeypatch.setattr(module, "boot_name", lambda: name * 12)

    as_boot("a")
    return as_boot


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _held:
        _held.pop().close()


_held: list[NodeDirectory] = []


def claim(parent: Path) -> NodeDirectory:
    _held.append(NodeDirectory.claim(parent))
    return _held[-1]


def leave(directory: NodeDirectory, *, is_killed: bool = False) -> None:
    """Its server ends; something of it stays."""
    (directory.path / "kept").write_text(directory.path.name)
    _held.remove(directory)
    if is_killed:
        os.close(directory._lock)
    else:
        directory.close()


def set_touched(path: Path, when: float) -> None:
    for file in (path / "lock", path):
        os.utime(file, (when, when))


def test_each_server_has_one_of_its_own_and_finds_it_again(tmp_path: Path, boot: Boot) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    assert (first.path, second.path) == (tmp_path / name_of(0), tmp_path / name_of(1))
    leave(first, is_killed=True)
    assert claim(tmp_path).path == first.path
    boot("b")
    assert claim(tmp_path).path == tmp_path / ("b" * 12 + "-0")


def test_one_that_must_have_a_number_is_refused(tmp_path: Path, boot: Boot) -> None:
    claim(tmp_path)
    with pytest.raises(ServerError, match="belongs to another server"):
        NodeDirectory.claim(tmp_path, [0])


def test_after_a_boot_it_is_taken_over_by_one(tmp_path: Path, boot: Boot) -> None:
    left = claim(tmp_path)
    leave(left, is_killed=True)
    set_touched(left.path, BEFORE_THE_BOOT)
    boot("b")
    first, second = claim(tmp_path), claim(tmp_path)
    assert (first.path / "kept").read_text() == "a" * 12 + "-0"
    assert not (second.path / "kept").exists()
    assert not left.path.exists()


@pytest.mark.parametrize(
    "reason", ["another kernel may have it", "touched since this one was booted", "held", "boot unknown"]
)
def test_what_may_be_in_use_is_left_alone(
    tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    left = claim(tmp_path)
    if reason != "held":
        leave(left, is_killed=True)
    set_touched(left.path, time.time() if reason.startswith("touched") else BEFORE_THE_BOOT)
    if reason.startswith("another"):
        monkeypatch.setattr(node_directory, "is_on_own_disk", lambda _: False)
    if reason == "boot unknown":
        monkeypatch.setattr(node_directory, "boot_time", lambda: float("-inf"))
    boot("b")
    found = claim(tmp_path)
    assert found.path.name == "b" * 12 + "-0"
    assert os.listdir(found.path) == ["lock"]
    assert left.path.is_dir()


def test_locks_that_exclude_no_process_do_not_matter_between_kernels(
    tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    one = claim(tmp_path)
    boot("b")
    assert claim(tmp_path).path != one.path


def test_without_locks_each_server_begins_again(tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert claim(tmp_path).path != claim(tmp_path).path


def test_what_was_replaced_meanwhile_is_not_taken_for_held(
    tmp_path: Path, boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def too_late(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        (tmp_path / name_of(0)).rename(tmp_path / "moved")
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", too_late)
    found = claim(tmp_path)
    assert (found.path / "lock").exists()


def test_nothing_is_left_of_a_server_that_left_nothing(tmp_path: Path, boot: Boot) -> None:
    found = NodeDirectory.claim(tmp_path / "new")
    found.close()
    assert not (tmp_path / "new").exists()


def test_unused_data_is_removed_after_thirty_days(tmp_path: Path, boot: Boot) -> None:
    directories = []
    for name in "abcd":
        boot(name)
        directories.append(claim(tmp_path))
        (directories[-1].path / "kept").touch()
    (tmp_path / "objects").mkdir()
    old, held, recent, own = directories
    leave(old)
    leave(recent)
    for directory in (old, held, own):
        set_touched(directory.path, time.time() - 31 * 24 * 3600)
    set_touched(recent.path, time.time() - 29 * 24 * 3600)
    remove_unused(tmp_path, keep=own.path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {held.path.name, recent.path.name, own.path.name, "objects"}


def test_who_runs_elsewhere_is_seen_by_what_it_touches(tmp_path: Path, boot: Boot) -> None:
    nodes = tmp_path / NODES
    one = claim(nodes)
    assert servers_elsewhere(tmp_path) == []
    boot("b")
    assert [process.pid for process in servers_elsewhere(tmp_path)] == [os.getpid()]
    set_touched(one.path, time.time() - 3600)
    assert servers_elsewhere(tmp_path) == []
    one.beat()
    assert len(servers_elsewhere(tmp_path)) == 1
    leave(one)
    assert servers_elsewhere(tmp_path) == []


def test_what_other_boots_have_left_is_removed_after_thirty_days(tmp_path: Path) -> None:
    ages = {"id-1": 31, "id-2": 29, "id": 31, "own": 31, "id-own": 31, "id-open": 31}
    for name, days in ages.items():
        (tmp_path / name).mkdir(mode=0o755 if name == "id-open" else 0o700)
        os.utime(tmp_path / name, (0, time.time() - days * 24 * 3600))
    remove_left(tmp_path, "id*", keep=tmp_path / "id-own")
    assert {path.name for path in tmp_path.iterdir()} == {"id-2", "own", "id-own", "id-open"}
