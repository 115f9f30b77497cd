"""Epochs that no server was told of: kept in this process, and told once a server listens.

A loader that reads in place has no connection. A server that runs for others hears of it in a thread, at the end of an epoch.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import replace
from time import perf_counter
from typing import Final

from prefeed.client.connection import Connection
from prefeed.client.launch import is_listening
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import PrefeedError
from prefeed.types import EPOCHS_KEPT, EpochWait
from prefeed.wire import messages as m

_ANSWER_SECONDS: Final = 1.0
"""A server that does not answer for so long is busy: it is told at the end of the next epoch."""

_QUESTIONS: Final = 3
"""The shortest answer counts: this thread may have to wait for the loop's."""

_NO_CONSUMER: Final = 0


class Untold:
    """Epochs of one process.

    **Threads and processes.** Any thread; a forked child has none of its parent's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: deque[tuple[str, EpochWait]] = deque(maxlen=EPOCHS_KEPT)
        self._telling: threading.Thread | None = None

    def keep(self, epoch: EpochWait, config: Config | None = None) -> None:
        """Keep an epoch; tell the server of these settings, if there are any and one listens, in a thread."""
        with self._lock:
            self._epochs.append(("" if config is None else config.home_id, epoch))
            is_telling = self._telling is not None and self._telling.is_alive()
        if config is None or is_telling or not is_listening(config):
            return
        try:
            self._telling = threading.Thread(target=self._tell, args=(config,), name="prefeed-tell")
            self._telling.start()
        except RuntimeError:  # the process may have no more threads
            self._telling = None

    def all(self) -> tuple[EpochWait, ...]:
        """Return what no server was told of, the oldest first; what is being told now is waited for."""
        thread = self._telling
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            return tuple(epoch for _, epoch in self._epochs)

    def _tell(self, config: Config) -> None:
        with self._lock:
            told = [one for one in self._epochs if one[0] == config.home_id]
        try:
            connection = Connection.try_open(config, answer_seconds=_ANSWER_SECONDS)
            if connection is None:
                return
            try:
                node = NodeClient(connection)
                round_trip_seconds = min(_ask(node) for _ in range(_QUESTIONS))
                for _, epoch in told:
                    connection.send(m.EpochEnded(_with_question(epoch, round_trip_seconds)))
                _ask(node)  # it has heard all of them
            finally:
                connection.close()
        except (PrefeedError, OSError):
            return
        with self._lock:
            self._epochs = deque((one for one in self._epochs if one not in told), maxlen=EPOCHS_KEPT)


def _ask(node: NodeClient) -> float:
    """Ask what costs the server nothing; return how long the answer took, in seconds."""
    began = perf_counter()
    node.read_counts(_NO_CONSUMER, within_seconds=_ANSWER_SECONDS)
    return perf_counter() - began


def _with_question(epoch: EpochWait, round_trip_seconds: float) -> EpochWait:
    return (
        epoch
        if epoch.reads is None
        else replace(epoch, reads=replace(epoch.reads, round_trip_seconds=round_trip_seconds))
    )


_untold = Untold()


def _begin_forked() -> None:
    global _untold
    _untold = Untold()


os.register_at_fork(after_in_child=_begin_forked)


def keep_untold(epoch: EpochWait, config: Config | None = None) -> None:
    """Keep what a loader without a connection reports of an epoch: of this process's, the last ones.

    Args:
        epoch: That ended.
        config: Of the node whose server is told, if one listens; None: none is.
    """
    _untold.keep(epoch, config)


def untold_epochs() -> tuple[EpochWait, ...]:
    """Return the epochs of this process's loaders that no server was told of, the oldest first."""
    return _untold.all()
