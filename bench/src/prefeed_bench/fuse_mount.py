"""FUSE mounts: rclone's of a bucket, as its documentation advises for data that is only read, and a directory that is slow."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.s3_origin import Bucket
from prefeed_bench.slow_directory import SlowDirectory, fuse_missing, slow_directory

CacheMode = Literal["off", "full"]

_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0
_SHOWN_LINES: Final = 3
"""Before the last ones may stand a page of its options."""

_OPTIONS: Final = (
    "--read-only",
    "--use-server-modtime",  # "S3 and Swift benefit hugely": else each stat is a request
    "--no-checksum",
    "--vfs-fast-fingerprint",  # "recommended" over S3
    "--dir-cache-time=24h",
    "--attr-timeout=1h",  # "more efficient" where files do not change
    "--poll-interval=0",
    "--vfs-cache-poll-interval=24h",
    "--vfs-cache-max-age=24h",
)

_OPEN_SECONDS: Final = 0.02


@contextlib.contextmanager
def slow_mount(root: Path, *, read_seconds: float = 0.0, remember_seconds: int = 3600) -> Iterator[SlowDirectory]:
    """Mount a directory, for the time of the block, where every open takes 20 ms; the kernel's cache has nothing of it.

    Args:
        root: The directory.
        read_seconds: Time that each request for bytes takes.
        remember_seconds: How long the kernel may use names and attributes without asking again.

    Raises:
        MissingRequirementError: FUSE is missing.
    """
    with slow_directory(
        root, open_seconds=_OPEN_SECONDS, read_seconds=read_seconds, remember_seconds=remember_seconds
    ) as slow:
        yield slow


@contextlib.contextmanager
def rclone_mount(bucket: Bucket, cache_mode: CacheMode) -> Iterator[Path]:
    """Mount a bucket read-only for the time of the block; give its directory.

    The mount and its cache on disk are new, so that nothing of an earlier run is in either, nor in the page cache.
    Afterwards it is unmounted, even if it is in use, and the process is gone; also when this process is killed.

    Args:
        bucket: What is mounted.
        cache_mode: ``full``: what was read is kept on disk; ``off``: it is not.

    Raises:
        MissingRequirementError: rclone or FUSE is missing.
        BenchFailedError: rclone cannot mount it; what it says is in the message.
    """
    _require_rclone()
    with tempfile.TemporaryDirectory(prefix="prefeed-rclone-cache-") as cache:
        point = Path(tempfile.mkdtemp(prefix="prefeed-rclone-"))
        try:
            with _running(bucket, point, Path(cache), cache_mode):
                yield point
        finally:
            point.rmdir()


def rclone_missing() -> str | None:
    """Return what a mount lacks here, as a sentence that says what to do; None when nothing is known to be missing."""
    if shutil.which("rclone") is None:
        return "rclone is not installed: apt-get install rclone"
    return fuse_missing()


def _require_rclone() -> None:
    missing = rclone_missing()
    if missing is not None:
        raise MissingRequirementError(f"this benchmark mounts an object store with FUSE, and {missing}")


@contextlib.contextmanager
def _running(bucket: Bucket, point: Path, cache: Path, cache_mode: CacheMode) -> Iterator[None]:
    """Run rclone for the time of the block; it has mounted, and will unmount when it is told to end, when the block begins."""
    log = cache / "rclone.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind("")  # a name that the kernel chooses, in no directory
        with log.open("wb") as said:
            process = subprocess.Popen(
                _command(bucket, point, cache, cache_mode),
                env={**_environment(bucket), "NOTIFY_SOCKET": "@" + ready.getsockname()[1:].decode()},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for the process that started it, which ends it
            )
        try:
            _wait_until_ready(process, ready, log)
            yield
        finally:
            _stop(process, point)


def _command(bucket: Bucket, point: Path, cache: Path, cache_mode: CacheMode) -> list[str]:
    # The kernel asks it to end when this process is killed.
    with_parent = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    return [
        *with_parent, "rclone", "mount", f"origin:{bucket.name}", str(point), "--config", os.devnull,
        *_OPTIONS, f"--vfs-cache-mode={cache_mode}", f"--cache-dir={cache / 'files'}",
    ]  # fmt: skip


def _environment(bucket: Bucket) -> dict[str, str]:
    """Return rclone's environment, with the remote ``origin`` in it: keys are in no process list."""
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": bucket.endpoint,
        "REGION": bucket.env["AWS_REGION"],
        "ACCESS_KEY_ID": bucket.env["AWS_ACCESS_KEY_ID"],
        "SECRET_ACCESS_KEY": bucket.env["AWS_SECRET_ACCESS_KEY"],
        "LIST_VERSION": "2",
        "LIST_URL_ENCODE": "false",
    }
    remote = {f"RCLONE_CONFIG_ORIGIN_{name}": value for name, value in settings.items()}
    # The user's own settings of rclone and of Amazon's library would be added to these.
    others = {name: value for name, value in os.environ.items() if not name.startswith(("RCLONE_", "AWS_"))}
    return {**others, **remote}


def _wait_until_ready(process: subprocess.Popen[bytes], ready: socket.socket, log: Path) -> None:
    """Wait for what rclone tells systemd: a mount may exist before a signal would end it."""
    deadline = time.monotonic() + _START_SECONDS
    ready.settimeout(0.02)
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            if b"READY=1" in ready.recv(4096).splitlines():
                return
    said = "\n".join(log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:])
    status = process.poll()
    what = "does not mount in" if status is None else f"ended with status {status} within"
    raise BenchFailedError(f"rclone {what} {_START_SECONDS:g} s:\n{said}")


def _stop(process: subprocess.Popen[bytes], point: Path) -> None:
    """End rclone, which unmounts; see to it that nothing is mounted any more, also if it was killed."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if str(point) in mounted():
        subprocess.run(["fusermount3", "-u", "-z", "-q", "--", str(point)], check=False)


def mounted() -> set[str]:
    """Return where something is mounted; it asks the kernel, and not a server that may be gone."""
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
