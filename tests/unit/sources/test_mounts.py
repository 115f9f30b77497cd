"""Which paths are for the cache, told from the text of mountinfo."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path

import pytest

from prefeed.config import Config
from prefeed.sources.mounts import _AUTOMOUNTER, Roots, is_within, visible_mounts

AUTO = Config(roots=None)


def network_mounts(text: str | None = None) -> list[str]:
    return sorted(one.point for one in visible_mounts(text) if one.is_network and one.type != _AUTOMOUNTER)


def mountinfo(*mounts: tuple[str, str] | tuple[str, str, int]) -> str:
    """Return the text for (point, type) or (point, type, index of the parent) after a root on ext4, which is 0."""
    lines = ["20 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
    for index, (point, kind, *parent) in enumerate(mounts, 21):
        lines.append(
            f"{index} {20 + (parent[0] if parent else 0)} 0:{index} / {point} rw,noatime shared:2 master:1 - {kind} "
            f"origin:/x rw,vers=4.2"
        )
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "kind",
    [
        "nfs", "nfs4", "cifs", "smb3", "lustre", "ceph", "cubefs", "glusterfs", "beegfs", "gpfs", "9p", "virtiofs",
        "orangefs", "pvfs2", "afs", "wekafs", "panfs", "fuse", "fuse.gcsfuse", "fuse.s3fs", "fuse.mount-s3",
        "fuse.juicefs", "fuse.cubefs", "fuse.glusterfs", "fuse.sshfs", "fuse.rclone", "fuse.gvfsd-fuse",
    ],
)  # fmt: skip
def test_network_types(kind: str) -> None:
    assert network_mounts(mountinfo(("/data", kind))) == ["/data"]


@pytest.mark.parametrize(
    "kind",
    ["ext4", "xfs", "tmpfs", "overlay", "fuseblk", "fusectl", "fuse.portal", "fuse.lxcfs", "fuse.snapfuse", "btrfs"],
)
def test_local_types(kind: str) -> None:
    text = mountinfo(("/data", kind))

    assert network_mounts(text) == []
    assert not Roots.of(AUTO, text)
    assert Roots.of(AUTO, text).describe() == "no network file system is mounted"


@pytest.mark.parametrize("kind", ["nfs4", "fuse.fuse-overlayfs", "9p", "virtiofs", "fuse.squashfuse_ll"])
def test_the_root_is_no_data(kind: str) -> None:
    assert network_mounts(f"20 1 8:1 / / rw - {kind} x rw\n21 20 0:1 / /d rw - nfs4 x rw\n") == ["/d"]


def test_escapes() -> None:
    roots = Roots.of(AUTO, mountinfo(("/my\\040data\\134x", "nfs4"), ("/d\\303\\251j\\303\\240", "nfs")))

    assert roots.covers("/my data\\x/a/b.jpg")
    assert roots.covers("/déjà/b.jpg")


def test_nearest_mount_decides() -> None:
    text = mountinfo(("/data", "nfs4"), ("/data/scratch", "xfs", 1), ("/data/scratch/far", "lustre", 2))
    roots = Roots.of(AUTO, text)

    assert roots.covers("/data/a/b.jpg")
    assert roots.covers("/data/b.jpg")
    assert not roots.covers("/data/scratch/b.jpg")
    assert roots.covers("/data/scratch/far/b.jpg")
    assert not roots.covers("/database/b.jpg")
    assert not roots.covers("/b.jpg")
    assert roots.describe() == "/data (nfs4), /data/scratch/far (lustre)"


def test_last_mount_at_a_place_counts() -> None:
    assert network_mounts(mountinfo(("/data", "nfs4"), ("/data", "tmpfs", 1))) == []
    assert network_mounts(mountinfo(("/data", "tmpfs"), ("/data", "nfs4", 1))) == ["/data"]
    assert network_mounts(mountinfo(("/data", "nfs4"), ("/data", "tmpfs"))) == []


def test_mounts_below_one_that_came_later_are_hidden() -> None:
    assert network_mounts(mountinfo(("/data/far", "nfs4"), ("/data", "tmpfs"))) == []
    assert network_mounts(mountinfo(("/data", "xfs"), ("/data/far", "nfs4", 1), ("/data", "tmpfs", 1))) == []


def test_order_of_the_lines_does_not_matter() -> None:
    lines = mountinfo(("/data", "nfs4"), ("/data", "tmpfs", 1), ("/data/far", "lustre", 2)).splitlines()

    assert network_mounts("\n".join(reversed(lines))) == ["/data/far"]


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "36 35 98:0 / /mnt rw - ", "\n\n"])
def test_other_text_says_nothing(text: str) -> None:
    assert network_mounts(text) == []


def test_own_mountinfo() -> None:
    places = [mount.point for mount in visible_mounts()]

    assert {"/", "/proc"} <= set(places)
    assert isinstance(network_mounts(), list)


def test_linked_directory_is_where_it_leads(tmp_path: Path) -> None:
    far, near = tmp_path / "far", tmp_path / "near"
    (far / "train").mkdir(parents=True)
    near.mkdir()
    (near / "link").symlink_to(far / "train")
    roots = Roots.of(AUTO, mountinfo((str(far), "nfs4")))

    assert roots.covers(f"{near}/link/a.jpg")
    assert roots.covers(f"{near}/link/../train/a.jpg")
    assert roots.covers(f"{near}/../far/a.jpg")
    assert not roots.covers(f"{far}/../near/a.jpg")
    assert not roots.covers(f"{near}/a.jpg")


def test_named_roots_on_any_file_system(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    roots = Roots.of(Config(roots=(str(tmp_path / "link"),)))

    assert roots
    assert roots.covers(f"{tmp_path}/link/a/b.jpg")
    assert roots.covers(f"{tmp_path}/real/b.jpg")
    assert not roots.covers(f"{tmp_path}/realm/b.jpg")
    assert not roots.covers(f"{tmp_path}/b.jpg")
    assert roots.describe() == f"{tmp_path}/link, {os.path.realpath(tmp_path)}/real"


def test_no_named_roots_cover_nothing() -> None:
    roots = Roots.of(Config(roots=()), mountinfo(("/data", "nfs4")))

    assert not roots
    assert not roots.covers("/data/a.jpg")


def test_root_directory_as_a_root() -> None:
    assert Roots.of(Config(roots=("/",))).covers("/any/where.jpg")


@pytest.mark.parametrize("path", ["", "a.jpg", "a/b.jpg", "/a\0b/c", "/" + "x/" * 5000 + "y", "/\udcff/x"])
def test_odd_paths_are_not_covered(path: str) -> None:
    assert not Roots.of(AUTO, mountinfo(("/data", "nfs4"))).covers(path)


def test_decisions_are_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.sources.mounts._MAX_DIRECTORIES", 3)
    roots = Roots.of(AUTO, mountinfo(("/data", "nfs4")))
    for number in range(10):
        assert roots.covers(f"/data/{number}/a")
        assert len(roots._covered) <= 3
    monkeypatch.setattr("os.path.realpath", None)

    assert roots.covers("/data/9/b")


def test_pickled_without_decisions() -> None:
    roots = Roots.of(AUTO, mountinfo(("/data", "nfs4")))
    assert roots.covers("/data/a")
    copy = pickle.loads(pickle.dumps(roots))

    assert copy._covered == {}
    assert copy.covers("/data/a")
    assert not copy.covers("/other/a")


def test_what_an_automounter_mounts_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is mounted at first; the first look makes it so."""
    before = mountinfo((str(tmp_path), "autofs"))
    after = mountinfo((str(tmp_path), "autofs"), (f"{tmp_path}/share", "nfs4", 1))
    texts = itertools.chain([before], itertools.repeat(after))
    monkeypatch.setattr("prefeed.sources.mounts._own_mountinfo", lambda: next(texts))
    roots = Roots.of(AUTO)

    assert roots
    assert roots.covers(f"{tmp_path}/share/a/b.jpg")
    assert not roots.covers(f"{tmp_path}/b.jpg")


