"""``Plan``: the samples that a program will read, in order, for programs of any framework.

    plan = Plan(dataset, order) ──ids──→ node server: fetches ahead
      │ extend, advance, cancel              ↑ completed reads
      └─ plan.reader ─pickled, forked─→ any process: reader.read(item)

The server follows a plan like that of a loader (``client.consumer``). While the server starts, the program continues and reads the
origin (``consumer_future``).
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from prefeed.client.access import AccessMap, Ends, Indices
from prefeed.client.consumer import Consumer
from prefeed.client.launch import is_listening, start_ahead
from prefeed.client.node import NodeClient
from prefeed.client.reader import ObjectReader
from prefeed.client.readers import IdleReaders, serving
from prefeed.config import Config, settings_of
from prefeed.datasets.consumer_future import ConsumerFuture, ConsumerRef
from prefeed.datasets.objects import Objects
from prefeed.datasets.origin import OriginDataset
from prefeed.errors import ForkedError, PrefeedError
from prefeed.sampleset.names import is_named
from prefeed.sources.urls import canonical_url
from prefeed.types import ReadCounts

_log = logging.getLogger("prefeed")

Name = str | os.PathLike[str]
Item = int | Name | tuple[Name, int, int]
"""Index of a sample, path or URL of its object, or a part of an object: path or URL, offset and length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """Progress of a plan.

    Attributes:
        planned: Number of samples in the plan.
        position: Position of the last ``advance``. All samples before it are done.
        reads: Counts of the reader's reads in all processes that have reported; None if no server follows the plan yet.
    """

    planned: int
    position: int
    reads: ReadCounts | None


class PlanReader:
    """Reads the samples of a plan, and reports the reads to the server. Pass ``Plan.reader`` to your workers.

    **Threads and processes**: any number of threads, forked and spawned processes.
    **Blocking**: as reads of the dataset. A sample in memory is read without waiting. While the server starts, samples are read from
    the origin, and pickling waits, because the pickle contains the consumer.
    """

    def __init__(self, dataset: OriginDataset, future: ConsumerFuture) -> None:
        self._dataset: Any = dataset
        self._future = future
        self._readers: IdleReaders[ObjectReader] = IdleReaders()
        self._is_cancelled = False
        self._pid = os.getpid()
        self._read_before: list[Item] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._dataset!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        self._future.wait()
        return (_create_reader, (self._dataset, self._future.get()))

    def read(self, item: Item) -> Any:
        """Return a sample as the dataset returns it, or the bytes of a part.

        Samples outside of the plan can be read too, but are not prefetched.

        Raises:
            IndexError: The dataset has no such sample.
            SourceError: The origin has no such object, or refuses access.
            TypeError: The dataset has no names, or the item is neither an index nor a name.
            ValueError: The object has no such part.
        """
        if self._is_cancelled or self._future.get() is None:
            if not self._is_cancelled and self._pid == os.getpid() and not self._future.is_resolved:
                self._read_before.append(item)
            return self._sample(item)
        with self._readers.one(self._reader) as reader, serving(reader):
            return self._sample(item)

    def _sample(self, item: Item) -> Any:
        if isinstance(item, tuple):
            return _require_names(self._dataset, item).read_part(*item)
        return self._dataset[index_of(self._dataset, item)]

    def close(self) -> None:
        """Report the reads of this process, and close its readers. Later reads are not part of the plan. Idempotent."""
        self._is_cancelled = True
        self._readers.close()

    def take_read(self) -> list[Item]:
        """Return, and forget, the items that this process read before the consumer was known."""
        taken, self._read_before = self._read_before, []
        return taken

    def _reader(self) -> ObjectReader:
        found = self._future.get()
        assert found is not None
        return ObjectReader(found[0], consumer=found[1])


def _create_reader(dataset: OriginDataset, found: ConsumerRef | None) -> PlanReader:
    return PlanReader(dataset, ConsumerFuture.resolved(found))


