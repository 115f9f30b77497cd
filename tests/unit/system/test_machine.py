"""Which machine this is, and which of its processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from prefeed.system import machine
from prefeed.system.machine import Process, filesystem_of_mount, has_ended, is_on_own_disk, process_mark


def test_the_file_system_is_found_by_its_mount() -> None:
    mounts = (
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "31 22 0:26 / /dev/shm rw,nosuid master:2 propagate_from:1 - tmpfs tmpfs rw,size=1g\n"
    )
    assert filesystem_of_mount(mounts, "31") == "tmpfs"
    assert filesystem_of_mount(mounts, "22") == "ext4"
    assert filesystem_of_mount(mounts, "2") is None
    assert filesystem_of_mount(mounts, "") is None
    assert machine.filesystem_of(Path("/proc/self")) == "proc"


def test_files_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In doubt a file system is one that others may have mounted too."""
    for kind, is_own in {
        "ext4": True,
        "tmpfs": True,
        "nfs4": False,
        "fuse.sshfs": False,
        "new": False,
        None: False,
    }.items():
        monkeypatch.setattr(machine, "filesystem_of", lambda _, kind=kind: kind)
        assert is_on_own_disk(tmp_path / "not" / "there") == is_own


def test_the_boot_is_known_by_a_file_and_else_by_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for content in ("one\n", "two\n", None):
        file = tmp_path / f"{content}"
        if content is not None:
            file.write_text(content)
        monkeypatch.setattr(machine, "BOOT_ID", file)
        found.add(machine.boot_name.__wrapped__())
    assert len(found) == 3
    assert all(len(name) == 12 and int(name, 16) >= 0 for name in found)
    assert 0 < machine.boot_time() < time.time()


def test_a_number_means_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Process.of(os.getpid())
    assert own.is_here
    assert own.is_alive
    assert not replace(own, started=own.started + 1).is_alive  # another has its number now
    assert not Process().is_alive
    for changed in (replace(own, boot="other"), replace(own, namespace="pid:[1]")):
        assert not changed.is_here
        assert not changed.is_alive


def test_a_mark_is_judged_at_home_only(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = process_mark()
    dead = f"{mark.rpartition('-')[0]}-{2**22 + 1}"
    assert (has_ended(mark), has_ended(dead)) == (False, True)
    assert not has_ended(str(2**22 + 1))  # of a version that did not say of which node
    monkeypatch.setattr(machine, "boot_name", lambda: "other")
    assert not has_ended(dead)


def test_mounts_are_numbered_as_mountinfo_does_from_either_source(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptor = os.open("/proc", os.O_PATH)
    try:
        number = machine.mount_number(descriptor)
        points = {line.split()[0]: line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
        assert points[str(number)] == "/proc"
        assert machine.mount_number("/proc") == number != machine.mount_number("/")
        monkeypatch.setattr(machine, "_libc", SimpleNamespace(statx=lambda *_: -1))  # before Linux 5.8
        assert machine.mount_number(descriptor) == number
        assert machine.mount_number("/proc") is None
    finally:
        os.close(descriptor)
