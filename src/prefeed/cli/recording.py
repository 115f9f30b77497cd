"""What ``prefeed run`` prepares before the program begins, so that there is a last line: a directory, and who watches."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from prefeed.cli.last_line import ORDER, place_of_stderr, read_order, remove
from prefeed.config import Config
from prefeed.sources.mounts import Roots
from prefeed.system.machine import Process
from prefeed.system.signals import ENDING, OF_JOBS
from prefeed.tally.opens import write_roots
from prefeed.tally.program import VARIABLE, own_prefix
from prefeed.wire.endpoint import make_runtime_dir

_PREFIX: Final = "run-"
_NEW_SECONDS: Final = 3600.0
"""A directory without an order is so long about to get one."""

_WATCHER: Final = Path(__file__).with_name("watcher.py")
_LEFT_ALONE: Final = OF_JOBS | ENDING | {signal.SIGTSTP}


@dataclass(frozen=True, slots=True)
class Record:
    """The directory in which the processes of a program count; ``""``: they do not."""

    directory: str

    @property
    def variables(self) -> dict[str, str]:
        """What the program finds in its environment."""
        return {VARIABLE: self.directory} if self.directory else {}

    def discard(self) -> None:
        """The program could not be started."""
        if self.directory:
            remove(self.directory)


def is_within_another(environ: dict[str, str] | os._Environ[str]) -> bool:
    """Return whether this is part of a program that ``prefeed run`` has started: that one says the last line."""
    directory = environ.get(VARIABLE, "")
    return bool(directory) and os.path.exists(os.path.join(directory, ORDER))


def require_writable(file: Path) -> None:
    """A file of this name can be made, or replaced.

    Raises:
        OSError: It cannot: its directory is not there, or this user may not write to it, or it is something else than a file.
    """
    path = os.path.realpath(file)
    if os.path.lexists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, "it is a directory" if os.path.isdir(path) else "it is not a file")
    descriptor, made = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    os.close(descriptor)
    os.unlink(made)


def begin_record(line: Sequence[str], config: Config, *, json_file: str | None, is_quiet: bool) -> Record:
    """Return where the program that this process is about to become counts, and have it watched.

    Args:
        line: The program's command line.
        config: Settings; their roots are directories.
        json_file: Absolute path of the file for machines.
        is_quiet: Nothing is to be said.

    Raises:
        PrefeedError, OSError: There is no directory for it.
    """
    runtime = make_runtime_dir(config.runtime_dirs)
    _sweep(runtime)
    directory = tempfile.mkdtemp(prefix=own_prefix(), dir=runtime)
    try:
        with contextlib.ExitStack() as held:
            process = _opened_process()
            if process is not None:
                held.callback(os.close, process)
            roots = Roots.of(config)
            order = {
                "program": list(line), "began": time.time(), "began_monotonic": time.monotonic(), "json": json_file,
                "is_quiet": is_quiet, "is_enabled": config.enabled, "roots": roots.describe(), "has_roots": bool(roots),
                "has_named_roots": config.roots is not None,
                "stderr": list(place_of_stderr()), "is_watched": process is not None, "path": sys.path,
                "process": asdict(Process.of(os.getpid())),
            }  # fmt: skip
            Path(directory, ORDER).write_text(json.dumps(order))
            if roots and config.enabled:
                write_roots(directory, roots.places, are_named=config.roots is not None)
            if process is not None:
                _start_watcher(directory, process)
    except BaseException:
        remove(directory)
        raise
    return Record(directory)


def _opened_process() -> int | None:
    """Return a descriptor that tells when this process has ended; None where the kernel has none, and the program cannot be watched.

    Who would watch process 1 of a container would be a child of it, as all orphans are, and so of the program that it becomes:
    one that waits for its last child would wait for ever. And it would be killed with process 1, before it could say a word.
    """
    if os.getpid() == 1:
        return None
    try:
        return os.pidfd_open(os.getpid())
    except OSError:
        return None


def _start_watcher(directory: str, process: int) -> None:
    """Start the watcher: no child of this process, in a session of its own, with nothing of this but the standard error."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, _LEFT_ALONE)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1):
                os.dup2(nowhere, number)
            kept = os.dup(process)
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2 and descriptor != kept:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            os.set_inheritable(kept, True)
            os.chdir("/")
            os.execv(sys.executable, [sys.executable, "-ISEB", str(_WATCHER), directory, str(kept)])
    finally:
        os._exit(0)


def _sweep(runtime: Path) -> None:
    """Remove what programs have left that were killed together with their watcher."""
    for found in runtime.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if not (found / ORDER).exists() and time.time() - found.stat().st_mtime > _NEW_SECONDS:
                remove(str(found))
            first = Process(**read_order(str(found))["process"])
            if not first.is_here or first.is_alive:
                continue
            with open(found / ORDER, "rb") as order:
                fcntl.flock(order, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(str(found))