class Plan:
    """Samples that a program will read, in order, so that the node prefetches them.

    Loaders that prefeed serves create their own plans. Use this class for other loops and pipelines.

    Args:
        listing: A dataset of ``prefeed.datasets``, or a directory or URL for ``Objects``.
        items: Indices of samples, paths or URLs of objects, or ``(path or URL, offset, length)`` for parts of objects, in the order
            of reading. Items can repeat. Parts are fetched separately if the root is listed in blocks: ``blocks+URL``.
        config: Settings; defaults to those in force in the process. A dataset of a sample set uses its own.

    If no server can be reached, one warning is logged, and samples are read from the origin. Samples are also read from the origin while
    a server starts (``start_ahead``). The server then receives the rest of the plan.

    Raises:
        IndexError: The listing has no such sample.
        ObjectNotFoundError: The listing has no object of that name.
        ValueError: An object has no such part.
        SourceError: The root cannot be listed.

    **Ownership**: only the process that created the plan can extend, advance and cancel it. Pass ``reader`` to others.
    **Threads and processes**: any thread. In a forked child, ``extend`` and ``advance`` raise ``ForkedError``.
    **Blocking**: until the root is listed, by this process if it is a local path and no server runs, otherwise by the server. Fetches do
    not block. An unexpected error of a dataset is raised at the next use of the plan.

    Attributes:
        reader: Reader of the samples, also for other processes.
    """

    def __init__(
        self,
        listing: OriginDataset | str | os.PathLike[str],
        items: Iterable[Item] = (),
        *,
        config: Config | None = None,
    ) -> None:
        settings = settings_of(config)
        if isinstance(listing, str | os.PathLike):
            here = _must_start_server(settings) and not is_named(listing) and canonical_url(listing).startswith("/")
            if here:
                start_ahead(settings)  # The server starts while this process lists the root.
            listing = Objects._without_node(listing, settings) if here else Objects(listing, config=settings)
        elif not isinstance(listing, OriginDataset):
            raise TypeError(
                f"a plan needs a dataset of prefeed.datasets, a directory or a URL, not {type(listing).__name__}"
            )
        self._dataset: Any = listing
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ends = Ends()
        self._num_planned = 0
        self._position = 0
        self._is_cancelled = False
        self._error: Exception | None = None
        self._access: AccessMap | None = None
        self._consumer: Consumer | None = None
        self._pending: list[_Items] | None = []
        node_config = listing.prefeed_settings() or settings
        self._future = ConsumerFuture()
        self.reader: PlanReader = PlanReader(listing, self._future)
        self._append(*self._to_samples(items))
        if not _must_start_server(node_config):
            self._begin(*_connect(listing, node_config))
        else:
            args = (weakref.ref(self), listing, node_config, self._future)
            threading.Thread(target=_follow_in_thread, args=args, name="prefeed-plan", daemon=True).start()

    def read(self, item: Item) -> Any:
        """Return a sample of the plan; see ``PlanReader.read``."""
        return self.reader.read(item)

    def extend(self, items: Iterable[Item]) -> None:
        """Append items to the plan.

        The server stores about 10 million objects after the position of ``advance``, and prefetches no further ones.

        Raises:
            IndexError: The listing has no such sample.
            ObjectNotFoundError: The listing has no object of that name.
            ValueError: The plan was cancelled, or an object has no such part.
            ForkedError: The caller is a forked child.
        """
        more = self._to_samples(items)
        with self._lock_plan():
            self._append(*more)

    def advance(self, position: int) -> None:
        """Mark all samples before a position as done, so that the server does not wait for reads of them.

        Reads through ``reader`` are reported automatically. Call ``advance`` if your program skips samples or extends the plan
        indefinitely.

        Args:
            position: Position in the plan, 0 to ``len(plan)``. A position before the current one has no effect.

        Raises:
            ValueError: The position is out of range, or the plan was cancelled.
            ForkedError: The caller is a forked child.
        """
        with self._lock_plan():
            if not 0 <= position <= self._num_planned:
                raise ValueError(f"position {position} of a plan of {self._num_planned} samples")
            if position > self._position:
                self._position = position
                if self._consumer is not None:
                    self._consumer.advance(self._ends.id_at(position))

    def progress(self) -> PlanProgress:
        """Return the progress of the plan. **Blocking**: a few seconds at most, for the server's reply."""
        self._raise_error()
        counts = None
        if self._consumer is not None and not self._is_cancelled:
            self.reader._readers.report()
            counts = self._consumer.read_counts()
        return PlanProgress(planned=self._num_planned, position=self._position, reads=counts)

    def cancel(self) -> None:
        """Stop prefetching for the plan. Samples can still be read. Idempotent; no effect in a forked child."""
        if self._pid != os.getpid():
            return
        with self._lock:
            was_cancelled, self._is_cancelled = self._is_cancelled, True
        if not was_cancelled:
            self._future.resolve(None)
            self.reader.close()
            if self._consumer is not None:
                self._consumer.close()

    def __len__(self) -> int:
        """Return the number of samples in the plan."""
        return self._num_planned

    def __repr__(self) -> str:
        state = (
            ""
            if self._consumer is not None
            else ", without a server"
            if self._pending is None
            else ", whose server starts"
        )
        state = ", cancelled" if self._is_cancelled else state
        return f"<{type(self).__name__} of {len(self):,} samples of {self._dataset!r}, {self._position:,} done{state}>"

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a plan belongs to the process that created it: pass plan.reader to other processes")

    @contextmanager
    def _lock_plan(self) -> Iterator[None]:
        """Hold the plan's lock, and check that the plan can be changed."""
        if self._pid != os.getpid():
            raise ForkedError(
                "a plan belongs to the process that created it: read with plan.reader in a forked child, or create another plan there"
            )
        with self._lock:
            self._raise_error()
            if self._is_cancelled:
                raise ValueError("the plan was cancelled: create another one")
            yield

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    def _append(self, samples: Indices, sizes: Indices | None) -> None:
        """Append samples to the plan, and send them to the server if it follows the plan already.

        Args:
            samples: Samples of all items.
            sizes: Number of samples of each item; None for one each.
        """
        num_items = len(samples) if sizes is None else len(sizes)
        self._num_planned += num_items
        if self._pending is not None:
            self._pending.append((samples, sizes))
            return
        ids, counts = self._to_objects(samples, sizes)
        self._ends.append(num_items, len(ids), counts)
        if self._consumer is not None:
            self._consumer.extend(ids, are_read_soon=False)

    def _begin(self, access: AccessMap | None, consumer: Consumer | None) -> None:
        """Set the consumer, and send it the items that were not read yet."""
        with self._lock:
            if self._is_cancelled:
                if consumer is not None:
                    consumer.close()
                return
            self._access, self._consumer = access, consumer
            parts = [self._to_objects(*items) for items in self._pending or []]
            self._pending = None
            ids = parts[0][0] if len(parts) == 1 else np.concatenate([ids for ids, _ in parts])
            counts = parts[0][1] if len(parts) == 1 else np.concatenate([_count_objects(*part) for part in parts])
            read = self.reader.take_read()
            if consumer is not None and (read or self._position):
                done, _ = self._to_objects(*self._to_samples(read))
                ids, counts = _remaining(ids, _count_objects(ids, counts), done=done, num_passed=self._position)
            self._ends.append(self._num_planned, len(ids), counts)
            if consumer is not None:
                self._dataset._use_node()
                consumer.begin(ids, is_partial=True)
                if self._position:
                    consumer.advance(self._ends.id_at(self._position))
        self._future.resolve(None if consumer is None else (consumer.dataset, consumer.number))

    def _to_objects(self, samples: Indices, sizes: Indices | None) -> tuple[Indices, Indices | None]:
        """Return the objects of items in the order of reading, and the number per item; None for one each."""
        if self._access is None:
            return samples, sizes
        ids, counts = self._access.object_ids(samples)
        return ids.astype(np.int64, copy=False), counts if sizes is None else sizes

    def _to_samples(self, items: Iterable[Item]) -> tuple[Indices, Indices | None]:
        """Return the non-negative sample indices of items, and the number per item; None for one each."""
        if isinstance(items, str | bytes | os.PathLike):
            raise TypeError(f"a plan takes several items: [{items!r}]")
        length = len(self._dataset)
        if isinstance(items, np.ndarray) and items.dtype.kind in "iu" and items.ndim == 1:
            found = items.astype(np.int64)
            if len(found) and not (-length <= int(found.min()) and int(found.max()) < length):
                wrong = next(index for index in found.tolist() if not -length <= index < length)
                raise IndexError(f"sample {wrong} of {length}")
            return np.where(found < 0, found + length, found), None
        sizes = array("q")
        samples = array("q")
        for item in items:
            if isinstance(item, tuple):
                part = _require_names(self._dataset, item).parts_of(*item)
                samples.extend(part)
                sizes.append(len(part))
            else:
                samples.append(index_of(self._dataset, item) % length)
                sizes.append(1)
        has_parts = len(samples) != len(sizes)
        return np.array(samples, dtype=np.int64), np.array(sizes, dtype=np.int64) if has_parts else None


