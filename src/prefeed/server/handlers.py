"""Messages in, messages out: what a client may ask, and which part of the node does it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prefeed.config import SERVER_SETTINGS, Config
from prefeed.core.actions import Outcome
from prefeed.core.plan import MOST_BYTES
from prefeed.errors import PrefeedError, ServerError, VersionMismatchError
from prefeed.server.dataset_opener import Openings, Waiter, explained
from prefeed.server.datasets import Dataset
from prefeed.server.loop import NO_DESCRIPTORS, Connection, Loop, lack_of_descriptors
from prefeed.server.node import IN_OWN_THREADS, Answerer, Node
from prefeed.server.sessions import Sessions
from prefeed.server.status import Observer
from prefeed.server.warm_ups import WarmUps
from prefeed.sources.manifest import Manifest
from prefeed.sources.urls import canonical_url, is_of_store
from prefeed.sources.views import Views
from prefeed.sources.written import Change, WrittenFiles, still_open
from prefeed.system.clock import Clock
from prefeed.system.machine import network_namespace
from prefeed.system.paths import is_in, path_below
from prefeed.types import Buffer, ClearResult, ObjectInfo, WarmResult
from prefeed.wire import messages as m
from prefeed.wire.endpoint import place_of
from prefeed.wire.frames import MAX_INLINE_BYTES

_SETTLE_SECONDS: Final = 1.0


class Handlers:
    """Answers clients.

    **Threads**: the loop's thread; manifests are listed in threads of their own, whose results come back to it.
    """

    def __init__(
        self, config: Config, *, clock: Clock, runtime_dir: Path, own_dir: Path, store_dir: Path, on_tmpfs: bool,
        notices: tuple[str, ...], metrics_url: str = "",
    ) -> None:  # fmt: skip
        self.is_stopping: bool = False
        self.node: Node
        self.loop: Loop
        self.sessions: Sessions
        self._openings: Openings
        self._warm_ups: WarmUps
        self._rewritten: Rewritten
        self._config = config
        self._clock = clock
        self._will_settle = False
        self._runtime_dir = runtime_dir
        self._own_dir = own_dir
        self._version = version("prefeed")
        self.observer: Observer = Observer(
            config, clock=clock, store_dir=store_dir, on_tmpfs=on_tmpfs, notices=notices, metrics_url=metrics_url
        )
        self._instance = secrets.token_hex(8)
        self._views = Views()
        self._consumers: dict[Connection, set[int]] = {}
        self._warm_consumers: dict[Connection, set[int]] = {}
        self._handlers: dict[type[m.Message], Callable[[Connection, Any], m.Message | None]] = {
            m.OpenDataset: self._open_dataset,
            m.RenewAccess: self._renew_access,
            m.AskObject: self._ask_object,
            m.RegisterPlan: self._register_plan,
            m.KeepPlans: lambda _, r: self.node.scheduler.keep(r.consumer, resident=r.resident),
            m.Foresee: self._foresee,
            m.AdoptUpcoming: self._adopt_upcoming,
            m.ExtendPlan: self._extend_plan,
            m.Consumed: self._consumed,
            m.Position: lambda _, r: self.node.advance(r.consumer, r.index),
            m.EpochEnded: self._epoch_ended,
            m.EndConsumer: self._end_consumer,
            m.Demand: self._demand,
            m.DemandFile: self._demand_file,
            m.SamplesOpened: self._samples_opened,
            m.Suppose: self._suppose,
            m.GetReadCounts: self._read_counts,
            m.Lost: self._lost,
            m.Locate: self._locate,
            m.GetStatus: lambda *_: m.StatusReport(self.observer.status()),
            m.GetStatistics: lambda *_: m.StatisticsReport(self.observer.statistics()),
            m.GetPlans: lambda *_: m.PlansReport(self.observer.plans()),
            m.Warm: self._warm,
            m.Clear: self._clear,
            m.OpenCache: lambda client, r: self.sessions.open_cache(client, r),
            m.GrowCache: lambda client, r: self.sessions.grow_cache(client, r),
            m.CacheReads: lambda _, r: self.sessions.count(r),
            m.NewSession: lambda *_: m.SessionCreated(self.sessions.new_session()),
            m.ListSessions: lambda *_: m.SessionsReport(self.sessions.list_sessions()),
            m.DropSessions: self._drop_sessions,
            m.Stop: self._stop,
        }

    def bind(self, loop: Loop, node: Node, sessions: Sessions, descriptors: Sequence[int]) -> None:
        """Answer through this loop, for this node, its sessions and the files of its tier; once, before the first message."""
        self.loop, self.node, self.sessions = loop, node, sessions
        self._descriptors = descriptors
        self.observer.bind(loop, node, sessions)
        self._openings = Openings(
            self._config,
            self._own_dir,
            clock=self._clock,
            call_soon=loop.call_soon,
            call_later=loop.call_later,
            find_dataset=node.registry.find,
            add_dataset=node.add_dataset,
            foresee=node.foresee,
        )
        self._warm_ups = WarmUps(node, clock=self._clock, call_later=loop.call_later)
        written = WrittenFiles(self._runtime_dir / "written")
        self._rewritten = Rewritten(written, node)

    def close(self) -> None:
        """Let go of what is open."""
        self._rewritten.close()

    def after_pump(self) -> None:
        """Everything that followed from the last events is done: a warm-up may be over."""
        self._warm_ups.report_done()

    def on_message(self, connection: Connection, message: m.AnyMessage) -> None:
        """Handle what a client said; a request that fails is refused, and the server continues."""
        try:
            if isinstance(message, m.Hello):
                self._hello(connection, message)
            elif connection.is_greeted:
                answer = self._handlers[type(message)](connection, message)
                if answer is not None:
                    self.loop.send(connection, answer)
            else:
                self.loop.close_connection(connection)
        except PrefeedError as err:
            self._fail(connection, message, err)
        except (KeyError, IndexError, ValueError, OSError) as err:
            text = explained(err, self._config.home) or (
                f"{type(message).__name__} names something that this server does not have: {type(err).__name__}: {err}"
            )
            self._fail(connection, message, PrefeedError(text))

    def on_closed(self, connection: Connection) -> None:
        """A client is gone: its plans are over."""
        for consumer in self._consumers.pop(connection, ()):
            self.node.end_consumer(consumer)
        for consumer in self._warm_consumers.pop(connection, ()):
            self._warm_ups.abandon(consumer)
        self.sessions.leave(connection)
        if connection.view is not None:
            connection.view.detach()
            for dataset in self.node.datasets.values():
                dataset.choose_view()
        self._settle_later()

    # ------------------------------------------------------------ greeting, status, end

    def _hello(self, connection: Connection, hello: m.Hello) -> None:
        if hello.protocol != m.PROTOCOL:
            err = VersionMismatchError(
                f"this server (pid {os.getpid()}) is prefeed {self._version} (protocol {m.PROTOCOL}), the client {hello.version} "
                f"(protocol {hello.protocol}): end the server with `prefeed server stop`, or set another PREFEED_HOME"
            )
            self._refuse(connection, err, 0)
            return
        _see_as(connection, hello, self._views)
        connection.is_greeted = True
        settings = {name: str(getattr(self._config, name)) for name in SERVER_SETTINGS}
        settings |= {
            "workers": str(self._config.limits.max_in_flight),
            "log_level": str(logging.getLogger("prefeed").level // 10 - 1),
        }
        welcome = m.Welcome(
            self._version, os.getpid(), self._instance, self.observer.notices, settings, home=place_of(self._config.home)
        )  # fmt: skip
        connection.descriptors = self._descriptors
        self.loop.send(connection, welcome)

    def _stop(self, _: Connection, request: m.Stop) -> m.Stopping:
        self.is_stopping = True
        return m.Stopping()

    # ------------------------------------------------------------ datasets

    def _open_dataset(self, connection: Connection, request: m.OpenDataset) -> None:
        token = request.token
        reach = connection.reach(request.options, request.proxies)

        def opened(dataset: Dataset) -> None:
            self._openings.renew(dataset, request.url, reach)
            manifest = dataset.manifest
            self.loop.send(
                connection,
                m.DatasetOpened(token, dataset.number, str(manifest.directory), manifest.uid, dataset.listed_at),
            )

        def found(number: int, manifest: Manifest, found_at: float) -> None:
            self.loop.send(
                connection,
                m.DatasetOpened(token, number, str(manifest.directory), manifest.uid, found_at, is_settled=False),
            )

        waiter = self._waiter(connection, token, opened, found if request.by_names else None)
        if request.manifest_dir and request.settle:
            self._openings.settle(Path(request.manifest_dir), request.url, waiter, reach)
        elif request.manifest_dir:
            self._openings.reopen(Path(request.manifest_dir), request.url, request.num_samples, waiter, reach)
        elif request.catalogue:
            paths_file = self._in_transit(request.paths_file)
            self._openings.open_catalogue(request.catalogue, paths_file, request.num_samples, waiter, reach)
        else:
            self._openings.open_url(request.url, waiter, reach, listing_age=request.listing_age, ranks=request.ranks)

    def _renew_access(self, connection: Connection, request: m.RenewAccess) -> None:
        reach = connection.reach(request.options, request.proxies)
        if self.node.datasets[request.dataset].renew(self._openings.source_of(request.url, reach)):
            self.node.scheduler.forget_failures(request.dataset)

    def _ask_object(self, connection: Connection, request: m.AskObject) -> None:
        def told(info: ObjectInfo) -> None:
            answer = m.ObjectAsked(
                request.token, info.size_bytes, info.version, info.modified_seconds, info.sends_parts
            )
            self.loop.send(connection, answer)

        reach = connection.reach(request.options, request.proxies)
        path = os.fsdecode(request.path)
        self._openings.ask_object(
            request.url, path, reach, told, lambda err: self._refuse(connection, err, request.token)
        )

    def _waiter(
        self,
        connection: Connection,
        token: int,
        opened: Callable[[Dataset], None],
        found: Callable[[int, Manifest, float], None] | None = None,
    ) -> Waiter:
        return Waiter(
            opened=opened,
            found=found,
            failed=lambda err: self._refuse(connection, err, token),
            listing=lambda objects, size: self.loop.send(connection, m.Listing(token, objects, size)),
        )

    def _locate(self, connection: Connection, request: m.Locate) -> m.Located:
        for dataset in reversed(self.node.datasets.values()):  # of several listings of a root the newest
            root = dataset.source.url
            is_seen = is_of_store(root) or dataset.is_seen_through(connection.view)
            is_origin = is_seen and dataset.source.mark == request.mark
            if dataset.catalogue is None and is_origin and is_in(request.url, root):
                object_id = dataset.manifest.index_of(path_below(request.url, root))
                if object_id is not None:
                    return m.Located(dataset.number, object_id, str(dataset.manifest.directory))
        return m.Located(-1, -1, "")

    # ------------------------------------------------------------ plans and readers

    def _register_plan(self, connection: Connection, plan: m.RegisterPlan) -> None:
        ids = self._take_ids(plan.ids_file, MOST_BYTES)
        if plan.recheck:
            self._epoch_begins()
        self.node.begin_plan(
            plan.consumer,
            plan.dataset,
            ids,
            upcoming=plan.upcoming,
            resident=plan.resident,
            recheck=plan.recheck,
            is_partial=plan.is_partial,
        )
        self._consumers.setdefault(connection, set()).add(plan.consumer)

    def _epoch_begins(self) -> None:
        self._views.look_again()
        self._rewritten.epoch_begins()

    def _foresee(self, _: Connection, request: m.Foresee) -> None:
        ids = self._take_ids(request.ids_file, MOST_BYTES)
        dataset = self.node.scheduler.dataset_of(request.consumer)
        if dataset is not None and ids.nbytes <= MOST_BYTES:
            self.node.registry.require_ids(dataset, ids)
            self.node.scheduler.foresee(request.consumer, ids)

    def _take_ids(self, name: str, most_bytes: int | None = None) -> npt.NDArray[np.integer]:
        """Return the ids in a file, and remove it; of too many, only enough to see that they are too many."""
        path = self._in_transit(name)
        dtype = np.dtype(np.uint32 if path.suffix == ".u32" else np.int64)
        count = -1 if most_bytes is None else most_bytes // dtype.itemsize + 1
        ids: npt.NDArray[np.integer] = np.fromfile(path, dtype=dtype, count=count)
        path.unlink()
        return ids

    def _adopt_upcoming(self, _: Connection, request: m.AdoptUpcoming) -> None:
        if request.recheck:
            self._epoch_begins()
        self.node.adopt_upcoming(request.consumer, recheck=request.recheck)

    def _in_transit(self, name: str) -> Path:
        """Return the path of a file that a client left for this server, which removes it: only from here."""
        path = Path(name)
        if path.parent != self._runtime_dir or path.name.startswith("server."):
            raise PrefeedError(f"files for the server must lie in {self._runtime_dir}, not at {path}")
        return path

    def _extend_plan(self, _: Connection, request: m.ExtendPlan) -> None:
        if request.ids_file:
            self.node.extend_plan(request.consumer, self._take_ids(request.ids_file, MOST_BYTES), is_read_soon=False)
        else:
            self.node.extend_plan(request.consumer, np.frombuffer(request.ids, dtype=np.int64))

    def _consumed(self, _: Connection, request: m.Consumed) -> None:
        ids = np.frombuffer(request.ids, dtype=np.int64)
        self.node.registry.require_ids(request.dataset, ids)
        self.node.consumed(request.consumer, request.dataset, ids, request.hits, request.direct_reads)
        self.node.count_hit_bytes(request.hit_bytes)
        if request.in_own_threads:
            self.node.count_error(IN_OWN_THREADS, request.in_own_threads)

    def _epoch_ended(self, connection: Connection, request: m.EpochEnded) -> None:
        self.observer.epochs.add(request.epoch, self._consumers.get(connection, ()))

    def _end_consumer(self, connection: Connection, request: m.EndConsumer) -> None:
        self._consumers.get(connection, set()).discard(request.consumer)
        self.node.end_consumer(request.consumer)

    def _demand(self, connection: Connection, request: m.Demand) -> None:
        answer = self._answerer(connection, request.token, request.dataset, request.object_id)
        self.node.demand(request.consumer, request.dataset, request.object_id, answer, once=request.once)

    def _demand_file(self, connection: Connection, request: m.DemandFile) -> None:
        self.node.demand_file(
            request.consumer,
            request.dataset,
            os.fsdecode(request.path),
            lambda object_id: self._answerer(connection, request.token, request.dataset, object_id),
            in_doubt=request.in_doubt,
            once=request.once,
        )

    def _samples_opened(self, _: Connection, request: m.SamplesOpened) -> None:
        self.node.registry.learn(request.dataset, np.frombuffer(request.records, dtype=np.int64))

    def _suppose(self, _: Connection, request: m.Suppose) -> None:
        path = self._in_transit(request.samples_file)
        content = path.read_bytes()
        path.unlink()
        count = int(np.frombuffer(content, dtype=np.int64, count=1)[0])
        samples = np.frombuffer(content, dtype=np.int64, offset=8, count=2 * count).reshape(-1, 2)
        paths = [os.fsdecode(name) for name in content[8 + samples.nbytes :].split(b"\0") if name]
        self.node.registry.suppose(request.dataset, samples, paths)

    def _read_counts(self, connection: Connection, request: m.GetReadCounts) -> None:
        # After everything that is on its way already: workers have reported before their last batch was handed over.
        self.loop.call_after_reading(
            lambda: self.loop.send(
                connection, m.ReadCountsReport(self.node.read_counts(request.consumer), request.token)
            )
        )

    def _lost(self, connection: Connection, request: m.Lost) -> None:
        answer = self._answerer(connection, request.token, request.dataset, request.object_id)
        self.node.lost(request.dataset, request.object_id, answer)

    def _answerer(self, connection: Connection, token: int, dataset: int, object_id: int) -> Answerer:
        def answer(outcome: Outcome, code: str, text: str, data: Buffer, was_held: bool) -> None:
            if len(data) > MAX_INLINE_BYTES:
                outcome, data = Outcome.READ_ORIGIN, b""
            key = b""
            if outcome == Outcome.STORED:
                key = self.node.registry.readable_key(dataset, object_id)
            elif outcome == Outcome.INLINE and self.node.datasets[dataset].catalogue is not None:
                key = self.node.registry.key(dataset, object_id)  # of these very bytes: they came in this turn
            answered = m.Answered(token, int(outcome), code, text, bytes(data), object_id, key, was_held)
            self.loop.send(connection, answered)

        return answer

    # ------------------------------------------------------------ sessions

    def _drop_sessions(self, _: Connection, request: m.DropSessions) -> m.SessionsDropped:
        self.sessions.drop_sessions(request.sessions)
        self._settle_later()
        return m.SessionsDropped()

    def _settle_later(self) -> None:
        """A process closes its connection before its stores, or keeps a dropped one open: look again, until it has."""
        if not self._will_settle and self.sessions.has_unsettled:
            self._will_settle = True
            self.loop.call_later(_SETTLE_SECONDS, self._settle)

    def _settle(self) -> None:
        self._will_settle = False
        self.sessions.settle()
        self._settle_later()

    # ------------------------------------------------------------ warm and clear

    def _warm(self, connection: Connection, request: m.Warm) -> None:
        def report(result: WarmResult, done: bool) -> None:
            self.loop.send(connection, m.WarmReport(request.token, result, done))

        def begin(dataset: Dataset) -> None:
            if ids is None:
                self._openings.renew(dataset, request.url, reach)
            if connection.is_open:
                consumer = self._warm_ups.begin(dataset, report, ids, max_in_flight=request.max_in_flight)
                self._warm_consumers.setdefault(connection, set()).add(consumer)

        reach = connection.reach(request.options, request.proxies)
        ids = self._take_ids(request.ids_file) if request.ids_file else None
        if ids is None:
            opening = self._waiter(connection, request.token, begin)
            self._openings.open_url(request.url, opening, reach, listing_age=request.listing_age)
        else:
            self.node.registry.require_ids(request.dataset, ids)
            begin(self.node.datasets[request.dataset])

    def _clear(self, connection: Connection, request: m.Clear) -> None:
        url = None if request.url is None else canonical_url(request.url)
        freed = self.node.clear(url)

        def cleared(on_disk: ClearResult) -> None:
            result = ClearResult(entries=freed.entries + on_disk.entries, bytes=freed.bytes + on_disk.bytes)
            self.loop.call_soon(lambda: self.loop.send(connection, m.Cleared(result)))

        disk = self.node.disk
        if disk is None:
            cleared(ClearResult(entries=0, bytes=0))
        else:
            disk.clear(None if url is None else self.node.registry.keys_below(url), cleared)

    def _fail(self, connection: Connection, message: m.AnyMessage, error: PrefeedError) -> None:
        """Refuse a question; who reports does not wait, and would take the refusal for its next answer."""
        if isinstance(message, m.UNANSWERED):
            self.node.count_error(error.code)
        else:
            self._refuse(connection, error, getattr(message, "token", 0))

    def _refuse(self, connection: Connection, error: PrefeedError, token: int) -> None:
        self.loop.send(connection, m.Refused(error.code, str(error), token))


class Rewritten:
    """Drops the records of written files when an epoch begins; what was cached of them goes first.

    Args:
        written: Their records.
        node: Has what is cached.

    **Threads**: the loop's, which looks through /proc for it: some milliseconds, where something was written since.
    """

    def __init__(self, written: WrittenFiles, node: Node) -> None:
        self._written = written
        self._node = node

    def epoch_begins(self) -> None:
        """Take the files that are closed back into the cache's care, before the plan of the epoch is registered."""
        self._written.touch()
        if not self._written.any():
            return
        with contextlib.suppress(OSError):  # else they are read from where they lie for one more epoch
            changes, end = self._written.changes()
            kept = dict.fromkeys(still_open(changes))
            closed = [change for change in changes if change not in kept]
            self._written.drop(end, [*kept, *self._forget(closed)])

    def _forget(self, changes: Sequence[Change]) -> list[Change]:
        """Take what is cached of these files for out of date: it is checked again before a reader gets it.

        Returns:
            Those of manifests. The files that these list never change: their readers keep reading the file itself.
        """
        listed: list[Change] = []
        names = {name for change in changes for name in (change.path, change.real)}
        inodes = {change.identity for change in changes if change.identity}
        is_moved = any(change.below for change in changes)
        for dataset in self._node.datasets.values():
            if (catalogue := dataset.catalogue) is not None:
                ids = None if is_moved else catalogue.ids_of(names, inodes)
                self._node.checks.outdate(dataset.number, ids)
            else:
                listed += [change for change in changes if self._node.registry.lists(dataset, change)]
        return listed

    def close(self) -> None:
        """Let go of the records."""
        self._written.close()


def _see_as(connection: Connection, hello: m.Hello, views: Views) -> None:
    """Whatever this client opens is read as it sees it.

    Raises:
        ServerError: It cannot be; the message says why, and what to change.
    """
    connection.shares_network = hello.network == network_namespace()
    root, connection.root = connection.root, None
    if root is None and connection.is_cut_short:
        raise ServerError(lack_of_descriptors())
    if root is None:
        raise ServerError("the client showed no root directory: the server cannot tell whether it sees the same files")
    try:
        connection.view = views.attach(root, hello.devices)
    except OSError as err:
        if err.errno in NO_DESCRIPTORS:
            raise ServerError(lack_of_descriptors()) from err
        if err.errno != errno.ENOSYS:
            raise ServerError(f"the node server cannot look at the client's root directory: {err.strerror}") from err
        raise ServerError(
            "the node server has another root directory or mount namespace, and cannot read files as this process sees "
            f"them: {err.strerror}; set another PREFEED_HOME here"
        ) from err