def test_systems_own_automounts_do_not_count() -> None:
    assert not Roots.of(AUTO, mountinfo(("/proc", "proc"), ("/proc/sys/fs/binfmt_misc", "autofs", 1)))


_TREE = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:1 /data/x /view rw - ext4 /dev/sda1 rw
22 20 8:2 / /big rw - xfs /dev/sdb1 rw
23 20 8:2 /sets /data/big rw - xfs /dev/sdb1 rw
24 20 0:46 / /a rw - nfs4 server:/a rw
25 20 0:46 / /b rw - nfs4 server:/b rw
26 20 0:46 / /b2 rw - nfs4 server:/b rw
"""


@pytest.mark.parametrize(
    ("place", "root", "lies"),
    [
        ("/view", "/data", True),  # a part of it, mounted elsewhere
        ("/view/y", "/data/x", True),
        ("/view/y", "/data/x/y", True),
        ("/view/y", "/data/x/z", False),
        ("/data/x/y", "/view", True),
        ("/data", "/view", False),
        ("/big/sets/1", "/data", True),  # behind a mount below it
        ("/big/sets", "/data/big", True),
        ("/big/other", "/data", False),
        ("/b", "/a", False),  # two exports of one server, which may share a device
        ("/b/x", "/b2", True),
        ("/viewer", "/data", False),
        ("s3://b/p", "/data", False),
    ],
)
def test_a_place_is_within_another_by_whatever_mount(place: str, root: str, lies: bool) -> None:
    assert is_within(place, root, _TREE) == lies


def test_without_a_table_of_mounts_names_alone_count() -> None:
    assert is_within("/data/x", "/data", "")
    assert not is_within("/view", "/data", "")