def index_of(dataset: Any, item: Item) -> int:
    """Return the index of a sample, given as an index or as the path or URL of its object.

    Raises:
        IndexError: The dataset has no such sample.
        ObjectNotFoundError: The dataset has no such object.
        TypeError: The dataset has no names, or the item is neither an index nor a name.
    """
    if isinstance(item, str | os.PathLike):
        return _require_names(dataset, item).index_of(item)
    if isinstance(item, tuple):
        raise TypeError(f"{item!r} is a part of an object, not a sample")
    index, length = operator.index(item), len(dataset)
    if not -length <= index < length:
        raise IndexError(f"sample {index} of {length}")
    return index


def _require_names(dataset: Any, item: Any) -> Objects:
    """Check that the samples of a dataset have names, and return the dataset.

    Raises:
        TypeError: The samples have no names.
    """
    if not isinstance(dataset, Objects):
        raise TypeError(
            f"samples of {type(dataset).__name__} have no names: a plan for it takes indices, 0 to {len(dataset) - 1}, not {item!r}"
        )
    return dataset


def _count_objects(ids: Indices, counts: Indices | None) -> Indices:
    """Return the number of objects of each item."""
    return np.ones(len(ids), dtype=np.int64) if counts is None else counts


def _remaining(ids: Indices, counts: Indices, *, done: Indices, num_passed: int) -> tuple[Indices, Indices]:
    """Return the objects of a plan that were not read yet, and their number per item.

    Args:
        ids: Objects in the order of reading.
        counts: Number of objects of each item, shape (num_items,).
        done: Objects that were read, repeated if read several times.
        num_passed: Number of items at the start that ``advance`` marked as done.
    """
    item_of = np.repeat(np.arange(len(counts)), counts)
    is_left = item_of >= num_passed
    num_read = Counter(done.tolist())
    for place in np.flatnonzero(np.isin(ids, done)).tolist():
        object_id = int(ids[place])
        if num_read[object_id]:
            num_read[object_id] -= 1
            is_left[place] = False
    return ids[is_left], np.bincount(item_of[is_left], minlength=len(counts))


