"""Processes of a test that mount what they like: nobody else sees it, and it is gone when they end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from leaks import read_proc, wait_until
from prefeed.config import resolve
from prefeed.errors import MountError
from prefeed.fuse.device import missing
from prefeed.mount.starting import MountHandle, start_mount, stop_mount
from process.children import child_running

_CLONE_NEWNS = 0x00020000
_MS_BIND = 0x1000
_MS_REC_PRIVATE = 0x4000 | 0x40000
_MNT_DETACH = 2
_CAPABILITIES = struct.Struct("=IIIIII")
_CAPABILITY_VERSION = 0x20080522
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1 << 1, 1 << 2
CAP_SYS_ADMIN = 1 << 21

_libc = ctypes.CDLL(None, use_errno=True)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def with_own_mounts(scenario: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process with a mount namespace of its own; what it raises fails the test."""
    with child_running(_run, scenario, arguments) as (process, pipe):
        try:
            failure = pipe.recv()
        except EOFError:
            process.join()
            failure = f"the process ended with {process.exitcode}"
    if failure:
        pytest.fail(failure, pytrace=False)


def _run(scenario: Callable[..., None], arguments: tuple[Any, ...], pipe: Connection) -> None:
    try:
        _checked(_libc.unshare(_CLONE_NEWNS), "unshare")
        _checked(_libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None), "/")
        scenario(*arguments)
    except BaseException:  # noqa: BLE001 - raised again where the test is
        pipe.send(traceback.format_exc())
    else:
        pipe.send("")


def bind(directory: Path, point: Path) -> Path:
    """Mount a directory, or a file, at another place; ``st_dev`` is the same at both."""
    if directory.is_dir():
        point.mkdir(parents=True, exist_ok=True)
    _checked(_libc.mount(os.fsencode(directory), os.fsencode(point), None, _MS_BIND, None), point)
    return point


def tmpfs(point: Path) -> Path:
    """Mount an empty file system there."""
    point.mkdir(parents=True, exist_ok=True)
    _checked(_libc.mount(b"tmpfs", os.fsencode(point), b"tmpfs", 0, None), point)
    return point


def unmount(point: Path) -> None:
    """Take away what is mounted there, whoever uses it."""
    _checked(_libc.umount2(os.fsencode(point), _MNT_DETACH), point)


@contextlib.contextmanager
def mounted(url: str | os.PathLike[str], point: Path, **options: Any) -> Iterator[MountHandle]:
    """Mount an origin with this test's settings, for the time of the block; skips the test where FUSE is missing."""
    if (lacking := missing()) is not None:
        pytest.skip(f"mounts need FUSE: {lacking}")
    with contextlib.suppress(FileExistsError):  # a dead mount is one that cannot be asked for
        point.mkdir()
    mounting = start_mount(os.fspath(url), point, resolve(), **options)
    daemon = daemon_of(mounting)
    try:
        yield mounting
    finally:
        with contextlib.suppress(MountError):  # the test may have ended it
            stop_mount(point, lazily=True)
        end_mount(mounting, daemon)


def end_mount(mounting: MountHandle, daemon: int) -> None:
    """Wait for the processes of a mount that was taken away; one that does not end within a minute fails the test."""
    pids = (mounting.holder.pid, daemon_of(mounting) or daemon)
    has_all_ended = wait_until(lambda: all(map(has_ended, pids)), timeout_seconds=60)
    if not has_all_ended:  # with both gone, reads that are stuck fail
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    mounting.holder.wait()
    assert has_all_ended, f"processes of {mounting.point} did not end:\n{mounting.log.read_text()}"


def daemon_of(mounting: MountHandle) -> int:
    """Return the process that answers for a mount; 0 while there is none."""
    children = read_proc(mounting.holder.pid, f"task/{mounting.holder.pid}/children").split()
    return int(children[0]) if children else 0


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or only waits to be asked for."""
    state = read_proc(pid, "stat").rpartition(b")")[2].split()
    return not state or state[0] in (b"Z", b"X")


@contextlib.contextmanager
def dead_fuse(point: Path) -> Iterator[None]:
    """Mount something by FUSE for which nobody answers any more: ENOTCONN from then on."""
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this machine has no FUSE")
    point.mkdir(parents=True, exist_ok=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    _checked(_libc.mount(b"fuse", os.fsencode(point), b"fuse", 0, options), point)
    os.close(device)
    try:
        with pytest.raises(OSError, match="not connected"):
            os.listdir(point)
        yield
    finally:
        unmount(point)


def obey_modes() -> None:
    """Root is refused what the modes of files refuse to anybody, in this thread and those that it starts."""
    drop_capability(_DAC_OVERRIDE | _DAC_READ_SEARCH)


def drop_capability(bits: int) -> None:
    """Have this thread, and those that it starts, do without these of the first 32 capabilities."""
    header = ctypes.create_string_buffer(struct.pack("=II", _CAPABILITY_VERSION, 0))
    data = ctypes.create_string_buffer(_CAPABILITIES.size)
    _checked(_libc.capget(header, data), "capget")
    effective, *rest = _CAPABILITIES.unpack(data.raw)
    effective &= ~bits
    _checked(_libc.capset(header, ctypes.create_string_buffer(_CAPABILITIES.pack(effective, *rest))), "capset")


def _checked(result: int, what: object) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
