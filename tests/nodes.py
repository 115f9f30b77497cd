"""A node without sockets and, if wanted, without threads: what arrives, and when, is up to the test."""

from __future__ import annotations

import os
import select
import selectors
import signal
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fake_sources import MemorySource
from prefeed.config import Config
from prefeed.core.actions import Outcome
from prefeed.errors import TierFullError
from prefeed.server.datasets import Dataset, Opened
from prefeed.server.fetchers import CheckJob, CheckResult, Fetchers, Job, Result, check
from prefeed.server.node import Answerer, Node
from prefeed.sources.catalogue_writer import open_catalogue
from prefeed.sources.learned import LearnedMapWriter
from prefeed.sources.manifest_writer import build_manifest
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.store.log import LogReader, LogWriter, stored_bytes
from prefeed.store.memory import MemoryFiles
from prefeed.types import Buffer

PLENTY = 1 << 30
_SPARE_BYTES = 64 * 1024
"""For the index and for pages in use in part, which take more than a 64th of a tier that has room for a few objects only."""


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Timers:
    """What was asked for later."""

    clock: FakeClock
    waiting: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self.waiting.append((self.clock.now + seconds, function))

    def run_next(self) -> None:
        """Let time pass until the next one is due."""
        self.waiting.sort(key=lambda entry: entry[0])
        due, function = self.waiting.pop(0)
        self.clock.now = max(self.clock.now, due)
        function()


class Loop:
    """Waits for descriptors as the server's loop does; its timers run when the test says."""

    def __init__(self) -> None:
        self.timers = Timers(FakeClock())
        self.selector = selectors.DefaultSelector()

    def watch(self, fd: int, act: Callable[[], None]) -> None:
        self.selector.register(fd, selectors.EVENT_READ, act)

    def unwatch(self, fd: int) -> None:
        self.selector.unregister(fd)

    def call_later(self, seconds: float, function: Callable[[], None]) -> None:
        self.timers.call_later(seconds, function)

    def turn(self) -> None:
        for key, _ in self.selector.select(0.05):
            key.data()


class HandFetchers:
    """Stands for the pool of threads: requests are made when, and in the order in which, the test says."""

    def __init__(self, clock: FakeClock) -> None:
        self.is_urgent = False
        self.jobs: list[Job] = []
        self.checks: list[CheckJob] = []
        self.seconds_each = 0.0
        self._clock = clock
        self._pool = Fetchers(max_threads=1, clock=clock, wake=lambda: None)
        self._results: list[Result | CheckResult] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.jobs.extend(jobs)

    def expect(self, source: Source, num_objects: int) -> None:
        """There are no processes."""

    def limit(self, source: Source, most: int) -> int:
        return most

    def submit_check(self, job: CheckJob) -> None:
        self.checks.append(job)

    def take(self, most: int) -> list[Result | CheckResult]:
        taken, self._results = self._results[:most], self._results[most:]
        return taken

    @property
    def has_results(self) -> bool:
        return bool(self._results)

    def close(self) -> None:
        """There are no threads."""

    def make(self, count: int | None = None) -> int:
        """Make the first requests, all of them if no number is given; return how many."""
        count = len(self.jobs) if count is None else count
        due, self.jobs = self.jobs[:count], self.jobs[count:]
        for job in due:
            result = self._pool._fetch(job)
            result.seconds = self.seconds_each
            self._results.append(result)
        return len(due)

    def check(self, count: int | None = None) -> list[list[int]]:
        """Ask the files of the first batches, all of them if no number is given; return their ids."""
        count = len(self.checks) if count is None else count
        due, self.checks = self.checks[:count], self.checks[count:]
        self._results += [check(job) for job in due]
        return [job.ids for job in due]


