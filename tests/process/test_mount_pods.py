"""The command by which kubelet finds out that the files of a set are mounted, on what a node may have at that path."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mounting import dead_fuse, mounted, needs_root, tmpfs, with_own_mounts
from prefeed.kubernetes.mounts import is_mounted
from slow_files import write_files

pytestmark = needs_root


def answers(place: Path) -> bool:
    return subprocess.run(["sh", "-c", is_mounted(place)], capture_output=True, check=False).returncode == 0


def _scenario(tmp_path: Path) -> None:
    empty, volume, dead, point = (tmp_path / name for name in ("empty", "volume", "dead", "point"))
    (empty / "log").mkdir(parents=True)  # a directory of the node, of the same name as the link in a mount
    tmpfs(volume)
    assert not any(answers(place) for place in (empty, volume, tmp_path / "missing"))
    with dead_fuse(dead):
        assert not answers(dead)
    source, output = write_files(tmp_path / "source", {"a": b"1"}), tmp_path / "output"
    output.mkdir()
    with mounted(source, point, links={"log": str(output)}):
        assert answers(point)
    assert not answers(point)


def test_only_a_mount_of_prefeed_that_answers_is_ready(tmp_path: Path) -> None:
    with_own_mounts(_scenario, tmp_path)