_Items = tuple[Indices, Indices | None]
"""Samples, and the number of samples of each item. See ``Plan._to_samples``."""


def _must_start_server(config: Config) -> bool:
    """Return True if no server runs and the settings allow to start one in the background."""
    return config.enabled and config.autostart and config.limits.start_ahead and not is_listening(config)


def _follow_in_thread(plan: weakref.ref[Plan], dataset: Any, config: Config, future: ConsumerFuture) -> None:
    """Connect a plan to the server, in a thread that does not keep the plan alive."""
    access = consumer = None
    try:
        access, consumer = _connect(dataset, config)
    except Exception as err:  # noqa: BLE001 - an error of the dataset, which the next use of the plan raises
        _fail(plan(), err)
    followed = plan()
    if followed is not None:
        followed._begin(access, consumer)
    elif consumer is not None:
        consumer.close()
    future.resolve(None)


def _fail(plan: Plan | None, error: Exception) -> None:
    if plan is not None:
        plan._error = error


def _connect(dataset: Any, config: Config) -> tuple[AccessMap | None, Consumer | None]:
    """Connect to the node; return the dataset's access map and a consumer, or two Nones without a server."""
    if not config.enabled:
        return None, None
    try:
        node = NodeClient.connect(config)
        try:
            access = dataset.prefeed_access(node, config)
        except BaseException:
            node.close()
            raise
    except (PrefeedError, OSError) as err:
        _log.warning(
            "prefeed: no plan for %s, whose objects are fetched when they are read: %s", repr(dataset), str(err)
        )
        return None, None
    return access, Consumer(node, access.dataset)
