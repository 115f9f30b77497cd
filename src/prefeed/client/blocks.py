"""Reads blocks of objects for one process: from the tier, else from the node server, else from the origin.

bytes of a block ── tier ─hit→ copied into the caller's buffer
                      │ miss
                      ├─ the whole block is wanted ─→ server: fetched once for the node
                      └─ a few bytes of it ─────────→ origin: exactly these
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakValueDictionary

import numpy as np

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset, open_manifest_dataset
from prefeed.client.launch import in_turn
from prefeed.client.node import NodeClient, access_now
from prefeed.client.readers import Seat
from prefeed.client.tiers import tier_of
from prefeed.config import Config
from prefeed.core.requests import Again
from prefeed.errors import (
    AccessDeniedError,
    CredentialsError,
    ObjectChangedError,
    PrefeedError,
    ServerError,
    SourceError,
)
from prefeed.run_summary import counters
from prefeed.sources.answers import patiently, read_origin, seconds_to_settle
from prefeed.sources.blocks import (
    Block,
    BlockSource,
    entries_of,
    entry_of,
    is_split,
    key_of,
    num_entries,
)
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.listing import Listed
from prefeed.sources.manifest import version_hash
from prefeed.sources.steadiness import MOST_READS
from prefeed.sources.store_access import StoreAccess
from prefeed.sources.urls import blocks_url, is_of_store, listing_mark, open_blocks, veiled
from prefeed.store.memory import MemoryReader
from prefeed.types import Buffer, EntryKey, ObjectInfo
from prefeed.wire import messages as m
from prefeed.wire.endpoint import put_in_transit

_log = logging.getLogger("prefeed")

_DEADLINE_SECONDS = 60.0
_ENSURED_SECONDS = 15.0
"""A server lets go of an object that no reader has asked for in twice this time, so it is told again by then."""

_MOST_READERS = 8
"""Of one seat: each has the tier open."""

_MOST_SOURCES = 64

_WEB = ("http://", "https://")

Result = TypeVar("Result")


@dataclass(slots=True, eq=False, weakref_slot=True)
class BlockObject:
    """An object in the version that it had when it was opened.

    Attributes:
        source: Reads its root in blocks.
        info: Path below the root, size and version.
        block_bytes: Size of its blocks except the last; of an object that is read as a whole, its size.
        dataset: Its blocks on the node; None while none is known.
        ensured_at: When the server was told last, in seconds of a clock that only goes forward.
    """

    given: str
    source: BlockSource
    info: ObjectInfo
    made_with: StoreAccess | None = field(default=None, repr=False)
    dataset: NodeDataset | None = None
    ensured_at: float = float("-inf")
    _keys: dict[int, EntryKey] = field(default_factory=dict)

    @property
    def is_split(self) -> bool:
        """False when the object is read as a whole: it is empty, or tells no version."""
        return is_split(self.info)

    @property
    def block_bytes(self) -> int:
        """Bytes of all blocks except the last."""
        may_be_parted = self.is_split and self.info.sends_parts
        return self.source.block_bytes if may_be_parted else max(1, self.info.size_bytes)

    @property
    def num_blocks(self) -> int:
        """Number of its blocks."""
        return num_entries(self.info, self.block_bytes)

    @property
    def location(self) -> str:
        """Full path or URL, for messages."""
        return self.source.locate(self.info.path)

    def entry(self, index: int) -> ObjectInfo:
        """Return what a listing says of a block."""
        return entry_of(self.info, index, self.block_bytes)

    def key(self, index: int) -> EntryKey:
        """Return the key under which the tier may hold a block."""
        key = self._keys.get(index)
        if key is None:
            key = self._keys[index] = key_of(self.source.url, self.source.mark, self.entry(index))
        return key


class Blocks:
    """Blocks of any objects, for one process and one home.

    **Threads and processes**: any thread; a forked child has its own, from ``blocks_of``. ``end_later`` takes no lock and may be
    called by a finalizer. **Ownership**: ``close`` lets go of connections; a later read opens them again.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.pid: int = os.getpid()
        self._lock = threading.Lock()
        self._sources: OrderedDict[tuple[str, int], BlockSource] = OrderedDict()
        self._opened: WeakValueDictionary[tuple[str, str, int, str], BlockObject] = WeakValueDictionary()
        self._seats: deque[Seat] = deque()
        self._control: Connection | None = None
        self._asking: deque[Connection] = (
            deque()
        )  # idle ones, for questions that wait for an origin: each waits for its own answer
        self._again = Again()
        self._ended: deque[int] = deque()
        self._is_said = False

    # ------------------------------------------------------------ objects

    def source(self, root: str) -> BlockSource:
        """Return what reads a root in blocks; ``root`` may hold credentials."""
        key = root, self.config.limits.block_bytes
        with self._lock:
            source = self._sources.pop(key, None)
            if source is None:
                source = open_blocks(blocks_url(root), self.config)
            self._sources[key] = source
            if len(self._sources) > _MOST_SOURCES:
                self._sources.popitem(last=False)
        return source

    def open(self, root: str, path: str) -> BlockObject:
        """Return an object as it is now.

        Raises:
            ObjectNotFoundError: There is none.
            SourceError: The origin's own error.
        """
        return self.opened(root, self.settled_info(root, path))

    def settled_info(self, root: str, path: str) -> ObjectInfo:
        """Return the same as ``info``, once the version is one that tells the object from the next one; raises as ``open``.

        Waits for two seconds at most, for an object of a web server that was changed just now; three times if it changes meanwhile.
        """
        info = self.info(root, path)
        for _ in range(MOST_READS if root.startswith(_WEB) else 0):
            seconds = seconds_to_settle(info, time.time())
            if not seconds:
                break
            time.sleep(seconds)
            info = self.info(root, path)
        return info

    def info(self, root: str, path: str) -> ObjectInfo:
        """Return size and version that an object has now; raises as ``open``."""
        try:
            return self.ask(lambda: self._info(root, path))
        except AccessDeniedError:
            with self._lock:  # its token may have expired since: ask for a new one, once
                self._sources.pop((root, self.config.limits.block_bytes), None)
            return self.ask(lambda: self._info(root, path))

    def _info(self, root: str, path: str) -> ObjectInfo:
        """Ask the origin once: by the node server if one runs, which keeps connections; in a forked process it is started for that."""
        source = self.source(root)
        if is_of_store(source.url) and self.config.enabled and self._again.is_due(time.monotonic()):
            try:
                with self._asking_node(starts=source.needs_helper) as node:
                    if node is not None:
                        return node.ask_object(root, path)
            except AccessDeniedError:
                if source.needs_helper:
                    raise
            except SourceError:
                raise
            except (PrefeedError, OSError):
                pass  # what opens the object says it, and tries again later
        return source.info(path)

    def opened(self, root: str, info: ObjectInfo) -> BlockObject:
        """Return an object whose present size and version are known."""
        key = root, info.path, info.size_bytes, info.version
        with self._lock:
            found = self._opened.get(key)
        if found is None:
            found = BlockObject(veiled(blocks_url(root)), self.source(root), info)
            with self._lock:
                found = self._opened.setdefault(key, found)
        return found

    def ask(self, request: Callable[[], Result]) -> Result:
        """Return what the origin answers, asked again while its errors may pass."""
        return patiently(request, deadline_seconds=min(self.config.limits.retry_seconds, _DEADLINE_SECONDS))

    # ------------------------------------------------------------ reads

    def tier(self, thing: BlockObject) -> MemoryReader | None:
        """Return the tier that may hold the blocks; None while no server is known."""
        dataset = self.dataset(thing)
        return None if dataset is None else tier_of(dataset.instance)

    def read_block(self, thing: BlockObject, index: int, consumer: int) -> Buffer:
        """Return a block that the tier does not hold: from the server, or from the origin where there is none.

        Raises:
            ObjectChangedError: The object is of another version by now.
            SourceError: The origin's own error.
        """
        data = self._read_block(thing, index, consumer)
        if not thing.is_split and memoryview(data).nbytes != thing.info.size_bytes:
            where = thing.location
            raise ObjectChangedError(
                f"{where} changed while it was read: open it again to read what it is now", path=where
            )
        return data

    def _read_block(self, thing: BlockObject, index: int, consumer: int) -> Buffer:
        dataset = self.dataset(thing)
        if dataset is None:
            entry = thing.entry(index)
            listed = Listed(entry.size_bytes, version_hash(entry.version))
            data = self._let_in(thing, lambda: read_origin(thing.source, entry.path, self.config, listed=listed))
            _count_direct(data)
            return data
        try:
            seat = self._seats.pop()
        except IndexError:
            seat = Seat(_MOST_READERS)
        try:
            reader = seat.reader(dataset)
            reader.consumer = consumer
            data = reader.read(index)
            reader.report()
            return data
        finally:
            self._seats.append(seat)

    def read_part(self, thing: BlockObject, offset: int, size_bytes: int) -> Buffer:
        """Return a part of an object that is split, from the origin: nothing else is read, and nothing kept; raises as ``read_block``."""
        info = thing.info
        block = Block(info.path, offset, size_bytes, version_hash(info.version), info.size_bytes)
        data: Buffer = self._let_in(thing, lambda: self.ask(lambda: thing.source.fetch_part(block))).data
        _count_direct(data)
        return data

    def _let_in(self, thing: BlockObject, request: Callable[[], Result]) -> Result:
        """Return what the origin answers; if it refuses, a token may have expired since the object was opened, so it is asked once more."""
        try:
            return request()
        except AccessDeniedError:
            with self._lock:
                self._sources.pop((thing.given, self.config.limits.block_bytes), None)
            thing.source = self.source(thing.given)
        return request()

    # ------------------------------------------------------------ the node

    def asks_first(self, thing: BlockObject) -> bool:
        """Return True when the next read of an object has to ask the server first, and may have to start it."""
        now = time.monotonic()
        if thing.dataset is not None and now - thing.ensured_at < _ENSURED_SECONDS:
            return False
        return self.config.enabled and self._again.is_due(now)

    def dataset(self, thing: BlockObject) -> NodeDataset | None:
        """Return the blocks of an object as the node's server knows them; None when none can be had."""
        if not self.asks_first(thing):
            return thing.dataset
        now = time.monotonic()
        try:
            with self._lock:
                if self.asks_first(thing):  # else another thread has asked
                    thing.dataset = self._open_on_node(thing)
                    thing.ensured_at = time.monotonic()
            self._again.succeeded()
        except (PrefeedError, OSError) as err:
            self._again.failed(began=now, now=time.monotonic())
            self._drop_control()
            if not self._is_said:
                self._is_said = True
                _log.warning("prefeed: reading %s without the cache: %s", thing.location, err)
        return thing.dataset

    def begin_plan(self, thing: BlockObject, indices: Sequence[int], *, resident: bool) -> int:
        """Tell the server which blocks are read next; return the consumer's number, 0 when no server was told."""
        dataset = thing.dataset
        connection = self._control
        if dataset is None or connection is None or connection.instance != dataset.instance:
            return 0
        consumer = secrets.randbits(62) or 1
        with suppress(OSError):
            ids = np.asarray(indices, dtype=np.int64)
            name = put_in_transit(connection.runtime_dir, [ids.data], suffix=".i64")
            plan = m.RegisterPlan(consumer, dataset.number, name, False, resident, False, True)
            if self._tell(connection, plan):
                return consumer
            os.unlink(name)
        return 0

    def extend_plan(self, thing: BlockObject, consumer: int, indices: Sequence[int]) -> None:
        """Tell the server which blocks follow."""
        if self._control is not None:
            self._tell(self._control, m.ExtendPlan(consumer, np.asarray(indices, dtype=np.int64).tobytes()))

    def consumed(self, thing: BlockObject, consumer: int, indices: Sequence[int], hits: int, num_bytes: int) -> None:
        """Report reads from the tier to the server and to the run summary."""
        counters.add(counters.HITS, hits)
        counters.add(counters.CACHE_BYTES, num_bytes)
        dataset, connection = thing.dataset, self._control
        if dataset is None or connection is None or connection.instance != dataset.instance:
            return
        ids = np.asarray(indices, dtype=np.int64).tobytes()
        self._tell(connection, m.Consumed(consumer, dataset.number, ids, hits, 0, num_bytes))

    def end_plan(self, consumer: int) -> None:
        """The consumer reads no further."""
        if self._control is not None:
            self._tell(self._control, m.EndConsumer(consumer))

    def end_later(self, consumer: int) -> None:
        """The same, told with the next message: takes no lock and waits for nothing."""
        self._ended.append(consumer)

    def end_file(self, thing: BlockObject, consumer: int, indices: Sequence[int], hits: int, num_bytes: int) -> None:
        """A file is closed: ``consumed`` and ``end_plan``, which wait for no lock.

        A file may be closed by what holds it, as that is collected: in any thread, and inside a call of this very class.
        """
        counters.add(counters.HITS, hits)
        counters.add(counters.CACHE_BYTES, num_bytes)
        connection, dataset = self._control, thing.dataset
        if connection is None or dataset is None or connection.instance != dataset.instance:
            return
        ids = np.asarray(indices, dtype=np.int64).tobytes()
        is_told = False
        with suppress(ServerError):  # the next message finds it out
            if hits or indices:
                connection.send_unless_in_use(m.Consumed(consumer, dataset.number, ids, hits, 0, num_bytes))
            is_told = not consumer or connection.send_unless_in_use(m.EndConsumer(consumer))
        if not is_told:
            self.end_later(consumer)

    def close(self) -> None:
        """Let go of connections and sources of this process."""
        if self.pid != os.getpid():
            return
        for seat in _popped(self._seats):
            seat.close()
        for connection in _popped(self._asking):
            connection.close()
        self._drop_control()
        with self._lock:
            sources, self._sources = list(self._sources.values()), OrderedDict()
        for source in sources:
            source.close()

    def _open_on_node(self, thing: BlockObject) -> NodeDataset:
        """Return the dataset of an object's blocks on the server, which is started if need be."""
        node = self._node()
        if thing.made_with is None:
            with suppress(CredentialsError):
                thing.made_with = access_now(thing.given, self.config)
        manifest = None if thing.dataset is None else thing.dataset.manifest
        if manifest is None or manifest.grows or not (manifest.directory / "columns").exists():
            source = thing.source
            manifest = ManifestLibrary(self.config.home).write_part(
                source.url,
                list(entries_of(thing.info, thing.block_bytes)),
                origin_mark=source.mark,
                mark=listing_mark(source),
            )
        return open_manifest_dataset(node, thing.given, manifest, self.config, thing.made_with)

    def _node(self) -> NodeClient:
        """Return the server, on the connection that this process keeps, started if need be; the caller holds the lock."""
        if self._control is None or self._control.is_closed or not self._control.is_alive():
            self._drop_control()
            self._control = self._running() or self._started()
        return NodeClient(self._control)

    @contextmanager
    def _asking_node(self, *, starts: bool) -> Iterator[NodeClient | None]:
        """Yield the server on a connection that no other thread uses, because an answer may take long.

        Yields None if no server runs and ``starts`` is False.
        """
        connection = next(_popped(self._asking), None)
        if connection is None or connection.is_closed or not connection.is_alive():
            connection = self._running() or (self._started() if starts else None)
        try:
            yield None if connection is None else NodeClient(connection)
        except SourceError:
            raise  # the origin's answer
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        finally:
            if connection is not None and not connection.is_closed:
                self._asking.append(connection)

    def _running(self) -> Connection | None:
        """Return a connection to the server, if one runs."""
        return Connection.try_open(self.config, answer_seconds=self.config.limits.request_seconds)

    def _started(self) -> Connection:
        """Return a connection to the server, which one of the processes that read at the same time starts."""
        with in_turn(self.config):
            return Connection.open(self.config)

    def _tell(self, connection: Connection, message: m.Message) -> bool:
        """Return True when the message is on its way."""
        try:
            self._tell_ended(connection)
            connection.send_nowait(message)
            self._tell_ended(connection)
        except ServerError:
            self._drop_control()
            return False
        return True

    def _tell_ended(self, connection: Connection) -> None:
        while self._ended:
            with suppress(IndexError):
                connection.send_nowait(m.EndConsumer(self._ended.popleft()))

    def _drop_control(self) -> None:
        connection, self._control = self._control, None
        if connection is not None:
            connection.close()


def _count_direct(data: Buffer) -> None:
    counters.add(counters.DIRECT)
    counters.add(counters.ORIGIN_BYTES, memoryview(data).nbytes)


def _popped(idle: deque[Result]) -> Iterator[Result]:
    """Take what no thread uses."""
    with suppress(IndexError):
        while True:
            yield idle.pop()


_by_config: dict[Config, Blocks] = {}


def blocks_of(config: Config) -> Blocks:
    """Return this process's blocks for these settings."""
    found = _by_config.get(config)
    if found is None:
        found = _by_config.setdefault(config, Blocks(config))
    return found


def close_blocks() -> None:
    """Let go of everything that this process holds for blocks; a later read opens it again."""
    for blocks in list(_by_config.values()):
        blocks.close()


os.register_at_fork(after_in_child=_by_config.clear)
