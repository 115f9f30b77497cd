"""The mount shows the bucket, is new each time, and is gone afterwards, whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leaks import parent_of, processes, read_proc, wait_until
from prefeed_bench import fuse_mount as module
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.fuse_mount import CacheMode, mounted, rclone_mount
from prefeed_bench.s3_origin import Bucket, s3_bucket

pytestmark = pytest.mark.usefixtures("sandbox")

DATA = {"train/cat/1.jpg": b"cat" * 40_000, "train/ä 2.jpg": b"x", "train_list.txt": b"train/cat/1.jpg 0\n"}


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    for path, data in DATA.items():
        file = tmp_path / "root" / "bucket" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    with s3_bucket(tmp_path / "root", "bucket", 0.0) as bucket:
        yield bucket


def rclones() -> list[int]:
    """Return the mounts that this process started and that run."""
    ours = [pid for pid in processes() if parent_of(pid) == os.getpid()]
    return [pid for pid in ours if b"rclone\0mount" in read_proc(pid, "cmdline")]


def is_clean(scratch: Path) -> bool:
    left = [name for name in os.listdir(scratch) if "rclone" in name]
    return not left and not rclones() and not any(point.startswith(str(scratch)) for point in mounted())


@pytest.mark.parametrize("cache_mode", ["off", "full"])
def test_it_shows_the_bucket(bucket: Bucket, scratch: Path, cache_mode: CacheMode) -> None:
    with rclone_mount(bucket, cache_mode) as mount:
        found = {str(file.relative_to(mount)): file.read_bytes() for file in mount.rglob("*") if file.is_file()}
        with pytest.raises(OSError, match="Read-only file system"):
            (mount / "new").write_bytes(b"")
        counter = bucket.origin.counter()
        (mount / "train" / "cat" / "1.jpg").read_bytes()
        again = counter.count()
    assert found == DATA
    assert (again > 0) == (cache_mode == "off")
    assert is_clean(scratch)


def test_nothing_is_left_of_the_mount_before(bucket: Bucket) -> None:
    for _ in range(2):
        counter = bucket.origin.counter()
        with rclone_mount(bucket, "full") as mount:
            (mount / "train_list.txt").read_bytes()
        assert counter.count() > 1


def test_it_is_gone_when_the_block_fails(bucket: Bucket, scratch: Path) -> None:
    with pytest.raises(ZeroDivisionError), rclone_mount(bucket, "off"):
        raise ZeroDivisionError
    assert is_clean(scratch)


@pytest.mark.parametrize("kill", [False, True])
def test_it_is_gone_when_a_file_is_open_or_rclone_was_killed(bucket: Bucket, scratch: Path, kill: bool) -> None:
    with rclone_mount(bucket, "off") as mount:
        file = os.open(mount / "train" / "cat" / "1.jpg", os.O_RDONLY)
        os.read(file, 10)
        if kill:
            (pid,) = rclones()
            os.kill(pid, signal.SIGKILL)
    assert is_clean(scratch)
    with contextlib.suppress(OSError):  # of a server that is gone
        os.close(file)


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv asks the kernel for it")
def test_it_is_gone_when_who_made_it_is_killed(bucket: Bucket, scratch: Path) -> None:
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[3]\n"
        "from prefeed_bench.fuse_mount import rclone_mount\n"
        "from prefeed_bench.origin import Origin\n"
        "from prefeed_bench.s3_origin import Bucket\n"
        "import json\n"
        "bucket = Bucket(name='bucket', origin=Origin(url=sys.argv[1], pid=0, latency_seconds=0), env=json.loads(sys.argv[2]))\n"
        "with rclone_mount(bucket, 'off') as mount:\n"
        "    print(mount, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    env = '{"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}'
    line = [sys.executable, "-c", code, bucket.origin.url, env, str(scratch)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        point = maker.stdout.readline().strip()
        assert point in mounted()
        maker.kill()
        assert wait_until(lambda: point not in mounted(), timeout_seconds=60)


def test_what_rclone_says_is_in_the_error(bucket: Bucket, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPTIONS", ("--no-such-option",))
    said = pytest.raises(BenchFailedError, match=r"rclone ended with status 1 (.|\n)*unknown flag: --no-such-option")
    with said, rclone_mount(bucket, "off"):
        pass
    assert is_clean(scratch)


def test_no_rclone(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    said = pytest.raises(MissingRequirementError, match="rclone is not installed: apt-get install rclone")
    with said, rclone_mount(bucket, "off"):
        pass
