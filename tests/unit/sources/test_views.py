from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from prefeed.sources import filesystems
from prefeed.sources.filesystems import FileSystems, SystemNumber
from prefeed.sources.mounts import mounts_below, sources_of_devices
from prefeed.sources.posix import PosixSource, stat_files
from prefeed.sources.views import NAMESPACE_DIGITS, View, Views, mark_of_directory, open_own_root
from prefeed.system.machine import boot_id

MOUNTINFO = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:55 / /data rw shared:1 - nfs4 server:/export\\040one rw,addr=10.0.0.1
41 40 0:56 /part /data/be\\040low rw - fuse.sshfs host:/x rw
42 27 0:57 / /database rw - tmpfs tmpfs rw
not a line
"""


@pytest.fixture
def view(tmp_path: Path) -> View:
    return View((1, 2, 3))


@pytest.mark.usefixtures("sandbox")
def test_paths_are_those_of_who_showed_its_root(tmp_path: Path, view: View) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a").write_bytes(b"theirs")
    (tmp_path / "data/link").symlink_to("/data/a")
    (tmp_path / "data/out").symlink_to("../../../../../../data/a")
    (tmp_path / "data/nowhere").symlink_to("/etc/hostname")
    view.attach(os.open(tmp_path, os.O_PATH), {})
    source = PosixSource("/data", view=view)
    listed = sorted(info.path for batch in source.list_objects() for info in batch)
    assert listed == ["a", "link", "out"]
    assert [source.fetch(path).data for path in listed] == [b"theirs"] * 3
    assert source.fetch_range("link", 1, 3).data == b"hei"
    sizes, versions = source.versions(["/data/a", "/data/link", "/data/nowhere", "/etc/hostname", "nul\0"])
    assert (sizes, versions[2:]) == ([6, 6, -1, -1, -1], ["", "", ""])
    assert versions[0] == versions[1] == stat_files([f"{tmp_path}/data/a"])[1][0]
    view.detach()


def test_the_descriptor_is_closed_with_the_last_of_its_connections(tmp_path: Path, view: View) -> None:
    before = os.listdir("/proc/self/fd")
    (tmp_path / "a").write_bytes(b"a")
    for _ in range(2):
        for _ in range(3):
            view.attach(os.open(tmp_path, os.O_PATH), {})
        view.detach()
        view.detach()
        assert view.stat("/a").st_size == 1
        view.detach()
        with pytest.raises(OSError, match="has ended"):
            view.stat("/a")
    assert os.listdir("/proc/self/fd") == before


def test_who_sees_the_same_has_no_view_and_who_does_not_has_one(tmp_path: Path) -> None:
    views = Views()
    assert views.attach(open_own_root(), {}) is None
    theirs = [views.attach(os.open(tmp_path, os.O_PATH), {}) for _ in range(2)]
    (tmp_path / "other").mkdir()
    other = views.attach(os.open(tmp_path / "other", os.O_PATH), {})
    assert theirs[0] is theirs[1] is not None
    assert other is not None
    assert other.mark != theirs[0].mark
    for view in (*theirs, other):
        assert view is not None
        view.detach()


def test_a_version_tells_files_apart_that_have_one_size_and_time(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, ns=(5, 5))
    os.link(tmp_path / "a", tmp_path / "same")
    _, (first, second, same) = stat_files([f"{tmp_path}/{name}" for name in ("a", "b", "same")])
    assert first == same != second


def test_file_systems_are_known_by_what_they_hold_where_they_say_it(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    status = os.stat(tmp_path / "a")
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    found = {}
    for kind in ("nfs4", "fuse.juicefs", "fuse.sshfs", "fuse.slow", "cifs", "ext4"):
        systems = FileSystems()
        systems.learn({device: (kind, "server:/export", "/nowhere")})
        found[kind] = systems.identify(status, str(tmp_path))
    assert found["nfs4"] == f"nfs4:server:/export#{status.st_ino}"
    assert found["fuse.juicefs"] == f"fuse.juicefs:server:/export#{status.st_ino}"
    assert "#" not in found["fuse.sshfs"] + found["cifs"], "their numbers may change"
    assert found["fuse.sshfs"] == f"{boot_id()}/fuse.sshfs:server:/export"
    assert "mount-" in found["fuse.slow"]
    assert found["ext4"].endswith(f"#{status.st_ino}")


def test_a_file_system_that_only_its_mount_names_is_told_by_when_its_files_changed() -> None:
    """The time tells something if it has a fraction of a second: daemons that have none say whole seconds, or always the same."""
    system = SystemNumber(digest=1 << 63, is_numbered=False, lasting=(1 << 63) + 7)
    times = [0, 10**18, 10**18 + 1, 10**18 + 2, -1, -(10**9)]
    found = [system.of_file(time) for time in times]
    assert system.of_files(np.array(times)).tolist() == found
    assert [number == system.digest for number in found] == [True, True, False, False, False, True]
    assert len(set(found)) == 4
    assert system._replace(lasting=0).of_files(np.array(times)).tolist() == [system.digest] * len(times)


def test_a_tunnel_s_end_on_this_machine_names_no_file_server(tmp_path: Path) -> None:
    """Amazon's helper mounts each of its file systems as ``127.0.0.1:/``, through a tunnel."""
    status = os.stat(tmp_path)
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    systems = FileSystems()
    for source in ("127.0.0.1:/", "[::1]:/export", "localhost:/export"):
        systems.learn({device: ("nfs4", source, "/nowhere")})
        assert boot_id() in systems.identify(status, str(tmp_path))
    for kind, source in (("fuse.sshfs", "me@localhost:/data"), ("cifs", "//127.0.0.1/share")):
        systems.learn({device: (kind, source, "/nowhere")})
        assert source not in systems.identify(status, str(tmp_path))
    systems.learn(
        {device: ("fuse.glusterfs", "localhost:/volume", "/nowhere")}
    )  # it numbers files by what no other has
    assert boot_id() not in systems.identify(status, str(tmp_path))


