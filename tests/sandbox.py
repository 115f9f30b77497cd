"""Directories of one test, and the processes that were started with them."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from leaks import SANDBOX_PREFIX, SHM, mount_points, parent_of, processes, read_proc
from prefeed.config import Config

SERVER_MODULE = b"prefeed.server"
STOP_TIMEOUT_SECONDS = 90.0


@dataclass(frozen=True)
class Sandbox:
    """Directories of one test. Paths are short: a Unix socket's path holds 107 bytes."""

    root: Path
    memory_dir: Path

    @classmethod
    def create(cls) -> Sandbox:
        sandbox = cls(root=_private_dir(Path("/tmp")), memory_dir=_private_dir(SHM))
        sandbox.home.mkdir()
        sandbox.runtime_dir.mkdir(mode=0o700)
        return sandbox

    def remove(self) -> None:
        for lock in Path("/tmp").glob(f"prefeed-{os.getuid()}/*/server.lock"):
            with contextlib.suppress(FileNotFoundError):  # another run removes its own
                home_id = Config(home=self.home).home_id
                if os.fsencode(self.root) in lock.read_bytes() or lock.parent.name.startswith(home_id):
                    shutil.rmtree(lock.parent)
        shutil.rmtree(self.root)
        shutil.rmtree(self.memory_dir)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def runtime_dir(self) -> Path:
        return self.root / "run"


def _private_dir(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{SANDBOX_PREFIX}{os.getpid()}-", dir=parent))


def remove_left_by_killed_runs() -> None:
    """Remove the sandboxes of test runs that were killed before they could."""
    for path in [*Path("/tmp").glob(f"{SANDBOX_PREFIX}*"), *SHM.glob(f"{SANDBOX_PREFIX}*")]:
        owner = re.match(rf"{SANDBOX_PREFIX}(\d+)-", path.name)
        with contextlib.suppress(FileNotFoundError):  # another run removes them too
            if owner and path.stat().st_uid == os.getuid() and not Path(f"/proc/{owner[1]}").exists():
                for point in reversed(mount_points(path)):
                    subprocess.run(["umount", "--lazy", point], check=True)
                shutil.rmtree(path)


def processes_of(sandbox: Sandbox) -> list[int]:
    """Return the processes whose environment names the sandbox: started by its test, whoever their parent is now."""
    mark = os.fsencode(sandbox.root) + b"/"
    return [pid for pid in processes() if pid != os.getpid() and mark in read_proc(pid, "environ")]


def servers_of(sandbox: Sandbox) -> list[int]:
    """Return the node servers that were started under the sandbox, without the children that free their memory."""
    found = [pid for pid in processes_of(sandbox) if SERVER_MODULE in read_proc(pid, "cmdline").split(b"\0")]
    return [pid for pid in found if parent_of(pid) not in found]


def end_all(pids: list[int]) -> None:
    """End processes and wait until they are gone: first asked to, then killed."""
    for pid in pids:
        _end(pid)
        with contextlib.suppress(ChildProcessError):  # a server is a child of who started it, or has been collected
            os.waitpid(pid, os.WNOHANG)


def _end(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return
            if select.select([descriptor], [], [], STOP_TIMEOUT_SECONDS)[0]:
                return
    finally:
        os.close(descriptor)
