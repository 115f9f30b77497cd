"""Starts the node server: a detached process that outlives its first client."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from prefeed.config import SETTINGS, Config, as_text
from prefeed.errors import PrefeedError, ServerAlreadyRunningError, ServerBusyError, ServerUnavailableError
from prefeed.limits import LIMITS_VARIABLE
from prefeed.places import is_nowhere
from prefeed.system.locks import file_lock
from prefeed.system.signals import hold_job_signals
from prefeed.wire.endpoint import SOCKET, connect_in, find_server, make_runtime_dir, peer_process, say_passed_over

_ALREADY_RUNNING_STATUS = 4
_POLL_SECONDS = 0.01

_LET_IN_TIME = struct.pack("@ll", 10, 0)
"""Seconds and microseconds to wait for a server whose queue of connections is full."""

_launching = threading.RLock()
"""Held while a process is started: a child that another thread forks meanwhile would keep the pipe that tells of its start.
And while a socket is made."""

os.register_at_fork(before=_launching.acquire, after_in_parent=_launching.release, after_in_child=_launching.release)


@contextlib.contextmanager
def _without_forks() -> Iterator[None]:
    """Inside it no other thread forks, and nothing is collected: a finalizer could wait for who has to wait to fork."""
    with _launching:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


_reached: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child: the server would take its parent for alive as long as the child has the socket."""
    for sock in list(_reached):
        sock.close()
    _reached.clear()


os.register_at_fork(after_in_child=_close_inherited)

_started: list[subprocess.Popen[bytes]] = []
"""Servers that this process started and that have not been seen to end."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A connection to a server of this user, and the runtime directory in which it listens."""

    sock: socket.socket
    directory: Path


_ahead: dict[str, tuple[subprocess.Popen[bytes], int]] = {}
"""By home: a server that was started before a client needs it, and where its words begin in the log."""

os.register_at_fork(after_in_child=_ahead.clear)


def try_connect(config: Config, *, may_wait: bool = True) -> Reached | None:
    """Return a connection to the server of the home, or None when none listens.

    Another user's directory, or a socket that another user listens on, is passed over; that is said when a server is
    found behind it, or started.

    Args:
        config: Settings.
        may_wait: For a server whose queue of connections is full.

    Raises:
        ServerBusyError: That is so, and this may not wait, or waited in vain.
        ServerUnavailableError: There is no home directory.
    """
    require_home(config)
    for place in _places(config):
        if not os.path.lexists(place / SOCKET):
            continue
        with _launching:  # a child has none that it does not know of
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            _reached.add(sock)
        sock.setblocking(may_wait)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _LET_IN_TIME)
        try:
            connect_in(place, sock)
        except BlockingIOError as err:
            sock.close()
            raise ServerBusyError("the node server accepts no connections: it is busy, or suspended") from err
        except OSError:  # no process listens there, or one of another user
            sock.close()
        else:
            say_passed_over(takewhile(place.__ne__, config.runtime_dirs))
            return Reached(sock, place)
    _collect_ended()
    return None


def is_listening(config: Config) -> bool:
    """Return whether a server of the home takes connections, or is too busy to."""
    try:
        reached = try_connect(config, may_wait=False)
    except ServerBusyError:
        return True
    except ServerUnavailableError:
        return False
    if reached is not None:
        reached.sock.close()
    return reached is not None


def require_home(config: Config) -> None:
    """Raise ``ServerUnavailableError`` when there is no home directory to keep anything in."""
    if is_nowhere(config.home):
        raise ServerUnavailableError(
            f"there is no home directory: HOME is not set, and user {os.getuid()} is not in the system's list of users; "
            "set PREFEED_HOME to a directory that you can write to"
        )


def _places(config: Config) -> Iterator[Path]:
    """Yield where a server may listen: the runtime directories, and where a server says in one that it is."""
    for directory in config.runtime_dirs:
        yield directory
        if (place := find_server(directory)) != directory:
            yield place


