"""Threads that read origins. They decide nothing: a ticket goes in, a result comes out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, cast

from prefeed.core.actions import Placement, Ticket
from prefeed.errors import PrefeedError, SourceError
from prefeed.server.counting import Where
from prefeed.server.disk import DiskTier
from prefeed.server.fetch_processes import Delivery, FetchProcesses, Granted
from prefeed.sources.answers import require_listed, version_without_etag
from prefeed.sources.blocks import BlockSource
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.listing import UNKNOWN_SIZE
from prefeed.sources.manifest import Manifest, entry_key, version_hash
from prefeed.sources.posix import PosixSource, stat_files
from prefeed.sources.protocol import QuickSource, Source
from prefeed.sources.quick_fetches import QuickOrigin
from prefeed.sources.quick_heads import WHOLE
from prefeed.store.log import value_size
from prefeed.system.clock import Clock
from prefeed.types import Buffer, FetchedObject

if TYPE_CHECKING:  # only a server with a pool needs pymemcache
    from prefeed.server.pool import PoolTier

_STACK_BYTES = 512 * 1024
_MOST_IN_GROUP = 16
_GROUP_BYTES = 2 * 1024**2
"""What one thread asks the pool for at once."""

_LARGE_BYTES = 1024**2
"""Such an object lies in the pool in parts; one question finds the first of them."""

_QUEUED: Final = 64
"""Fetches that wait in fetch processes for their turn, per dataset."""

_WAKE_AFTER = 16
"""Arrivals that wake the loop at once; fewer wait for its next turn, which saves most wake-ups."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the node has of a file: entry keys, of one version each, and the bytes of the only one; None: the tier has them."""

    keys: tuple[bytes, ...] = ()
    data: Buffer | None = None


NOTHING: Final = Held()


@dataclass(slots=True)
class Job:
    """One request to make.

    Attributes:
        ticket: Of whom.
        source: Whom to ask.
        manifest: What lists it.
        key: Of its entry; nothing where its version is not known.
        lasting_key: Where disk and pool may have the answer, nothing when it is not known.
        held: Of a file of a catalogue, what another one has of it: if it has not changed, nothing is opened.
        started: By the clock.
        is_for_threads: No fetch process is to make it: one has tried.
    """

    ticket: Ticket
    source: Source
    manifest: Manifest | CatalogueWriter
    key: bytes = b""
    lasting_key: bytes = b""
    held: Held = NOTHING
    started: float = 0.0
    is_for_threads: bool = False

    @property
    def may_be_grouped(self) -> bool:
        """True when tiers can be asked for it as for any other: nothing has to be asked of its file, and it is no large one."""
        is_listed = bool(self.lasting_key) and not self.manifest.grows
        return is_listed and self.listed_bytes < _LARGE_BYTES

    @property
    def listed_bytes(self) -> int:
        """Size of the object, 0 when the listing does not say."""
        size = int(self.manifest.sizes[self.ticket.object_id])
        return 0 if size == UNKNOWN_SIZE else size


@dataclass(frozen=True, slots=True)
class CheckJob:
    """Files of a catalogue to be asked for their versions."""

    dataset: int
    ids: list[int]
    catalogue: CatalogueWriter
    source: Source
    generation: int = 0


_Task = list[Job] | CheckJob
"""What one thread does at a time; several jobs only for the pool."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Versions of the files, in the job's order; ``""`` where a file could not be asked; and how long it took."""

    job: CheckJob
    versions: list[str]
    seconds: float = 0.0


@dataclass(slots=True)
class Result:
    """How the request ended.

    Attributes:
        job: The request.
        fetched: What came; None after an error.
        error: Why nothing came.
        seconds: How long the request took.
        where: Who had the answer.
        granted: The bytes, where a process has written them to the tier; ``fetched`` has none then.
    """

    job: Job
    fetched: FetchedObject | None
    error: SourceError | None
    seconds: float
    where: Where = Where.ORIGIN
    granted: Granted | None = None

    @property
    def size_bytes(self) -> int:
        """Size of what came; 0 after an error."""
        if self.fetched is None:
            return 0
        return value_size(self.fetched.data) if self.granted is None else len(self.granted)

    def release(self) -> None:
        """Free the place of bytes that were not published."""
        if self.granted is not None:
            self.granted.release()

    def data(self) -> Buffer | None:
        """Return the bytes, copied if they are in the tier; None if the tier was cleared since."""
        assert self.fetched is not None
        return self.fetched.data if self.granted is None else self.granted.read()


