"""A thread of the server that fetches parts of objects: what a fetch process does, without a process to start.

A part is a block of 1 MiB. Receiving it takes ten times as long as the interpreter needs for it, so that a thread does not wait for
the lock of the interpreter; and a shard is read to its end before a process would be there.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Final

from prefeed.core.requests import START_OF_BLOCKS
from prefeed.server.fetch_process import FetchProcess, ServerGoneError
from prefeed.server.fetch_processes import FetchProcesses, JobT, Program, Watcher
from prefeed.store.log import LogWriter
from prefeed.system.clock import Clock

_END_SECONDS: Final = 60.0


class FetchThread(FetchProcesses[JobT]):
    """One thread, in the place of processes; started with the first fetch, ended when it was idle for a minute.

    **Threads and processes.** As ``FetchProcesses``. The thread is a daemon: it ends with the server, however that ends.
    """

    begins_at_once = True
    first_limit = START_OF_BLOCKS

    def __init__(self, tier: LogWriter, *, watcher: Watcher, clock: Clock) -> None:
        """Start none yet; see ``FetchProcesses``."""
        super().__init__(tier, number=1, watcher=watcher, clock=clock)

    def _begun(self, sock: socket.socket) -> Program:
        return _Fetcher(sock.dup(), self._tier.segments)


class _Fetcher:
    """The thread. It ends when the server's end of its socket is closed."""

    def __init__(self, sock: socket.socket, segments: Sequence[int]) -> None:
        with ExitStack() as undo:
            undo.callback(sock.close)
            own: list[int] = []  # segments: it may write until it ends
            for segment in segments:
                own.append(os.dup(segment))
                undo.callback(os.close, own[-1])
            fetcher = FetchProcess(sock, own)
            undo.callback(fetcher.close)
            opened = undo.pop_all()
        self._thread = threading.Thread(target=_fetch, args=(fetcher, opened), name="prefeed-parts", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as err:  # no more threads are to be had
            opened.close()
            raise OSError(str(err)) from err

    @property
    def pid(self) -> int:
        """The server's."""
        return os.getpid()

    def poll(self) -> int | None:
        """Return None while it runs."""
        return None if self._thread.is_alive() else 0

    def kill(self) -> None:
        """Do nothing: its socket was closed."""

    def wait(self) -> int:
        """Wait for its end."""
        self._thread.join(_END_SECONDS)
        return 0


def _fetch(fetcher: FetchProcess, opened: ExitStack) -> None:
    with opened, suppress(ServerGoneError):
        fetcher.run()