def test_file_systems_of_one_ceph_cluster_are_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that were mounted by the same monitors' name number their files alike."""
    status, found = os.stat(tmp_path), set()
    for number in (7, 8):
        systems = FileSystems()
        systems.learn({f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}": ("ceph", "mon-1,mon-2:/", "/nowhere")})
        monkeypatch.setattr(filesystems.os, "statvfs", lambda _, number=number: SimpleNamespace(f_fsid=number))
        found.add(systems.identify(status, str(tmp_path)))
    assert len(found) == 2


@pytest.mark.usefixtures("sandbox")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_an_image_that_takes_another_s_place_is_another(tmp_path: Path) -> None:
    """The same device, file system's number, inode, size and time; the bytes are others."""
    first, second, place = tmp_path / "1.img", tmp_path / "2.img", tmp_path / "data"
    place.mkdir()
    with first.open("wb") as file:
        file.truncate(2 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", first], check=True)
    found = []
    for number, image in enumerate((first, second)):
        if subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, check=False).returncode:
            pytest.skip("this machine mounts no images")
        try:
            with (place / "a").open("r+b" if number else "wb") as file:
                file.write(b"%d" % number)
            os.utime(place / "a", ns=(10**18, 10**18))
            systems = FileSystems()
            systems.learn()
            found.append((os.stat(place / "a"), systems.identify(os.stat(place / "a"), str(place / "a"))))
        finally:
            subprocess.run(["umount", place], check=True)
        if not number:
            shutil.copy(first, second)
    (one, first_file), (other, second_file) = found
    assert first_file != second_file
    assert (one.st_ino, one.st_size, one.st_mtime_ns) == (other.st_ino, other.st_size, other.st_mtime_ns)


def test_what_mountinfo_says() -> None:
    assert sources_of_devices(MOUNTINFO) == {
        "254:0": ("ext4", "/dev/vda", "/"), "0:55": ("nfs4", "server:/export one", "/data"),
        "0:56": ("fuse.sshfs", "host:/x", "/data/be low"), "0:57": ("tmpfs", "tmpfs", "/database"),
    }  # fmt: skip
    assert mounts_below("/data", MOUNTINFO) == [("41", "0:56", "/part", "/data/be low")]
    assert mounts_below("/", MOUNTINFO)[0][3] == "/data"


def test_a_directory_that_was_replaced_is_another(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    before = mark_of_directory(f"{tmp_path}/data")
    (tmp_path / "data/new").touch()
    assert mark_of_directory(f"{tmp_path}/data") == before
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "data").mkdir()
    assert mark_of_directory(f"{tmp_path}/data") != before
    nowhere = mark_of_directory(f"{tmp_path}/nowhere")
    assert (len(nowhere), before[: len(nowhere)]) == (NAMESPACE_DIGITS, nowhere)
