"""Files that are read beside the loop, in any thread or child, from the node's cache: ``reads = all``.

path ─→ stat ─→ key ─→ tier ─hit→ bytes
          │              │ miss
          │              ↓
          │           server ─→ bytes     it reads the file once, for all who want it, and keeps it for the loop
          │ large ─→ blocks: see ``large_files``
          ↓ gone, special, just written; no server, no room
        None: who opens the file does so itself
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Final

from prefeed.client.blocks import close_blocks
from prefeed.client.dataset import NodeDataset, open_dataset_beside
from prefeed.client.large_files import LargeFiles
from prefeed.client.launch import in_turn
from prefeed.client.node import NodeClient
from prefeed.client.reader import ObjectReader
from prefeed.client.readers import IdleReaders
from prefeed.config import Config
from prefeed.core.requests import Again
from prefeed.errors import PrefeedError, ServerUnavailableError, StoreFormatError
from prefeed.interception import answer_everywhere, install
from prefeed.interception.asking import Answer
from prefeed.sources.catalogue import Catalogue
from prefeed.sources.file_versions import version_of
from prefeed.sources.manifest import entry_key
from prefeed.sources.mounts import Roots
from prefeed.sources.steadiness import is_old

_LARGE: Final = b"large"


class ReadsBeside:
    """Answers who opens files below the roots outside of samples: an ``interception.FileReader``.

    A file is asked for size and time before each read, by ``stat``: what is given are the bytes that it has then. The
    server is looked for at the first read, and started if need be. While it cannot be had, files are opened as they are.

    **Threads and processes.** Any thread, each with a connection of its own while it asks; goes with a fork.
    **Blocking.** As a reader of samples: for the server's answer, and at the first read for its start.

    Attributes:
        outcomes: How many reads were answered from the tier (``hit``), by the server (``fetched``), or passed by
            (``origin``), or that are in blocks (``blocks``), in this process. Every read below the roots is counted once, in ``read_file``.
    """

    def __init__(self, config: Config, roots: Roots) -> None:
        self.outcomes: Counter[str] = Counter()
        self._config = config
        self._roots = roots
        self._is_over = False
        self._served = threading.local()
        self._begin_anew()
        self._dataset: NodeDataset | None = None
        self._again = Again()
        self._large = LargeFiles(config)

    def report(self) -> None:
        """The server knows of all reads that have ended."""
        self._readers.close_idle()

    def end(self) -> None:
        """Answer nothing any more."""
        self._is_over = True
        self._readers.close()
        if self.outcomes["blocks"]:
            close_blocks()

    def may_have(self, path: str) -> bool:
        """Return False for a file that is not below the roots."""
        return self._roots.covers(path) and not self._is_over

    def read_file(self, path: str) -> Answer | None:
        """Return the bytes that a file has now, or lend them; None when the caller should open it."""
        if not self.may_have(path):
            return None
        if self._pid != os.getpid():
            self._begin_anew()
        self._served.key = None
        found = self._find(path)
        self.outcomes["origin" if found is None else found[1]] += 1
        return None if found is None else found[0]

    def served_key(self, path: str) -> bytes | None:
        """Return the entry key of the bytes that this thread was given last; None when that was another file."""
        last: tuple[str, bytes] | None = getattr(self._served, "key", None)
        return None if last is None or last[0] != path else last[1]

    def _begin_anew(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._readers: IdleReaders[ObjectReader] = IdleReaders()

    def _find(self, path: str) -> tuple[Answer, str] | None:
        key = self._present_key(path)
        if key == _LARGE:
            lent = self._large.lend(path)
            if lent is not None:
                self._served.key = (path, lent.key)
            return None if lent is None else (lent, "blocks")
        dataset = None if key is None else self._opened()
        if key is None or dataset is None:
            return None
        try:
            with self._readers.one(lambda: self._reader(dataset)) as reader:
                data, key, outcome = self._read(reader, key, path)
        except StoreFormatError:
            self._dataset = None  # the catalogue was made again
            return None
        except PrefeedError:
            return None  # opened as it is, it says so in the words that the user knows
        if data is None:
            return None
        self._served.key = (path, key)
        return data, outcome

    def _read(self, reader: ObjectReader, key: bytes, path: str) -> tuple[Answer | None, bytes, str]:
        """Return the bytes that the file has now, None when only the file itself has them, their key, and the outcome."""
        try:
            data, outcome = reader.find(key, path), "hit"
            if data is None:
                data, outcome = reader.try_read_file(path, in_doubt=True)[0], "fetched"
                if data is not None and reader.last_key != key and reader.last_key != self._present_key(path):
                    data = None  # changed since, and the server has not noticed
            return data, reader.last_key, outcome
        finally:
            reader.sample_made()
            reader.count_reads()  # at once: a child of a pool is ended without a warning

    def _reader(self, dataset: NodeDataset) -> ObjectReader:
        """Return a reader for one read at a time."""
        # With a mapping of its own: a catalogue is mapped again as it grows.
        own = Catalogue.open(dataset.manifest.directory, dataset.manifest.uid)
        return ObjectReader(replace(dataset, manifest=own), consumer=secrets.randbits(62))

    def _present_key(self, path: str) -> bytes | None:
        """Return the key of the bytes that a file has now, ``_LARGE`` of one that is cached in blocks.

        None of one that is not for the cache, or was written just now.
        """
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or not status.st_size or not is_old(status, time.time_ns()):
                return None
            if status.st_size > self._config.limits.max_object_bytes:
                return _LARGE
            return entry_key("/", path, version_of(status, path))
        except (OSError, ValueError):
            return None

    def _opened(self) -> NodeDataset | None:
        """Return the dataset of such files, opened by the first thread that needs it; None while no server can be had."""
        if self._dataset is None:
            with self._lock:
                began = time.monotonic()
                if self._dataset is None and self._again.is_due(began):  # type: ignore[redundant-expr]  # another thread
                    try:
                        with self._connected() as node:
                            self._dataset = open_dataset_beside(node, self._config)
                        self._again.succeeded()
                    except (PrefeedError, OSError):
                        self._again.failed(began=began, now=time.monotonic())
        return self._dataset

    def _connected(self) -> NodeClient:
        try:
            return NodeClient.connect(self._config, autostart=False)
        except ServerUnavailableError:
            if not self._config.autostart:
                raise
        with in_turn(self._config):
            return NodeClient.connect(self._config)


_current: ReadsBeside | None = None


def begin(config: Config) -> None:
    """Files below the roots are answered outside of samples as well, in this process and its forks. Idempotent.

    Args:
        config: Settings; their roots are directories.
    """
    global _current
    roots = Roots.of(config)
    if _current is None and roots:
        _current = ReadsBeside(config, roots)
        answer_everywhere(_current)
        install()


def end() -> None:
    """Answer them no more. Idempotent."""
    global _current
    if _current is not None:
        answer_everywhere(None)
        _current.end()
        _current = None


def _in_child() -> None:
    """A lock that another thread of the parent held would never be let go of."""
    if _current is not None:
        _current._begin_anew()


os.register_at_fork(after_in_child=_in_child)
