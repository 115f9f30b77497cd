"""Messages in, messages out: what a client may ask, and which part of the node does it."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from prefeed.clock import Clock
from prefeed.config import Config
from prefeed.core.actions import Outcome
from prefeed.errors import PrefeedError, VersionMismatchError
from prefeed.server.datasets import Dataset
from prefeed.server.loop import Connection, Loop
from prefeed.server.node import Node, is_below
from prefeed.sources.library import ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.path_list import open_path_list
from prefeed.sources.urls import canonical_url, open_source
from prefeed.types import Buffer, ServerStatus, WarmResult
from prefeed.wire import messages as m

_REPORT_SECONDS = 0.1
"""Pause between two reports of one warm-up or listing."""


@dataclass(slots=True)
class _Opening:
    """A manifest being opened, and who waits for it."""

    waiters: list[tuple[Callable[[Dataset], None], Callable[[PrefeedError], None]]] = field(default_factory=list)
    listeners: list[Callable[[int, int], None]] = field(default_factory=list)


@dataclass(slots=True)
class _WarmUp:
    connection: Connection
    token: int
    consumer: int
    dataset: Dataset
    started: float
    resident_before: int


class Handlers:
    """Answers clients.

    **Threads**: the loop's thread; manifests are listed in threads of their own, whose results come back to it.
    """

    def __init__(
        self, config: Config, *, clock: Clock, store_dir: Path, on_tmpfs: bool, notices: tuple[str, ...]
    ) -> None:
        self.is_stopping = False
        self.node: Node
        self.loop: Loop
        self._config = config
        self._clock = clock
        self._started = clock()
        self._store_dir = store_dir
        self._on_tmpfs = on_tmpfs
        self._notices = notices
        self._version = version("prefeed")
        self._instance = secrets.token_hex(8)
        self._library = ManifestLibrary(config.home)
        self._openings: dict[tuple[str, bool], _Opening] = {}
        self._consumers: dict[Connection, set[int]] = {}
        self._warm_ups: list[_WarmUp] = []
        self._private_consumers = itertools.count(-1, -1)
        self._handlers: dict[type[m.Message], Callable[[Connection, Any], None]] = {
            m.OpenDataset: self._open_dataset,
            m.RegisterPlan: self._register_plan,
            m.AdoptUpcoming: self._adopt_upcoming,
            m.ExtendPlan: self._extend_plan,
            m.Consumed: self._consumed,
            m.Position: self._position,
            m.EndConsumer: self._end_consumer,
            m.Demand: self._demand,
            m.Lost: self._lost,
            m.Locate: self._locate,
            m.GetStatus: self._status,
            m.GetStatistics: self._statistics,
            m.Warm: self._warm,
            m.Clear: self._clear,
            m.Stop: self._stop,
        }

    def on_message(self, connection: Connection, message: m.AnyMessage) -> None:
        """A client said something; a request that fails is refused, and the server goes on."""
        try:
            if isinstance(message, m.Hello):
                self._hello(connection, message)
            elif connection.is_greeted:
                self._handlers[type(message)](connection, message)
            else:
                self.loop.close_connection(connection)
        except PrefeedError as err:
            self._refuse(connection, err, getattr(message, "token", 0))
        except (KeyError, IndexError, ValueError, OSError) as err:
            text = f"{type(message).__name__} names what this server does not have: {type(err).__name__}: {err}"
            self._refuse(connection, PrefeedError(text), getattr(message, "token", 0))

    def on_closed(self, connection: Connection) -> None:
        """A client is gone: its plans are over, and what it pinned in the tier is reclaimed."""
        for consumer in self._consumers.pop(connection, ()):
            self.node.scheduler.end_consumer(consumer)
        for warm_up in [w for w in self._warm_ups if w.connection is connection]:
            self._warm_ups.remove(warm_up)
            self.node.scheduler.end_consumer(warm_up.consumer)
        self.node.reclaim_dead_readers()

    # ------------------------------------------------------------ greeting, status, end

    def _hello(self, connection: Connection, hello: m.Hello) -> None:
        if hello.protocol != m.PROTOCOL:
            err = VersionMismatchError(
                f"this server is prefeed {self._version} (protocol {m.PROTOCOL}), the client {hello.version} "
                f"(protocol {hello.protocol}): run `prefeed server stop` with the older one, or set another PREFEED_HOME"
            )
            self._refuse(connection, err, 0)
            return
        connection.is_greeted = True
        self.loop.send(
            connection, m.Welcome(self._version, os.getpid(), str(self._store_dir), self._instance, self._notices)
        )

    def _status(self, connection: Connection, _: m.GetStatus) -> None:
        scheduler = self.node.scheduler
        live = [self.node.datasets[n].limit.limit for n in scheduler.live_datasets() if n in self.node.datasets]
        status = ServerStatus(
            pid=os.getpid(),
            version=self._version,
            home=str(self._config.home),
            store=str(self._store_dir),
            on_tmpfs=self._on_tmpfs,
            uptime_seconds=self._clock() - self._started,
            clients=len(self.loop.connections),
            plans=scheduler.num_plans,
            in_flight=scheduler.num_in_flight,
            max_in_flight=max(live, default=0),
            notices=self._notices,
        )
        self.loop.send(connection, m.StatusReport(status))

    def _statistics(self, connection: Connection, _: m.GetStatistics) -> None:
        self.loop.send(connection, m.StatisticsReport(self.node.statistics()))

    def _stop(self, connection: Connection, _: m.Stop) -> None:
        self.is_stopping = True
        self.loop.send(connection, m.Stopping())

    # ------------------------------------------------------------ datasets

    def _open_dataset(self, connection: Connection, request: m.OpenDataset) -> None:
        token = request.token

        def opened(dataset: Dataset) -> None:
            reply = m.DatasetOpened(token, dataset.number, str(dataset.manifest.directory))
            self.loop.send(connection, reply)

        if request.manifest_dir:
            opened(self._reopen(Path(request.manifest_dir), request.url))
            return
        self._open(
            request.url,
            refresh=request.refresh,
            paths_file=request.paths_file,
            then=opened,
            otherwise=lambda err: self._refuse(connection, err, token),
            listing=lambda objects, size: self.loop.send(connection, m.Listing(token, objects, size)),
        )

    def _open(
        self,
        url: str,
        *,
        refresh: bool,
        paths_file: str,
        then: Callable[[Dataset], None],
        otherwise: Callable[[PrefeedError], None],
        listing: Callable[[int, int], None],
    ) -> None:
        """Open the manifest in a thread; whoever asks for it meanwhile waits for the same one."""
        key = (f"{paths_file}\0{url}" if paths_file else canonical_url(url), refresh)
        opening = self._openings.get(key)
        if opening is None:
            opening = self._openings[key] = _Opening()
            args = (key, url, refresh, paths_file)
            threading.Thread(target=self._open_in_thread, args=args, name="prefeed-listing", daemon=True).start()
        opening.waiters.append((then, otherwise))
        opening.listeners.append(listing)

    def _reopen(self, directory: Path, url: str) -> Dataset:
        """A client comes with the manifest that another server opened for it."""
        if not directory.is_relative_to(self._config.home):
            raise PrefeedError(f"the manifest must lie below {self._config.home}, not in {directory}")
        manifest = Manifest.open(directory)
        return self.node.add_dataset(manifest, open_source(url or manifest.url, self._config))

    def _open_in_thread(self, key: tuple[str, bool], url: str, refresh: bool, paths_file: str) -> None:
        next_report = 0.0

        def progress(objects: int, size: int) -> None:
            nonlocal next_report
            if self._clock() >= next_report:
                next_report = self._clock() + _REPORT_SECONDS
                self.loop.call_soon(lambda: self._tell_listing(key, objects, size))

        try:
            if paths_file:
                manifest = open_path_list(self._config.home, _read_paths(paths_file), progress=progress)
            else:
                manifest = self._library.open(
                    url, refresh=refresh, source_factory=lambda root: open_source(root, self._config), progress=progress
                )
            source = open_source(manifest.url if paths_file else url, self._config)
        except PrefeedError as err:
            refusal = err
            self.loop.call_soon(lambda: self._opening_failed(key, refusal))
        except OSError as err:
            other = PrefeedError(f"cannot make the manifest of {url} below {self._config.home}: {err}")
            self.loop.call_soon(lambda: self._opening_failed(key, other))
        else:
            self.loop.call_soon(lambda: self._opening_done(key, manifest, source))

    def _tell_listing(self, key: tuple[str, bool], objects: int, size: int) -> None:
        for tell in self._openings[key].listeners:
            tell(objects, size)

    def _opening_done(self, key: tuple[str, bool], manifest: Manifest, source: Any) -> None:
        dataset = self.node.add_dataset(manifest, source)
        for then, _ in self._openings.pop(key).waiters:
            then(dataset)

    def _opening_failed(self, key: tuple[str, bool], error: PrefeedError) -> None:
        for _, otherwise in self._openings.pop(key).waiters:
            otherwise(error)

    def _locate(self, connection: Connection, request: m.Locate) -> None:
        for dataset in self.node.datasets.values():
            root = dataset.source.url
            if is_below(request.url, root):
                object_id = dataset.manifest.index_of(request.url[len(root) :].lstrip("/"))
                if object_id is not None:
                    directory = str(dataset.manifest.directory)
                    self.loop.send(connection, m.Located(dataset.number, object_id, directory))
                    return
        self.loop.send(connection, m.Located(-1, -1, ""))

    # ------------------------------------------------------------ plans and readers

    def _register_plan(self, connection: Connection, plan: m.RegisterPlan) -> None:
        path = Path(plan.ids_file)
        if path.parent != self._config.runtime_dir:
            raise PrefeedError(f"a plan must lie in {self._config.runtime_dir}, not in {path.parent}")
        ids = np.fromfile(path, dtype=np.uint32) if path.suffix == ".u32" else np.fromfile(path, dtype=np.int64)
        path.unlink()
        self._require_ids(plan.dataset, ids)
        self._consumers.setdefault(connection, set()).add(plan.consumer)
        register = self.node.scheduler.register_upcoming if plan.upcoming else self.node.scheduler.register_plan
        register(plan.consumer, plan.dataset, ids)

    def _adopt_upcoming(self, _: Connection, request: m.AdoptUpcoming) -> None:
        self.node.scheduler.adopt_upcoming(request.consumer)

    def _extend_plan(self, _: Connection, request: m.ExtendPlan) -> None:
        ids = np.frombuffer(request.ids, dtype=np.int64)
        dataset = self.node.scheduler.dataset_of(request.consumer)
        if dataset is not None:
            self._require_ids(dataset, ids)
            self.node.scheduler.extend_plan(request.consumer, ids)

    def _require_ids(self, dataset: int, ids: npt.NDArray[np.integer]) -> None:
        """Refuse ids that the manifest does not have: no state stands for them."""
        num_objects = self.node.datasets[dataset].manifest.num_objects
        if len(ids) and (int(ids.max()) >= num_objects or int(ids.min()) < 0):
            raise PrefeedError(f"the ids {int(ids.min())} to {int(ids.max())} are not all of the {num_objects} objects")

    def _consumed(self, _: Connection, request: m.Consumed) -> None:
        ids = np.frombuffer(request.ids, dtype=np.int64)
        self._require_ids(request.dataset, ids)
        self.node.consumed(request.consumer, request.dataset, ids, request.hits, request.direct_reads)

    def _position(self, _: Connection, request: m.Position) -> None:
        self.node.scheduler.position(request.consumer, request.index)

    def _end_consumer(self, connection: Connection, request: m.EndConsumer) -> None:
        self._consumers.get(connection, set()).discard(request.consumer)
        self.node.scheduler.end_consumer(request.consumer)

    def _demand(self, connection: Connection, request: m.Demand) -> None:
        answer = self._answerer(connection, request.token)
        self.node.demand(request.consumer, request.dataset, request.object_id, answer)

    def _lost(self, connection: Connection, request: m.Lost) -> None:
        self.node.lost(request.dataset, request.object_id, self._answerer(connection, request.token))

    def _answerer(self, connection: Connection, token: int) -> Callable[[Outcome, str, str, Buffer], None]:
        def answer(outcome: Outcome, code: str, text: str, data: Buffer) -> None:
            self.loop.send(connection, m.Answered(token, int(outcome), code, text, bytes(data)))

        return answer

    # ------------------------------------------------------------ warm and clear

    def _warm(self, connection: Connection, request: m.Warm) -> None:
        def opened(dataset: Dataset) -> None:
            self._begin_warm_up(connection, request.token, dataset)

        self._open(
            request.url,
            refresh=request.refresh,
            paths_file="",
            then=opened,
            otherwise=lambda err: self._refuse(connection, err, request.token),
            listing=lambda objects, size: self.loop.send(connection, m.Listing(request.token, objects, size)),
        )

    def _begin_warm_up(self, connection: Connection, token: int, dataset: Dataset) -> None:
        consumer = next(self._private_consumers)
        ids = np.arange(dataset.manifest.num_objects, dtype=np.uint32)
        before = self.node.num_residents(dataset.number)
        self._warm_ups.append(_WarmUp(connection, token, consumer, dataset, self._clock(), before))
        self.node.scheduler.register_plan(consumer, dataset.number, ids, warm=True)
        if len(self._warm_ups) == 1:
            self.loop.call_later(_REPORT_SECONDS, self._report_regularly)

    def after_pump(self) -> None:
        """Everything that followed from the last events is done: a warm-up may be over."""
        if any(self._is_done(warm_up) for warm_up in self._warm_ups):
            self._report_warm_ups(only_done=True)

    def _is_done(self, warm_up: _WarmUp) -> bool:
        in_flight = self.node.scheduler.tables[warm_up.dataset.number].in_flight
        return in_flight == 0 and not self.node.scheduler.has_work(warm_up.consumer)

    def _report_regularly(self) -> None:
        self._report_warm_ups(only_done=False)
        if self._warm_ups:
            self.loop.call_later(_REPORT_SECONDS, self._report_regularly)

    def _report_warm_ups(self, *, only_done: bool) -> None:
        for warm_up in list(self._warm_ups):
            done = self._is_done(warm_up)
            if only_done and not done:
                continue
            dataset = warm_up.dataset
            table = self.node.scheduler.tables[dataset.number]
            resident = self.node.num_residents(dataset.number)
            result = WarmResult(
                objects=dataset.manifest.num_objects,
                bytes=dataset.manifest.total_bytes,
                resident=resident,
                fetched=resident - warm_up.resident_before,
                failed=len(table.failures),
                seconds=self._clock() - warm_up.started,
            )
            self.loop.send(warm_up.connection, m.WarmReport(warm_up.token, result, done))
            if done and warm_up in self._warm_ups:
                self._warm_ups.remove(warm_up)
                self.node.scheduler.end_consumer(warm_up.consumer)

    def _clear(self, connection: Connection, request: m.Clear) -> None:
        url = None if request.url is None else canonical_url(request.url)
        self.loop.send(connection, m.Cleared(self.node.clear(url)))

    def _refuse(self, connection: Connection, error: PrefeedError, token: int) -> None:
        self.loop.send(connection, m.Refused(error.code, str(error), token))


def _read_paths(paths_file: str) -> list[str]:
    path = Path(paths_file)
    paths = [os.fsdecode(name) for name in path.read_bytes().split(b"\0") if name]
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    return paths