class Fetchers:
    """A pool that grows with what is in flight, up to a maximum.

    **Threads**: ``submit`` and ``take`` belong to the loop's thread. ``wake`` is called from the pool's.
    **Ownership**: threads are daemons; ``close`` ends those that are idle and lets go of the rest.
    """

    def __init__(
        self,
        *,
        max_threads: int,
        clock: Clock,
        wake: Callable[[], None],
        disk: DiskTier | None = None,
        pool: PoolTier | None = None,
        processes: FetchProcesses[Job] | None = None,
    ) -> None:
        self.is_urgent = False
        self._processes = processes
        self._thread: FetchProcesses[Job] | None = None
        self._for_processes: deque[Job] = deque()
        self._disk = disk
        self._pool = pool
        self._max_threads = max_threads
        self._clock = clock
        self._wake = wake
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._results: deque[Result | CheckResult] = deque()
        self._threads: list[threading.Thread] = []
        self._num_submitted = 0
        self._num_finished = 0
        self._is_closed = False

    def fetch_parts_in(self, thread: FetchProcesses[Job]) -> None:
        """Blocks of large objects are fetched there from now on, where it can."""
        self._thread = thread

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the requests: a fetch process gets them, or a thread, which may take several where the pool has them."""
        if not jobs:
            return
        if self._disk is None and self._pool is None:
            jobs = self._hand_over(jobs)
        if self._pool is not None and self._pool.is_rich:
            for task in _grouped(jobs):
                self._queue(task)
        else:
            for job in jobs:
                self._queue([job])

    def expect(self, source: Source, num_objects: int) -> None:
        """Objects of a source may be wanted soon: where processes fetch them, they are started now."""
        if (
            self._processes is not None
            and self._carrier_of(source) is self._processes
            and _quick_origin(source) is not None
        ):
            self._processes.expect(num_objects)

    def limit(self, source: Source, most: int) -> int:
        """Limit the requests to the origin that are under way; return how many fetches there may be at a time.

        Those of fetch processes are more: one waits in the process where another ends, and is begun without a turn of the
        server.
        """
        carrier = self._carrier_of(source)
        if carrier is None or self._disk is not None or self._pool is not None:
            return most
        origin = _quick_origin(source)
        if origin is None or not carrier.num_ready:
            return most
        carrier.limit(origin, most)
        return most if carrier is self._thread else most + _QUEUED

    def submit_check(self, job: CheckJob) -> None:
        """Queue the question."""
        self._queue(job)

    def take(self, most: int) -> list[Result | CheckResult]:
        """Return results that came in since, at most that many; the caller publishes or releases what is in the tier."""
        results: list[Result | CheckResult] = []
        self._hand_over_looked_up()
        for carrier in self._carriers():
            results += self._take_from(carrier, most - len(results))
        num_of_processes = len(results)
        while self._results and len(results) < most:
            results.append(self._results.popleft())
        self._num_finished += len(results) - num_of_processes
        return results

    @property
    def has_results(self) -> bool:
        """True while ``take`` would return something."""
        return bool(self._results or self._for_processes) or any(one.has_results for one in self._carriers())

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Fetch processes that work."""
        return () if self._processes is None else self._processes.ready_ids

    def close(self) -> None:
        """End threads and processes; requests under way are abandoned, and those that wait are not made."""
        self._is_closed = True
        for carrier in self._carriers():
            carrier.close()
        for _ in self._threads:
            self._tasks.put(None)

    # ---------------------------------------------------------------- through processes

    def _carriers(self) -> Iterator[FetchProcesses[Job]]:
        """Yield what fetches beside the threads here."""
        return (one for one in (self._processes, self._thread) if one is not None)

    def _carrier_of(self, source: Source) -> FetchProcesses[Job] | None:
        """Return what fetches from a source, where it can."""
        return self._thread if isinstance(source, BlockSource) else self._processes

    def _hand_over(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Let processes make the requests that they can make, and the thread those for parts; return the others."""
        if self._processes is None and self._thread is None:
            return jobs
        for carrier in self._carriers():
            carrier.is_urgent = self.is_urgent
        rest: list[Job] = []
        source, origin, chosen = None, None, None
        for job in jobs:
            if job.source is not source:
                source, chosen = job.source, self._carrier_of(job.source)
                origin = None if chosen is None else _quick_origin(job.source)
            if chosen is None or origin is None or not _try_process(job, origin, chosen):
                rest.append(job)
        for carrier in self._carriers():
            carrier.flush()
        return rest

    def _hand_over_looked_up(self) -> None:
        """Hand over what threads have looked up in vain."""
        if self._for_processes:
            looked_up = [self._for_processes.popleft() for _ in range(len(self._for_processes))]
            self._num_finished += len(looked_up)  # by the threads
            for job in self._hand_over(looked_up):
                self._queue([job])

    def _take_from(self, processes: FetchProcesses[Job], most: int) -> list[Result]:
        """Return what processes have fetched; what they could not fetch is for the threads."""
        results = []
        for delivery in processes.take(most):
            if (result := _delivered(delivery)) is not None:
                results.append(result)
                if self._pool is not None and result.fetched is not None:
                    with suppress(Exception):  # as in a thread
                        offer_to_pool(self._pool, result)
            else:
                self._queue([delivery.job])
        for job in processes.take_lost():
            job.is_for_threads = True
            self._queue([job])
        processes.flush()
        return results

    # ---------------------------------------------------------------- in threads

    def _queue(self, task: _Task) -> None:
        self._num_submitted += 1 if isinstance(task, CheckJob) else len(task)
        pending = self._num_submitted - self._num_finished
        if pending > len(self._threads) < self._max_threads:
            self._start_thread()
        self._tasks.put(task)

    def _start_thread(self) -> None:
        previous = threading.stack_size(_STACK_BYTES)
        try:
            name = f"prefeed-fetch-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            thread.start()
        finally:
            threading.stack_size(previous)
        self._threads.append(thread)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None and not self._is_closed:
            if isinstance(task, CheckJob):
                self._results.append(self._check(task))
            elif self._pool is not None and len(task) > 1:
                self._fetch_group(task, self._pool)
            else:
                for job in task:
                    if (result := self._fetch(job)) is not None:
                        self._results.append(result)
                    else:
                        self._for_processes.append(job)
            under_way = self._num_submitted - self._num_finished
            if self.is_urgent or len(self._results) + len(self._for_processes) >= min(_WAKE_AFTER, under_way // 2):
                self._wake()

    def _check(self, job: CheckJob) -> CheckResult:
        started = self._clock()
        return replace(check(job), seconds=self._clock() - started)

    def _fetch(self, job: Job) -> Result | None:
        """Make the request; None when a process is to make it."""
        job.started = self._clock()
        try:
            found, where = self._find(job)
            if found is None and self._is_closed:
                raise SourceError("the node server ends")  # and the tier that has it may be closed already
            if found is None and self._may_hand_over(job):
                return None
            if found is None:
                job.started = self._clock()  # what a look elsewhere took says nothing of the origin
                found = _asked(job)
        except SourceError as err:
            return Result(job, None, err, self._clock() - job.started)
        except Exception as err:  # a defect of a source must not end the thread that would report it
            told = str(err) if isinstance(err, PrefeedError) else f"{type(err).__name__}: {err}"
            return Result(job, None, SourceError(told), self._clock() - job.started)
        result = Result(job, found, None, self._clock() - job.started, where)
        if self._pool is not None and where == Where.ORIGIN:
            with suppress(Exception):  # the object has come, and is to be told of whatever becomes of the offer
                offer_to_pool(self._pool, result)  # from here, for other nodes may wait for it
        return result

    def _may_hand_over(self, job: Job) -> bool:
        """Return whether a process may make the request, which a thread has looked up in vain."""
        has_looked = self._disk is not None or self._pool is not None
        carrier = self._carrier_of(job.source)
        if not has_looked or carrier is None or not (carrier.num_ready or carrier.begins_at_once):
            return False
        return _quick_bytes(job) is not None and _quick_origin(job.source) is not None

    def _fetch_group(self, group: list[Job], pool: PoolTier) -> None:
        """Ask the pool for all of them at once; what it does not have is for other threads, one each."""
        started = self._clock()
        jobs = {job.lasting_key: job for job in group}
        found: dict[bytes, tuple[Buffer, Where]] = {}
        with suppress(Exception):  # a defect must not end the thread, nor those who wait be forgotten
            for key, job in jobs.items():
                if (data := self._on_disk(job)) is not None:
                    found[key] = data, Where.DISK
            absent = [key for key in jobs if key not in found]
            expected = sum(jobs[key].listed_bytes for key in absent)
            values = pool.read_many(absent, expected_bytes=expected)
            found.update((key, (value, Where.POOL)) for key, value in values.items())
        for job in group:
            if job.lasting_key in found:
                data, where = found[job.lasting_key]
                job.started = started
                fetched = FetchedObject(data=data, version="")
                self._results.append(Result(job, fetched, None, self._clock() - started, where))
            else:
                self._tasks.put([job])

    def _on_disk(self, job: Job) -> Buffer | None:
        return None if self._disk is None else self._disk.read(job.lasting_key)

    def _find(self, job: Job) -> tuple[FetchedObject | None, Where]:
        """Return what the node, or a tier behind memory, has of it, if one has it, and which."""
        if job.held.keys and (found := compare_held(job)) is not None:
            return found, Where.MEMORY
        if self._disk is not None and job.lasting_key and (found := read_disk(self._disk, job)) is not None:
            return found, Where.DISK
        if self._pool is not None and (found := read_pool(self._pool, job, lambda: self.is_urgent)) is not None:
            return found, Where.POOL
        return None, Where.ORIGIN


def _quick_bytes(job: Job) -> int | None:
    """Return the object's size where a fetch process may make the request, if its source has an origin for it; else None."""
    if job.is_for_threads or job.held.keys or not job.key:
        return None
    size = int(job.manifest.sizes[job.ticket.object_id])
    return None if size == UNKNOWN_SIZE else size


def _quick_origin(source: Source) -> QuickOrigin | None:
    """Return whom a fetch process asks for the objects of a source; None where it cannot."""
    return cast("QuickSource", source).quick_origin() if hasattr(source, "quick_origin") else None


def _try_process(job: Job, origin: QuickOrigin, processes: FetchProcesses[Job]) -> bool:
    """Let a process make the request, if it can."""
    size_bytes = _quick_bytes(job)
    if size_bytes is None:
        return False
    ticket, manifest, source = job.ticket, job.manifest, job.source
    path = manifest.path(ticket.object_id)
    target = source.quick_target(path)  # type: ignore[attr-defined] # it has an origin for fetch processes
    first = source.quick_first(path) if isinstance(source, BlockSource) else WHOLE
    return processes.try_fetch(
        origin, target, size_bytes, job, key=job.key, is_transient=ticket.placement is Placement.TRANSIENT,
        is_demanded=ticket.is_demanded, first=first,
    )  # fmt: skip


def _delivered(delivery: Delivery[Job]) -> Result | None:
    """Return what a process has brought; None when the answer was odd: then a thread is to ask again."""
    job, granted = delivery.job, delivery.granted
    if granted is None:
        path = job.manifest.path(job.ticket.object_id)
        error = cast("QuickSource", job.source).quick_failure(path, delivery.failure)
        job.is_for_threads = error is None
        return None if error is None else Result(job, None, error, delivery.seconds)
    version, object_bytes = delivery.version, delivery.object_bytes or len(granted)
    if not version:
        version = version_without_etag(delivery.modified_seconds, object_bytes)
    if isinstance(job.source, BlockSource):
        path = job.manifest.path(job.ticket.object_id)
        changed = job.source.changed(path, version, object_bytes)
        if changed is not None:
            granted.release()
            return Result(job, None, changed, delivery.seconds)
    fetched = FetchedObject(data=b"", version=version, modified_seconds=delivery.modified_seconds)
    return Result(job, fetched, None, delivery.seconds, Where.ORIGIN, granted)


def _asked(job: Job) -> FetchedObject:
    """Return what the origin gives: the listed object, or another one that it says is another."""
    path = job.manifest.path(job.ticket.object_id)
    fetched = job.source.fetch(path)
    if (listed := job.manifest.listed(job.ticket.object_id)) is not None:
        require_listed(fetched, listed, lambda: job.source.locate(path))
    return fetched


def _grouped(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs, those together that are for one question."""
    group: list[Job] = []
    size = 0
    for job in jobs:
        if not job.may_be_grouped:
            yield [job]
            continue
        group.append(job)
        size += job.listed_bytes
        if len(group) == _MOST_IN_GROUP or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def read_disk(disk: DiskTier, job: Job) -> FetchedObject | None:
    """Return the object from the disk, None when it is not there, or its file is not what it was."""
    data = disk.read(job.lasting_key)
    if data is None:
        return None
    key, version = _present_key(job)
    return _found(job, data, version) if key == job.lasting_key else None


def compare_held(job: Job) -> FetchedObject | None:
    """Return what is held of a file, with no bytes where the tier has them; None when the file is another one by now."""
    key, version = _present_key(job)
    return _found(job, job.held.data or b"", version) if key in job.held.keys else None


def read_pool(pool: PoolTier, job: Job, is_urgent: Callable[[], bool]) -> FetchedObject | None:
    """Return the object from the pool, None when it is not there; another node may have read what this one never saw."""
    key, version = _present_key(job)
    data = pool.read(key, is_urgent=is_urgent) if key else None
    return None if data is None else _found(job, data, version)


def _present_key(job: Job) -> tuple[bytes, str]:
    """Return the key of the bytes that the object has now, and its version; nothing where that cannot be told.

    A file of a catalogue is asked. What a manifest lists is what was listed: its version need not be told again.
    """
    if not job.manifest.grows:
        return job.lasting_key, ""
    path = job.manifest.path(job.ticket.object_id)
    (size,), (version,) = _versions(job.source, [path])
    return (entry_key(job.manifest.url, path, version, size), version) if version else (b"", "")


def _found(job: Job, data: Buffer, version: str) -> FetchedObject:
    """Return what a tier has, with the file that it is where the version was asked for."""
    source, path = job.source, job.manifest.path(job.ticket.object_id)
    inode = source.identity(path) if version and isinstance(source, PosixSource) else 0
    return FetchedObject(data=data, version=version, inode=inode)


def _versions(source: Source, paths: list[str]) -> tuple[list[int], list[str]]:
    """Return sizes and versions of files of a catalogue, as its source sees them."""
    return source.versions(paths) if isinstance(source, PosixSource) else stat_files(paths)


def offer_to_pool(pool: PoolTier, result: Result) -> None:
    """Let other nodes have what came from the origin, if it says which version that is, and it is the listed one."""
    job, fetched = result.job, result.fetched
    assert fetched is not None
    if not fetched.version or is_changed(result):
        return
    key = job.lasting_key
    if job.manifest.grows:
        path = job.manifest.path(job.ticket.object_id)
        key = entry_key(job.manifest.url, path, fetched.version, result.size_bytes)
    if key and (data := result.data()) is not None:
        pool.offer(key, data)


def is_changed(result: Result) -> bool:
    """Return whether the origin gave another version, or another size, than the manifest has."""
    assert result.fetched is not None
    if result.job.manifest.grows:  # a file has the bytes that it has when it is read
        return False
    manifest, object_id = result.job.manifest, result.job.ticket.object_id
    size = int(manifest.sizes[object_id])
    if size not in (result.size_bytes, UNKNOWN_SIZE):
        return True
    listed, seen = manifest.version_hash(object_id), result.fetched.version
    return bool(listed) and bool(seen) and version_hash(seen) != listed


def check(job: CheckJob) -> CheckResult:
    """Return the versions that the files have now."""
    try:
        paths = [job.catalogue.path(object_id) for object_id in job.ids]
        return CheckResult(job, _versions(job.source, paths)[1])
    except Exception:  # the catalogue was closed, say: the thread must not end, nor those who wait be forgotten
        return CheckResult(job, [""] * len(job.ids))
