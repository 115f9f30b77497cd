"""Carries out what ``core`` decides: fetches, stores, frees, answers. The loop's thread owns everything here.

event (message, arrival, timer) ─→ Scheduler ─→ actions ─→ fetchers, tier, answers
                                       ↑                        │
                                       └──── arrived, stored, freed, failed
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from prefeed.config import Config
from prefeed.core.actions import Action, Answer, Fetch, Free, Outcome, Placement, Ticket
from prefeed.core.plan import Window
from prefeed.core.requests import RetryPolicy
from prefeed.core.schedule import Scheduler
from prefeed.core.table import ABSENT, FETCHING
from prefeed.errors import PassedThroughError, ThrottledError, TierFullError
from prefeed.server.checks import Checks
from prefeed.server.counting import Counts, Where, read_counts_of, statistics_of
from prefeed.server.datasets import Dataset, Opened, Registry
from prefeed.server.disk import DiskTier
from prefeed.server.fetch_processes import FetchProcesses
from prefeed.server.fetchers import NOTHING, CheckResult, Fetchers, Held, Job, Result, is_changed
from prefeed.server.sharing import Sharing
from prefeed.sources.protocol import Source
from prefeed.store.log import LogWriter, capacity_within
from prefeed.system.clock import Clock
from prefeed.types import Buffer, ClearResult, ReadCounts, Statistics

if TYPE_CHECKING:  # only a server with a pool needs pymemcache
    from prefeed.server.pool import PoolTier

PLAN_CUT = "plan-cut"
"""Counted when a client tells more of an order than is kept: what lies behind is read when it is asked for."""

IN_OWN_THREADS = "reads-in-threads-of-its-own"
"""Counts files that a dataset opened in threads that no sample has started: whose they are is not known, so they are not cached."""

_log = logging.getLogger("prefeed")
_GROUP = 64
"""Most entries in one commit: some milliseconds of work."""

Answerer = Callable[[Outcome, str, str, Buffer, bool], None]
"""Tells a waiting reader: outcome, error code, error text, bytes, and whether the object was there when it asked."""


class Node:
    """State of the node: datasets, plans, residency; and the hands that change it.

    **Threads**: one thread calls everything.
    **Invariants**: ``validate``.
    """

    def __init__(
        self,
        config: Config,
        tier: LogWriter,
        *,
        clock: Clock,
        wake: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], None],
        disk: DiskTier | None = None,
        pool: PoolTier | None = None,
        processes: FetchProcesses[Job] | None = None,
    ) -> None:
        self.config, limits = config, config.limits
        self.scheduler: Scheduler = Scheduler(
            budget_bytes=capacity_within(tier.budget_bytes), lookahead_bytes=limits.lookahead_bytes
        )
        self.fetchers: Fetchers = Fetchers(
            max_threads=limits.max_in_flight, clock=clock, wake=wake, disk=disk, pool=pool, processes=processes
        )
        self.registry: Registry = Registry(self.scheduler, max_in_flight=limits.max_in_flight, clock=clock)
        self.datasets: dict[int, Dataset] = self.registry.datasets
        self.disk = disk
        self.pool = pool
        if disk is not None:
            disk.keys_in_use = self.registry.entry_keys
        self.checks: Checks = Checks(self.datasets, self.scheduler, submit=self.fetchers.submit_check)
        self._sharing = Sharing(self.registry, self.scheduler)
        self._tier = tier
        self._clock = clock
        self._call_later = call_later
        self._retry = RetryPolicy(deadline_seconds=limits.retry_seconds)
        self._random = random.Random()
        self._answerers: dict[int, Answerer] = {}
        self._next_token = 1
        self._inline: dict[tuple[int, int], Buffer] = {}
        self._counts = Counts()

    def resize_tier(self, budget_bytes: int) -> int:
        """Let the tier take so much from now on; return what it may take, more when its files have more already."""
        self._tier.budget_bytes = budget_bytes
        self.scheduler.set_budget(capacity_within(budget_bytes))
        return max(budget_bytes, self._tier.file_bytes())

    def press_tier(self, budget_bytes: int) -> int:
        """Let the tier take so much from now on, free what it has beyond that, and return what its files take now."""
        self._tier.budget_bytes = budget_bytes
        capacity = capacity_within(budget_bytes)
        if capacity < self.scheduler.residency.budget_bytes:
            self.scheduler.press(capacity)
        else:
            self.scheduler.set_budget(capacity)
        self.pump()
        return self._tier.file_bytes()

    @property
    def tier_bytes(self) -> int:
        """What the tier's files take of memory."""
        return self._tier.file_bytes()

    # ------------------------------------------------------------ datasets

    def add_dataset(self, opened: Opened) -> Dataset:
        """A dataset is in use: what the tier has of it is known, and who may fetch the rest is there by the first request."""
        dataset = self.registry.add(opened)
        self.fetchers.expect(dataset.source, self.scheduler.tables[dataset.number].num_in(ABSENT))
        return dataset

    def foresee(self, source: Source, num_objects: int) -> None:
        """A listing has found that many objects so far: fetch processes start meanwhile, unless the tier may hold the objects."""
        if not self.scheduler.residency.resident_bytes:
            self.fetchers.expect(source, num_objects)

    def clear(self, url: str | None) -> ClearResult:
        """Free every resident at or below the URL; everything, also what no dataset names, if None."""
        entries = size_bytes = 0
        for number, ids in self.registry.residents_below(url):
            table = self.scheduler.tables[number]
            own = [one for one in ids.tolist() if not self.scheduler.holdings.is_guest((number, one))]
            entries += len(own)
            size_bytes += sum(map(table.stored_bytes, own))
            for object_id in ids.tolist():
                self.scheduler.invalidate(number, object_id, fetch_again=False)
        self.pump()
        return ClearResult(entries=entries, bytes=size_bytes)

    # ------------------------------------------------------------ plans

    def begin_plan(
        self, consumer: int, dataset: int, ids: npt.NDArray[np.integer], *, upcoming: bool, resident: bool,
        recheck: bool, is_partial: bool = False,
    ) -> None:  # fmt: skip
        """A consumer begins an epoch in this order, or will probably do so next; ``extend_plan`` continues it."""
        self.registry.require_ids(dataset, ids)
        window = self._window(ids)
        if dataset not in self.scheduler.live_datasets():
            self.registry.inherit_from_older(dataset)
        if upcoming:
            self.scheduler.register_upcoming(consumer, dataset, window, resident=resident)
        else:
            self.scheduler.register_plan(consumer, dataset, window, resident=resident)
        is_whole = not is_partial and not window.is_cut
        if upcoming and not recheck:
            self.checks.announce(consumer, dataset, window, is_whole=is_whole)
        else:
            self.checks.begin(consumer, dataset, window, recheck=recheck, is_whole=is_whole)

    def adopt_upcoming(self, consumer: int, *, recheck: bool) -> None:
        """The plan that was announced has begun."""
        self.scheduler.adopt_upcoming(consumer)
        self.checks.adopt(consumer, recheck=recheck)

    def extend_plan(self, consumer: int, ids: npt.NDArray[np.integer], *, is_read_soon: bool = True) -> None:
        """The sampler drew more."""
        dataset = self.scheduler.dataset_of(consumer)
        if dataset is not None:
            self.registry.require_ids(dataset, ids)
            if self.scheduler.extend_plan(consumer, ids):
                self._counts.errors[PLAN_CUT] += 1
            if is_read_soon:
                self.checks.extend(consumer, dataset, ids)

    def _window(self, ids: npt.NDArray[np.integer]) -> Window:
        window = Window(ids)
        self._counts.errors.update([PLAN_CUT] * window.is_cut)
        return window

    def advance(self, consumer: int, position: int) -> None:
        """The consumer's loop has what comes before this index of its plan."""
        self.scheduler.position(consumer, position)
        self.checks.advance(consumer, position)

    def end_consumer(self, consumer: int) -> None:
        """The consumer is gone."""
        self.scheduler.end_consumer(consumer)
        self.checks.end(consumer)

    # ------------------------------------------------------------ readers

    def demand(self, consumer: int, dataset: int, object_id: int, answer: Answerer, *, once: bool = False) -> None:
        """A reader waits for the object; ``once``: it has no use for it after this read."""
        self.registry.require_ids(dataset, [object_id])
        if self.checks.is_due(dataset, object_id):
            self.fetchers.is_urgent = True
            was_awaited = self.scheduler.tables[dataset].state[object_id] == FETCHING
            self.checks.wait(
                dataset, object_id,
                lambda: self._demand(consumer, dataset, object_id, answer, was_awaited=was_awaited, once=once),
            )  # fmt: skip
        else:
            self._demand(consumer, dataset, object_id, answer, once=once)

    def demand_file(
        self, consumer: int, dataset: int, path: str, answer: Callable[[int], Answerer], *, in_doubt: bool = False,
        once: bool = False,
    ) -> None:  # fmt: skip
        """A reader waits for a file of a catalogue that it has no object id for.

        Args:
            consumer: Whose reader it is.
            dataset: The catalogue.
            path: Absolute.
            answer: Takes the file's object id, and returns who is told.
            in_doubt: The reader has asked the file for its version, and found no such bytes.
            once: The reader has no use for it after this read.

        Raises:
            KeyError: There is no such catalogue.
        """
        object_id = self.registry.object_of(dataset, path)
        self.checks.distrust(consumer, dataset, object_id)
        if in_doubt:
            self.checks.doubt(dataset, object_id)
        self.demand(consumer, dataset, object_id, answer(object_id), once=once)

    def lost(self, dataset: int, object_id: int, answer: Answerer) -> None:
        """A reader was told that the object is stored, and did not find it."""
        self.registry.require_ids(dataset, [object_id])
        self._counts.errors["entry-lost"] += 1
        self.scheduler.lost(self._remember(answer), dataset, object_id)

    def consumed(self, consumer: int, dataset: int, ids: npt.NDArray[np.int64], hits: int, direct_reads: int) -> None:
        """Readers are done with these objects."""
        self.scheduler.count_reads(consumer, hits, direct_reads)
        self.scheduler.consumed(consumer, dataset, ids.tolist())

    def count_hit_bytes(self, num_bytes: int) -> None:
        """Readers took so many bytes from the tier."""
        self._counts.hit_bytes += num_bytes

    def count_error(self, code: str, number: int = 1) -> None:
        """Record failures that are not reported otherwise."""
        self._counts.errors[code] += number

    # ------------------------------------------------------------ the ring

    def pump(self) -> None:
        """Carry out everything that follows from the events so far, and take in what arrived."""
        while True:
            actions = self.scheduler.take_actions()
            results = self.fetchers.take(_GROUP)
            if not actions and not results:
                break
            self._carry_out(actions)
            fetched = [result for result in results if isinstance(result, Result)]
            self._take_in(self._share(fetched))
            for result in fetched:
                result.release()
            self._take_checks([result for result in results if isinstance(result, CheckResult)])
        self.checks.ask_ahead()
        self._inline.clear()
        self.fetchers.is_urgent = bool(self._answerers) or self.checks.has_waiting

    def statistics(self) -> Statistics:
        """Return a snapshot of all counts."""
        return statistics_of(self._counts, self.scheduler, self.disk, self.pool)

    def read_counts(self, consumer: int) -> ReadCounts:
        """Return how the consumer's reads went; all zero for one that is not known."""
        return read_counts_of(self.scheduler, consumer)

    def validate(self) -> None:
        """Check the invariants; raises AssertionError."""
        self.scheduler.validate()

    def close(self) -> None:
        """Let go of threads and sources; the tiers belong to the caller."""
        self.fetchers.close()
        self.registry.close()

    # ------------------------------------------------------------ carrying out

    def _carry_out(self, actions: Iterable[Action]) -> None:
        frees, fetches = [], []
        for action in actions:
            if isinstance(action, Fetch):
                fetches.append(action.ticket)
            elif isinstance(action, Answer):
                self._answer(action)
            else:
                frees.append(action)
        if fetches:
            jobs = []
            for ticket in fetches:
                held = self._sharing.begin(ticket) if self.datasets[ticket.dataset].manifest.grows else NOTHING
                if held is not None:
                    jobs.append(self._job(ticket, held))
            self.fetchers.submit(jobs)
        for start in range(0, len(frees), _GROUP):
            self._commit([], frees[start : start + _GROUP])

    def _job(self, ticket: Ticket, held: Held = NOTHING) -> Job:
        dataset = self.datasets[ticket.dataset]
        ticket.attempts += 1
        if ticket.attempts == 1:
            ticket.started = self._clock()
        dataset.note_lookup()
        has_tiers = self.disk is not None or self.pool is not None
        lasting_key = dataset.lasting_key(ticket.object_id) if has_tiers else b""
        key = b"" if dataset.manifest.grows else dataset.key(ticket.object_id)
        return Job(ticket, dataset.source, dataset.manifest, key, lasting_key, held)

    def _take_in(self, results: list[Result]) -> None:
        puts: list[Result] = []
        asked: set[int] = set()  # datasets whose origins have answered
        datasets, tables, now = self.datasets, self.scheduler.tables, self._clock()
        for result in results:
            if result.fetched is None:
                self._fetch_failed(result)
                continue
            ticket, size, changed = result.job.ticket, result.size_bytes, is_changed(result)
            number = ticket.dataset
            if changed and datasets[number].is_shared:
                self._fetch_failed(replace(result, fetched=None, error=_changed_in_one_view(result)))
                continue
            self._counts.arrived(result.where, size, result.seconds)
            if result.where is Where.ORIGIN:
                limit, in_flight = datasets[number].limit, tables[number].in_flight
                limit.on_success(result.seconds, num_in_flight=in_flight, now=now)
                asked.add(number)
            if changed:
                self._counts.errors["object-changed"] += 1
            placement = self.scheduler.arrived(ticket, size, changed=changed)
            if placement is Placement.DIRECT and self._is_outdated(result):
                continue
            if (manifest := result.job.manifest).grows:
                manifest.observe(ticket.object_id, result.fetched.version, size, result.fetched.inode)
            if not changed and self.disk is not None:
                self._offer_to_disk(result, self.disk)
            if placement is Placement.RESIDENT or placement is Placement.TRANSIENT:
                puts.append(result)
            else:
                self._hold(result)
        for dataset in asked:
            self._apply_limit(dataset)
        if puts:
            self._commit(puts, [])
        self._go_on(results)

    def _share(self, results: list[Result]) -> list[Result]:
        """Let files that have not changed have the entries that the node holds of them; return the other results."""
        shared: list[Result] = []
        rest: list[Result] = []
        for result in results:
            ticket, fetched, manifest = result.job.ticket, result.fetched, result.job.manifest
            if result.where is not Where.MEMORY:
                rest.append(result)
                continue
            host = self._sharing.host_of(result)
            if host is not None and fetched is not None and manifest.grows:
                size = self.scheduler.tables[host[0]].size_bytes(host[1])
                manifest.observe(ticket.object_id, fetched.version, size, fetched.inode)
                self.scheduler.share(ticket, size)
                self.checks.stored(ticket.dataset, ticket.object_id)
                shared.append(result)
            elif result.job.held.data is None:
                self.fetchers.submit([self._job(ticket)])  # the entry went meanwhile, and the bytes are held nowhere
            else:
                rest.append(result)
        self._go_on(shared)
        return rest

    def _go_on(self, ended: list[Result]) -> None:
        """Ask for the files that waited for these requests."""
        if not self._sharing.has_followers:
            return
        self.fetchers.submit([self._job(*follower) for result in ended for follower in self._sharing.end(result)])

    def _hold(self, result: Result) -> None:
        """Keep bytes that are not stored in the tier for the readers that are answered in this turn."""
        if (data := result.data()) is not None and not self._is_outdated(result):
            self._inline[result.job.ticket.dataset, result.job.ticket.object_id] = data

    def _is_outdated(self, result: Result) -> bool:
        assert result.fetched is not None
        ticket = result.job.ticket
        return self.checks.is_outdated(ticket.dataset, ticket.object_id, result.fetched.version)

    def _take_checks(self, results: list[CheckResult]) -> None:
        for result in results:
            self.checks.take(result)
        if results:
            self._carry_out(self.scheduler.take_actions())  # a changed file's entry goes before it is fetched again
        for result in results:
            for then in self.checks.take_waiting(result):
                then()

    def _commit(self, puts: list[Result], frees: list[Free]) -> None:
        """Store and free; what the tier refuses is not stored."""
        last = [free for free in frees if self._sharing.is_last(free)]
        self._tier.free_many([self.registry.key(free.dataset, free.object_id) for free in last])
        self._store([result for result in puts if result.granted is None], self._put)
        self._store([result for result in puts if result.granted is not None], self._publish)
        for free in frees:
            self.scheduler.freed(free)
        if len(last) < len(frees):  # what others have as well has made no room
            self.scheduler.set_budget(self.scheduler.residency.budget_bytes)

    def _store(self, results: list[Result], store: Callable[[list[Result]], None]) -> None:
        """Store all results, or count an error and store none if the tier is full."""
        if not results:
            return
        try:
            store(results)
        except TierFullError as err:
            self._counts.errors[err.code] += 1
            for result in results:
                self.scheduler.refused(result.job.ticket)
                self._hold(result)
            return
        for result in results:
            ticket = result.job.ticket
            self.scheduler.stored(ticket)
            if self.datasets[ticket.dataset].manifest.grows:
                self._sharing.stored(ticket)
                self.checks.stored(ticket.dataset, ticket.object_id)

    def _put(self, results: list[Result]) -> None:
        items: list[tuple[bytes, Buffer, bool]] = []
        for result in results:
            assert result.fetched is not None
            ticket = result.job.ticket
            key = self.registry.key(ticket.dataset, ticket.object_id)
            items.append((key, result.fetched.data, ticket.placement == Placement.TRANSIENT))
        self._tier.put_many(items)

    def _publish(self, results: list[Result]) -> None:
        granted = [result.granted for result in results if result.granted is not None]
        self._tier.publish([(one.key, one.place) for one in granted])
        for one in granted:
            one.is_ended = True

    def _answer(self, action: Answer) -> None:
        answerer, key = self._answerers.pop(action.token), (action.dataset, action.object_id)
        if action.outcome != Outcome.INLINE:
            answerer(action.outcome, action.code, action.message, b"", action.was_held)
        elif key in self._inline:
            answerer(Outcome.INLINE, "", "", self._inline[key], action.was_held)
        else:
            answerer(Outcome.READ_ORIGIN, "", "", b"", False)  # what came is out of date

    def _offer_to_disk(self, result: Result, disk: DiskTier) -> None:
        ticket, fetched = result.job.ticket, result.fetched
        if result.where in (Where.DISK, Where.MEMORY) or fetched is None:
            return
        if not fetched.version and result.where != Where.POOL:
            return
        key = self.datasets[ticket.dataset].lasting_key(ticket.object_id)
        if key and (data := result.data()) is not None:
            disk.offer(key, data)

    def _fetch_failed(self, result: Result) -> None:
        self._counts.asked_origin(result.seconds)
        ticket, error = result.job.ticket, result.error
        assert error is not None
        self._counts.errors[error.code] += 1
        now = self._clock()
        self.datasets[ticket.dataset].note_failure(error, now)
        if isinstance(error, ThrottledError):
            self.datasets[ticket.dataset].limit.on_throttle(now)
            self._apply_limit(ticket.dataset)
        delay = None
        if error.retryable and self.datasets[ticket.dataset].catalogue is None:  # who opens a file hears of it at once
            delay = self._retry.next_delay(
                attempts=ticket.attempts, elapsed_seconds=now - ticket.started, jitter=self._random.random()
            )
        if delay is None:
            self.scheduler.failed(ticket, code=error.code, message=str(error), permanent=not error.retryable)
        else:
            self._call_later(delay, lambda: self.fetchers.submit([self._job(ticket)]))

    def _apply_limit(self, dataset: int) -> None:
        found = self.datasets[dataset]
        self.scheduler.tables[dataset].max_in_flight = self.fetchers.limit(found.source, found.limit.limit)

    # ------------------------------------------------------------ inside

    def _demand(
        self, consumer: int, dataset: int, object_id: int, answer: Answerer, *, was_awaited: bool = False, once: bool
    ) -> None:  # fmt: skip
        token = self._remember(answer)
        self.scheduler.demand(token, consumer, dataset, object_id, was_awaited=was_awaited, once=once)

    def _remember(self, answer: Answerer) -> int:
        token = self._next_token
        self._next_token += 1
        self._answerers[token] = answer
        self.fetchers.is_urgent = True
        return token


def _changed_in_one_view(result: Result) -> PassedThroughError:
    """Return what readers of several mount namespaces are told of a file that changed in the namespace that was asked."""
    path = result.job.manifest.path(result.job.ticket.object_id)
    return PassedThroughError(
        f"{path} is another file now, at least for one process that listed it: open it", path=path
    )