def _collect_ended() -> None:
    """Ask after the servers that this process started: one that has ended is no zombie from then on."""
    for process in list(_started):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread was quicker
                _started.remove(process)


def start_server(config: Config, *, arguments: Sequence[str] = ()) -> int:
    """Start a server and return its process id once it answers.

    Args:
        config: Settings.
        arguments: Options of the server's command line, such as ``--port``.

    Raises:
        ServerAlreadyRunningError: One is running already.
        ServerUnavailableError: It ended, or did not answer in ``start_seconds``; the message holds its last words.
    """
    pid, reached = launch_and_connect(config, allow_running=False, arguments=arguments)
    reached.sock.close()
    return pid


def start_ahead(config: Config) -> bool:
    """Start a server, if none listens, and do not wait for it; return whether one was started.

    ``launch_and_connect`` of this process waits for it instead of starting another one.
    """
    if not config.autostart or config.home_id in _ahead or is_listening(config):
        return False
    try:
        require_home(config)
        process, start = _begin(config, make_runtime_dir(config.runtime_dirs) / "server.log")
    except (OSError, PrefeedError):
        return False  # the client that needs it says why
    _started.append(process)
    _ahead[config.home_id] = process, start
    return True


def launch_and_connect(
    config: Config, *, allow_running: bool = True, arguments: Sequence[str] = ()
) -> tuple[int, Reached]:
    """Return (pid, connection) of a server that was started now or, if allowed, just before by another client."""
    require_home(config)
    log = make_runtime_dir(config.runtime_dirs) / "server.log"
    ahead = _ahead.pop(config.home_id, None)
    if ahead is not None and allow_running and ahead[0].poll() is None:
        process, start = ahead
    else:
        try:
            process, start = _begin(config, log, arguments)
        except OSError as err:
            raise ServerUnavailableError(f"the node server could not be started: {err}") from err
        _started.append(process)
    deadline = time.monotonic() + config.limits.start_seconds
    while time.monotonic() < deadline:
        status = process.poll()
        reached = try_connect(config) if status in (None, _ALREADY_RUNNING_STATUS) else None
        if reached is not None:
            server_pid, _ = peer_process(reached.sock)
            if allow_running or server_pid == process.pid:
                return server_pid, reached
            reached.sock.close()  # another server's: the new one is about to say so
        if status == _ALREADY_RUNNING_STATUS and not allow_running:
            raise ServerAlreadyRunningError(_last_words(log, start) or f"a server already serves {config.home}")
        if status not in (None, _ALREADY_RUNNING_STATUS):
            words = _last_words(log, start)
            raise ServerUnavailableError(f"the node server ended with status {status}: {words or f'see {log}'}")
        select.select([], [], [], _POLL_SECONDS)
    raise ServerUnavailableError(
        f"the node server did not answer in {log.parent} in {config.limits.start_seconds:g} s; see {log}"
    )


@contextlib.contextmanager
def in_turn(config: Config) -> Iterator[None]:
    """Inside it, no other process that does the same starts a server; it is waited for, ``start_seconds`` at most.

    For many processes that find none at one moment: whose turn comes later finds the one that was started.
    """
    with file_lock(make_runtime_dir(config.runtime_dirs) / "starting", within_seconds=config.limits.start_seconds):
        yield


def _begin(config: Config, log: Path, arguments: Sequence[str] = ()) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server, and return it with where its words begin in the log."""
    environment = server_environment(config, os.environ)
    with log.open("ab") as output, _without_forks(), hold_job_signals():
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed.server", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=environment,
        )
    return process, start


def server_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server with exactly these settings, wherever they came from."""
    environment = dict(environ)
    for name in SETTINGS:  # each, also defaults: else a file could name another value
        environment[f"PREFEED_{name.upper()}"] = as_text(name, getattr(config, name))
    environment[LIMITS_VARIABLE] = str(config.limits)
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return environment


def _last_words(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read()[-4000:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("prefeed: ") if lines else ""
