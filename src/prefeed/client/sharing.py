"""What readers that take turns have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset
from prefeed.client.writes import written_files
from prefeed.sources.written import WrittenFiles


class Shared:
    """What readers that take turns have in common: with 200 datasets open, one connection and not 200.

    It is one connection per home, and one record of written files per server's directory.

    **Ownership.** Its maker closes it; readers that use it close only a connection that broke.
    **Threads and processes.** One reader at a time; a forked child makes its own.
    """

    def __init__(self) -> None:
        self._connections: dict[Path, Connection] = {}
        self._written: dict[str, WrittenFiles] = {}

    def connection(self, home: Path, open_one: Callable[[], Connection]) -> Connection:
        """Return the connection to the server of a home, opened if there is none, or only a closed one."""
        connection = self._connections.get(home)
        if connection is None or connection.is_closed:
            connection = self._connections[home] = open_one()
        return connection

    def written(self, dataset: NodeDataset) -> WrittenFiles | None:
        """Return which files of a dataset count as written; see ``written_files``."""
        if not dataset.runtime_dir or not dataset.manifest.url.startswith("/"):
            return written_files(dataset)
        found = self._written.get(dataset.runtime_dir)
        if found is None:
            found = written_files(dataset)
            assert found is not None  # its objects are files
            self._written[dataset.runtime_dir] = found
        return found

    def close(self) -> None:
        """Let go of all of it."""
        for connection in self._connections.values():
            connection.close()
        for written in self._written.values():
            written.close()
        self._connections.clear()
        self._written.clear()