class RecordingTier(LogWriter):
    """A memory tier that can be told to refuse, and remembers what was asked of it.

    Attributes:
        refusal: Raised by every call that stores.
        deleted: Keys in the order in which they were to be freed.
        most_bytes: The most that its values ever cost.
        groups: How many values each call stored.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._files = MemoryFiles()
        self.close = weakref.finalize(self, self._files.close)
        super().__init__(self._files.index, self._files.segments, budget_bytes=_budget_for(capacity_bytes))
        self._reader = LogReader(self._files.index, self._files.segments)
        self.refusal: TierFullError | None = None
        self.deleted: list[bytes] = []
        self.most_bytes = 0
        self.groups: list[int] = []

    @property
    def descriptors(self) -> list[int]:
        """The files of the tier."""
        return self._files.descriptors

    @property
    def used_bytes(self) -> int:
        """What the values cost."""
        return sum(stored_bytes(size) for _, size, _ in self.entries())

    def get(self, key: bytes) -> bytes | None:
        """Return a value as readers see it."""
        return self._reader.get(key)

    def put_many(self, items: Sequence[tuple[bytes, Buffer, bool]]) -> None:
        if items and self.refusal is not None:
            raise self.refusal
        self.budget_bytes += _SPARE_BYTES
        try:
            super().put_many(items)
        finally:
            self.budget_bytes -= _SPARE_BYTES
        self.groups.append(len(items))
        self.most_bytes = max(self.most_bytes, self.used_bytes)

    def free_many(self, keys: Sequence[bytes]) -> None:
        self.deleted += keys
        super().free_many(keys)


def _budget_for(capacity_bytes: int) -> int:
    """Return the budget of a tier whose values may cost so much."""
    return -(-capacity_bytes * 64 // 63)


@dataclass
class Asked:
    """What a reader was told."""

    outcome: Outcome | None = None
    code: str = ""
    text: str = ""
    data: bytes = b""
    times: int = 0
    object_id: int = -1
    was_held: bool = False

    def answer(self, outcome: Outcome, code: str, text: str, data: Buffer, was_held: bool) -> None:
        self.outcome, self.code, self.text, self.data = outcome, code, text, bytes(data)
        self.was_held = was_held
        self.times += 1


@dataclass
class Rig:
    """A node and all that a test needs of it."""

    node: Node
    tier: RecordingTier
    clock: FakeClock
    timers: Timers
    directory: Path
    woken: threading.Event
    fetchers: Any = None

    def open(self, source: Source, *, name: str = "manifest") -> Dataset:
        """List the source and use it."""
        return self.node.registry.add(Opened(manifest=build_manifest(source, self.directory / name), source=source))

    def open_catalogue(self, *paths: str | Path, name: str = "catalogue", num_samples: int = 0) -> Dataset:
        """Use a catalogue that begins with these files, and that learns what samples open if there are any."""
        directory = self.directory / name
        catalogue, mean_bytes = open_catalogue(directory, [str(path) for path in paths])
        learned = LearnedMapWriter.open_or_create(directory, num_samples) if num_samples else None
        source = PosixSource(catalogue.url)
        return self.node.registry.add(Opened(manifest=catalogue, source=source, mean_bytes=mean_bytes, learned=learned))

    def num_residents(self, dataset: Dataset) -> int:
        """Return how many objects of the dataset are kept in the tier."""
        return len(self.node.registry.resident_ids(dataset.number))

    def demand(self, dataset: Dataset, object_id: int, *, consumer: int = 0) -> Asked:
        """A reader waits for the object."""
        asked = Asked()
        self.node.demand(consumer, dataset.number, object_id, asked.answer)
        self.node.pump()
        return asked

    def demand_file(self, dataset: Dataset, path: Path, *, consumer: int = 0) -> Asked:
        """A reader waits for a file that it has no object id for."""
        asked = Asked()

        def answerer(object_id: int) -> Answerer:
            asked.object_id = object_id
            return asked.answer

        self.node.demand_file(consumer, dataset.number, str(path), answerer)
        self.node.pump()
        return asked

    def plan(self, consumer: int, dataset: Dataset, ids: Sequence[int]) -> None:
        """A consumer begins an epoch."""
        self.node.scheduler.register_plan(consumer, dataset.number, np.asarray(ids, dtype=np.int64))
        self.node.pump()

    def begin(
        self, consumer: int, dataset: Dataset, ids: Sequence[int], *, upcoming: bool = False, recheck: bool = True
    ) -> None:
        """A consumer begins an epoch, or will do so next, as its client says."""
        order = np.asarray(ids, dtype=np.int64)
        self.node.begin_plan(consumer, dataset.number, order, upcoming=upcoming, resident=True, recheck=recheck)
        self.node.pump()

    def check(self, count: int | None = None) -> list[list[int]]:
        """Let files be asked for their versions; return the ids of each batch."""
        checked: list[list[int]] = self.fetchers.check(count)
        self.node.pump()
        self.node.validate()
        return checked

    def consume(self, consumer: int, dataset: Dataset, ids: Sequence[int]) -> None:
        """Its readers are done with these."""
        self.node.consumed(consumer, dataset.number, np.asarray(ids, dtype=np.int64), len(ids), 0)
        self.node.pump()

    def deliver(self, count: int | None = None) -> int:
        """Let requests be made and come back."""
        made = int(self.fetchers.make(count))
        self.node.pump()
        self.node.validate()
        return made

    def deliver_all(self) -> None:
        """Let everything come back, and what follows from it."""
        while self.check() or self.deliver():
            pass

    def pump_until(self, condition: Callable[[], bool], *, timeout_seconds: float = 60.0) -> None:
        """Carry on as the server's loop does until the condition holds; for a node with threads."""
        for _ in range(int(timeout_seconds / 0.01)):
            self.node.pump()
            if condition():
                return
            self.woken.wait(0.01)  # the loop's turn while requests are under way
            self.woken.clear()
        raise TimeoutError(self.node.statistics())


@contextmanager
def rig(
    directory: Path,
    *,
    capacity: int = PLENTY,
    threads: bool = False,
    tier: RecordingTier | None = None,
    **settings: Any,
) -> Iterator[Rig]:
    """Make a node whose manifests lie below a directory; with threads of its own, or with requests made by hand."""
    clock, woken = FakeClock(), threading.Event()
    timers = Timers(clock)
    tier = tier or RecordingTier(capacity)
    config = Config(home=directory, **settings)
    before = set(threading.enumerate())
    node = Node(config, tier, clock=clock, wake=woken.set, call_later=timers.call_later)  # type: ignore[arg-type]
    made = Rig(node, tier, clock, timers, directory, woken)
    if not threads:
        made.fetchers = HandFetchers(clock)
        node.fetchers = made.fetchers
        node.checks._submit = made.fetchers.submit_check
    try:
        yield made
    finally:
        node.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
        tier.close()
        vars(made).clear()  # pytest keeps what a fixture returned, and with it the mapped manifests


def kill(pid: int) -> None:
    """Kill a process and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], 60)[0]
    finally:
        os.close(descriptor)


def memory_source(num_objects: int, *, size: int = 5000, url: str = "memory://test") -> MemorySource:
    """Return an origin of that many objects; object i is the i-th by name too."""
    return MemorySource({f"{index:05d}.bin": content(index, size) for index in range(num_objects)}, url=url)


def content(index: int, size: int = 5000) -> bytes:
    """Return the bytes of an object."""
    return index.to_bytes(4, "big") * (size // 4)
