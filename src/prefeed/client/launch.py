"""Starts the node server: a detached process that outlives its first client."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from prefeed.config import Config
from prefeed.errors import ServerAlreadyRunningError, ServerUnavailableError
from prefeed.wire.endpoint import ensure_private_dir, peer_process

_ALREADY_RUNNING_STATUS = 4
_POLL_SECONDS = 0.01

_started: list[subprocess.Popen[bytes]] = []
"""Servers that this process started and that have not been seen to end."""


def try_connect(config: Config, *, may_wait: bool = True) -> socket.socket | None:
    """Return a connected socket, or None when no server listens.

    Args:
        config: Settings.
        may_wait: For a server that has so many waiting to be let in that it takes no more.

    Raises:
        ServerUnavailableError: That is so, and this may not wait.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setblocking(may_wait)
    try:
        sock.connect(str(config.socket_path))
    except BlockingIOError as err:
        sock.close()
        raise ServerUnavailableError("the node server lets nobody in: it hangs, or was stopped") from err
    except OSError:
        sock.close()
        _collect_ended()
        return None
    return sock


def _collect_ended() -> None:
    """Ask after the servers that this process started: one that has ended is no zombie from then on."""
    for process in list(_started):
        if process.poll() is not None:
            with contextlib.suppress(ValueError):  # another thread was quicker
                _started.remove(process)


def start_server(config: Config) -> int:
    """Start a server and return its process id once it answers.

    Raises:
        ServerAlreadyRunningError: One is running already.
        ServerUnavailableError: It ended, or did not answer in ``start_timeout``; the message holds its last words.
    """
    pid, sock = launch_and_connect(config, allow_running=False)
    sock.close()
    return pid


def launch_and_connect(config: Config, *, allow_running: bool = True) -> tuple[int, socket.socket]:
    """Return (pid, connected socket) of a server that was started now or, if allowed, just before by another client."""
    ensure_private_dir(config.runtime_dir)
    log = config.runtime_dir / "server.log"
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed.server"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=server_environment(config, os.environ),
        )
    _started.append(process)
    deadline = time.monotonic() + config.start_timeout
    while time.monotonic() < deadline:
        status = process.poll()
        sock = try_connect(config) if status in (None, _ALREADY_RUNNING_STATUS) else None
        if sock is not None:
            server_pid, _ = peer_process(sock)
            if allow_running or server_pid == process.pid:
                return server_pid, sock
            sock.close()  # another server's: the new one is about to say so
        if status == _ALREADY_RUNNING_STATUS and not allow_running:
            raise ServerAlreadyRunningError(_last_words(log, start) or f"a server already serves {config.home}")
        if status not in (None, _ALREADY_RUNNING_STATUS):
            words = _last_words(log, start)
            raise ServerUnavailableError(f"the node server ended with status {status}: {words or f'see {log}'}")
        select.select([], [], [], _POLL_SECONDS)
    raise ServerUnavailableError(
        f"the node server did not answer on {config.socket_path} in {config.start_timeout:g} s; see {log}, "
        "or raise PREFEED_START_TIMEOUT"
    )


def server_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server with exactly these settings, wherever they came from."""
    environment = dict(environ)
    for setting in fields(config):
        value = getattr(config, setting.name)
        name = f"PREFEED_{setting.name.upper()}"
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = _as_text(value)
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    return environment


def _as_text(value: object) -> str:
    if isinstance(value, tuple):
        return os.pathsep.join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _last_words(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read()[-4000:].decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("prefeed: ") if lines else ""
