"""A directory whose every open takes time, and that counts opens and reads: what a network file system is to a program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from prefeed.fuse.device import PROGRAM, missing
from prefeed_bench.errors import BenchFailedError, MissingRequirementError

_END_SECONDS: Final = 10.0


class SlowDirectory:
    """A mounted directory; see ``slow_directory``.

    **Threads and processes.** Any thread; only the process that made it. A process forked from it may read files, but
    not ask for counts.

    Attributes:
        path: Where it is mounted.
        source: The directory that it shows.
        pid: Process id of its server, whose processor time a benchmark may want to know.
    """

    def __init__(self, *, path: Path, source: Path, server: subprocess.Popen[str]) -> None:
        self.path = path
        self.source = source
        self.pid: int = server.pid
        self._server = server
        self._lock = threading.Lock()

    def opens(self) -> int:
        """Return how many files were opened so far; failed opens count."""
        return sum(self.opens_by_file().values())

    def opens_by_file(self) -> dict[str, int]:
        """Return how often each file was opened, by its path relative to the directory; never opened: not there."""
        return self._counts()["opens"]

    def reads(self) -> int:
        """Return how often the kernel asked for bytes; it does not for what is in its page cache."""
        return sum(self.reads_by_file().values())

    def reads_by_file(self) -> dict[str, int]:
        """Return how often the kernel asked for bytes of each file, by its path relative to the directory."""
        return self._counts()["reads"]

    def _counts(self) -> dict[str, dict[str, int]]:
        requests, answers = _pipes(self._server)
        with self._lock:
            try:
                requests.write("counts\n")
                requests.flush()
                line = answers.readline()
            except BrokenPipeError:
                line = ""
        if not line:
            raise BenchFailedError(f"the server of {self.path} has ended with status {self._server.wait()}")
        counts: dict[str, dict[str, int]] = json.loads(line)
        return counts


@contextlib.contextmanager
def slow_directory(
    source: Path,
    *,
    open_seconds: float = 0.0,
    read_seconds: float = 0.0,
    remember_seconds: int = 3600,
    silent: str = "",
) -> Iterator[SlowDirectory]:
    """Show ``source`` read-only as another directory, whose opens are slow and counted, for the time of the block.

    It is a FUSE mount with a process of its own; its type in ``/proc/self/mountinfo`` is ``fuse.slow``, so that it is
    taken for a network file system. Opening a file takes ``open_seconds``, and each request of the kernel for bytes ``read_seconds``,
    however many there are at once; listing, ``stat`` and reading take what they take. Afterwards it is unmounted, even if it is in use, and the
    process is gone; also when this process is killed.

    Args:
        source: An existing directory.
        open_seconds: Time that each open of a file takes.
        read_seconds: Time that each request for bytes takes, of up to 128 KiB as a rule; none is made for what the kernel has.
        remember_seconds: How long the kernel may use names and attributes without asking again; 0 to have a change of
            ``source`` seen at the next ``stat`` or open, as a network file system without a cache would.
        silent: Path below ``source`` of a file that can be opened, but whose reads are never answered; empty: there is none.

    Raises:
        MissingRequirementError: FUSE is missing or not allowed here.
    """
    if not source.is_dir():
        raise NotADirectoryError(f"{source} is not a directory")
    if min(open_seconds, read_seconds, remember_seconds) < 0:
        raise ValueError(
            f"open_seconds, read_seconds and remember_seconds cannot be negative: {open_seconds}, {read_seconds}, {remember_seconds}"
        )
    _require_fuse()
    mount_point = tempfile.mkdtemp(prefix="prefeed-slow-")
    try:
        server = _start(source.resolve(), mount_point, open_seconds, read_seconds, remember_seconds, silent)
        try:
            yield SlowDirectory(path=Path(mount_point), source=source, server=server)
        finally:
            _stop(server, mount_point)
    finally:
        os.rmdir(mount_point)


def fuse_missing() -> str | None:
    """Return what FUSE lacks here, as a sentence that says what to do; None when nothing is known to be missing."""
    if shutil.which(PROGRAM) is None:
        return f"{PROGRAM} is not installed: apt-get install fuse3"
    return missing()


def _require_fuse() -> None:
    missing = fuse_missing()
    if missing is not None:
        raise MissingRequirementError(missing)


def _start(
    source: Path, mount_point: str, open_seconds: float, read_seconds: float, remember_seconds: int, silent: str
) -> subprocess.Popen[str]:
    module = "prefeed_bench.slow_directory_server"
    command = [
        sys.executable, "-m", module, str(source), mount_point,
        str(open_seconds), str(read_seconds), str(remember_seconds), silent,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as errors:
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,  # Ctrl-C is for the process that started it, which closes it
        )
        _, answers = _pipes(server)
        if answers.readline() != "ready\n":
            _close(server)
            errors.seek(0)
            raise MissingRequirementError(f"{source} cannot be mounted with FUSE:\n{errors.read().strip()}")
    return server


def _stop(server: subprocess.Popen[str], mount_point: str) -> None:
    """End the server and see to it that nothing is mounted any more, also if it was killed."""
    _close(server)
    if os.path.ismount(mount_point) or not _answers(mount_point):
        subprocess.run(["fusermount3", "-u", "-z", "-q", "--", mount_point], check=False)


def _answers(mount_point: str) -> bool:
    """Return False for a mount whose server is gone."""
    try:
        os.stat(mount_point)
    except OSError:
        return False
    return True


def _close(server: subprocess.Popen[str]) -> None:
    requests, answers = _pipes(server)
    with contextlib.suppress(BrokenPipeError):
        requests.write("end\n")  # closing is not enough while a forked child has the pipe too
        requests.close()
    try:
        server.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    answers.close()


def _pipes(server: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert server.stdin is not None, "started with pipes"
    assert server.stdout is not None, "started with pipes"
    return server.stdin, server.stdout
