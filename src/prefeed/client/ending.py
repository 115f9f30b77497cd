"""Ends the node server, whatever it does: it is asked first, then told by signals, which need no answer."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import PrefeedError, ServerBusyError, ServerUnavailableError
from prefeed.system.trust import open_own
from prefeed.types import ServerEnd, SilentServer
from prefeed.wire.endpoint import LOCK

ANSWER_SECONDS: Final = 5.0
"""So long a server may take to answer a command before it counts as one that does not."""

_ORDERLY_SECONDS: Final = 60.0
"""So long a server that has said that it ends may take to write what waits for the disk."""

_PATIENCE_SECONDS: Final = 10.0
"""The same for one that was told by a signal, and for the kernel to end one that was killed."""

_SUSPENDED: Final = frozenset("Tt")


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that holds the lock of a home.

    Attributes:
        pid: Its number.
        descriptor: Stands for this very process, also when the number is another one's by now.
    """

    pid: int
    descriptor: int

    @property
    def is_suspended(self) -> bool:
        """True when it was stopped by a signal."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in _SUSPENDED

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal; nothing when it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def ends_within(self, seconds: float) -> bool:
        """Wait until it has ended; False when it has not."""
        ended = select.poll()
        ended.register(self.descriptor, select.POLLIN)
        return bool(ended.poll(1000 * seconds))


@contextmanager
def owner_of(config: Config) -> Iterator[Owner | None]:
    """Yield the process that holds the home's lock on this node; None when none is seen from here."""
    with contextlib.ExitStack() as held:
        found = None
        for directory in dict.fromkeys((*config.runtime_dirs, *config.common_runtime_dirs)):
            with contextlib.suppress(OSError, ValueError):
                within = open_own(directory)
                held.callback(os.close, within)
                lock = os.open(LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=within)
                held.callback(os.close, lock)
                pid = int(os.pread(lock, 32, 0).partition(b"\n")[0])
                process = os.pidfd_open(pid)
                held.callback(os.close, process)
                if _has_open(pid, os.fstat(lock)):
                    found = Owner(pid, process)
                    break
        yield found


def end_server(config: Config) -> ServerEnd:
    """The server of the home has ended: asked, or, when it does not answer, by signals.

    Raises:
        ServerUnavailableError: None runs.
        ServerBusyError: It cannot be ended.
    """
    with owner_of(config) as owner:
        if owner is None:
            try:
                return ServerEnd(pid=_ask_to_end(config))
            except ServerUnavailableError as err:
                if type(err) is not ServerUnavailableError or not err.details.get("is_absent"):
                    raise
                raise ServerUnavailableError(f"no server{_of_whom(config)}: there is nothing to stop") from err
        if not owner.is_suspended:
            with contextlib.suppress(PrefeedError):  # one of another version, or that can open nothing, takes a signal
                _ask_to_end(config)
                if owner.ends_within(_ORDERLY_SECONDS):
                    return ServerEnd(pid=owner.pid)
        owner.tell(signal.SIGTERM)
        owner.tell(signal.SIGCONT)
        if owner.ends_within(_PATIENCE_SECONDS):
            return ServerEnd(pid=owner.pid)
        owner.tell(signal.SIGKILL)
        if owner.ends_within(_PATIENCE_SECONDS):
            return ServerEnd(pid=owner.pid, killed=True)
        raise ServerBusyError(
            f"the node server (pid {owner.pid}) was killed, and the kernel has not ended it after {_PATIENCE_SECONDS:g} s. "
            f"A process stays while its control group is frozen or a file system does not answer: see `ps -o stat,wchan {owner.pid}`",
            pid=owner.pid,
        )


def silent_server(config: Config) -> SilentServer | None:
    """Return what is known of a server that owns the home and does not answer; None when there is none."""
    with owner_of(config) as owner:
        return None if owner is None else SilentServer(pid=owner.pid, suspended=owner.is_suspended)


def _ask_to_end(config: Config) -> int:
    with NodeClient.connect(config, autostart=False, answer_seconds=ANSWER_SECONDS) as node:
        pid = node.status().pid
        node.stop()
    return pid


def _of_whom(config: Config) -> str:
    """Describe the server that was looked for, because a server of another user is neither found nor ended."""
    owner = os.geteuid()
    with contextlib.suppress(OSError):
        owner = config.home.stat().st_uid
    if owner == os.geteuid():
        return f" runs for {config.home}"
    return f" of user {os.geteuid()} runs for {config.home}, which is of user {owner}, who alone can stop a server of theirs"


def _has_open(pid: int, lock: os.stat_result) -> bool:
    """Return whether a process of this user has a lock file open as its holder does; who looks into it only reads."""
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if not os.path.samestat(os.stat(f"/proc/{pid}/fd/{descriptor}"), lock):
                continue
            lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
            flags = next(int(line.split()[1], 8) for line in lines if line.startswith("flags:"))
            if flags & os.O_ACCMODE == os.O_RDWR:
                return True
    return False
