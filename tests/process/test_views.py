"""One path, other files: containers that share home, runtime directory and memory, and have different data mounted.

Sizes and times of the files are the same: only what they are tells them apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from leaks import wait_until
from limits import set_limits
from sandbox import Sandbox, servers_of
from slow_files import slow_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

JOB = Path(__file__).with_name("view_job.py")
NUM_FILES = 24


def make_files(directory: Path, word: str, *, below: str = "") -> Path:
    """Write files that only their bytes tell from those of another word of the same length."""
    for number in range(NUM_FILES):
        file = directory / below / f"{number:03}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{word} {number} " * 50)
    set_times(directory)
    return directory


def set_times(directory: Path) -> None:
    for path in [directory, *directory.rglob("*")]:
        os.utime(path, ns=(10**18, 10**18))


def container(mounts: list[tuple[Path | str, Path]], *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """Run jobs in a mount namespace with these mounts; return what each says."""
    asked = {"mounts": [(str(source), str(target)) for source, target in mounts], "jobs": jobs}
    done = subprocess.run(
        [sys.executable, str(JOB), json.dumps(asked, default=str)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def job(data: Path, kind: str = "objects", **more: Any) -> dict[str, Any]:
    return {"data": str(data), "kind": kind, **more}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return make_files(tmp_path / "ours", "ours")


@pytest.fixture
def else_s(tmp_path: Path) -> Path:
    return make_files(tmp_path / "else", "else")


def test_containers_with_other_data_at_one_path(data: Path, ours: Path, else_s: Path) -> None:
    """The server lives in the first one; the others are helped too, each with its own bytes, and find them again."""
    kinds = ("objects", "files", "stage")
    said = {}
    for turn, files in (("first", ours), ("second", else_s), ("again", ours)):
        said[turn] = container([(files, data)], *(job(data, kind) for kind in kinds))
        assert [(job["right"], job["first"][:4]) for job in said[turn]] == [([True, True], files.name)] * len(kinds)
    second, again = said["second"][0], said["again"][0]
    assert (second["requests"], second["direct"], second["hits"] >= NUM_FILES) == (NUM_FILES, 0, True)
    assert again["requests"] == 0, "what the server read for the first container is served to one with the same data"


def test_other_files_in_a_mount_below_an_equal_root(data: Path, ours: Path, else_s: Path, tmp_path: Path) -> None:
    """The root is one directory in both; what is mounted below it is not."""
    root = make_files(tmp_path / "root", "root")
    (root / "below").mkdir()
    (first,) = container([(root, data), (ours, data / "below")], job(data))
    (second,) = container([(root, data), (else_s, data / "below")], job(data))
    assert first["count"] == second["count"] == 2 * NUM_FILES
    assert all(first["right"] + second["right"])


def test_links_lead_where_they_lead_the_job(data: Path, ours: Path, else_s: Path, tmp_path: Path) -> None:
    """Of one directory, the same in both: its links are absolute, and lead into what is not."""
    root, target = tmp_path / "root", tmp_path / "target"
    target.mkdir()
    root.mkdir()
    for number in range(NUM_FILES):
        (root / f"{number:03}.bin").symlink_to(target / f"{number:03}.bin")
    (root / "whole").symlink_to(target)
    for word, files in (("ours", ours), ("else", else_s)):
        (said,) = container([(root, data), (files, target)], job(data))
        assert (said["right"], said["first"][:4]) == ([True, True], word)


def test_a_job_with_another_root_directory(data: Path, ours: Path, else_s: Path, tmp_path: Path) -> None:
    """Not a namespace, but ``chroot``: one server, first of the job outside."""
    jail = tmp_path / "jail"
    jail.mkdir()
    outside, inside, again = container(
        [("/", jail), (ours, data), (else_s, Path(f"{jail}{data}"))],
        job(data), job(data, root=str(jail)), job(data, "files", root=str(jail)),
    )  # fmt: skip
    assert (outside["first"][:4], inside["first"][:4], again["first"][:4]) == ("ours", "else", "else")
    assert all(outside["right"] + inside["right"] + again["right"])
    assert inside["direct"] == 0


def test_a_file_system_that_has_the_number_of_one_before(data: Path) -> None:
    """The kernel gives the device of a tmpfs, and the numbers of its files, to the next one: one server sees both."""
    jobs = []
    for word in ("first", "again"):
        content = {str(data / f"{number:03}.bin"): f"{word} {number} " * 50 for number in range(NUM_FILES)}
        jobs += [job(data, fill=content, fresh=data), job(data, "files")]
    said = [*container([], *jobs), *container([], *jobs)]
    assert [(job["right"], job["first"][:5]) for job in said] == [
        ([True, True], word) for word in ("first", "first", "again", "again") * 2
    ]


def test_a_file_system_that_is_mounted_again(data: Path, ours: Path, else_s: Path) -> None:
    """By a new daemon, at the same path: what it holds stays cached. Another one of the same kind and name is another."""
    with slow_files(ours) as first, slow_files(ours) as again, slow_files(else_s) as other:
        said = [*container([(first.path, data)], job(data)), *container([(again.path, data)], job(data))]
        said += container([], *(job(data, "files", fresh=data, source=slow.path) for slow in (first, again, other)))
    assert [(job["right"], job["first"][:4]) for job in said] == [
        ([True, True], word) for word in ["ours"] * 4 + ["else"]
    ]
    assert [job["requests"] for job in said] == [NUM_FILES, 0, NUM_FILES, 0, NUM_FILES]


def test_one_server_after_the_other(data: Path, ours: Path, else_s: Path, sandbox: Sandbox, monkeypatch: Any) -> None:
    """Each container has the server of its own time; the disk tier and the listings of the first are still there."""
    monkeypatch.setenv("PREFEED_DISK", f"64MiB:{sandbox.root / 'disk'}")
    set_limits(monkeypatch, disk_free_bytes=0)
    from prefeed.client.node import NodeClient
    from prefeed.config import resolve

    for word, files in (("ours", ours), ("else", else_s)):
        for said in container([(files, data)], job(data), job(data, "files")):
            assert (said["right"], said["first"][:4]) == ([True, True], word)
        with NodeClient.connect(resolve(), autostart=False) as node:
            node.stop()


def test_a_home_that_is_another_one_is_said(
    data: Path, ours: Path, else_s: Path, sandbox: Sandbox, tmp_path: Path
) -> None:
    """The socket is shared, the home is not: such a job reads as without prefeed."""
    (first,) = container([(ours, data)], job(data))
    other = tmp_path / "other-home"
    other.mkdir()
    (second,) = container([(else_s, data), (other, sandbox.home)], job(data))
    assert (first["right"], second["right"]) == ([True, True], [True, True])
    assert (second["requests"], second["first"][:4]) == (0, "else")


def test_nothing_is_held_open_of_a_job_that_is_gone(data: Path, ours: Path, else_s: Path, sandbox: Sandbox) -> None:
    container([(ours, data)], job(data))
    (server,) = servers_of(sandbox)
    container([(else_s, data)], job(data, epochs=1))

    def is_held() -> bool:
        return any(os.readlink(entry) in ("/", str(data)) for entry in Path(f"/proc/{server}/fd").iterdir())

    assert wait_until(lambda: not is_held(), timeout_seconds=60)


def test_what_the_server_may_not_read_the_job_may(data: Path) -> None:
    """The server has fewer rights than the jobs: some files, or a whole directory, are closed to it."""
    make_files(data, "open")
    make_files(data, "shut", below="shut")
    for number in range(0, NUM_FILES, 3):
        (data / f"{number:03}.bin").chmod(0)
    objects, files = container([], job(data, weak=True), job(data, "files"))
    assert objects["right"] + files["right"] == [True] * 4
    assert objects["direct"] >= NUM_FILES // 3
    (data / "shut").chmod(0)
    objects, files = container([], job(data, epochs=1), job(data, "files", epochs=1))
    assert objects["right"] + files["right"] == [True] * 2
