"""``Plan``: what a program will read, in order, told to the node by the program itself, in any framework.

    plan = Plan(dataset, order) ──ids──→ node server: fetches ahead
      │ extend, advance, cancel              ↑ reads that have ended
      └─ plan.reader ─pickled, forked─→ any process: reader.read(item)

The server follows it as it follows the plan of a loader (``client.consumer``).
"""

from __future__ import annotations

import logging
import operator
import os
import threading
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from prefeed.client.access import AccessMap, Ends, Indices
from prefeed.client.consumer import Consumer
from prefeed.client.dataset import NodeDataset
from prefeed.client.node import NodeClient
from prefeed.client.reader import ObjectReader
from prefeed.client.readers import IdleReaders, serving
from prefeed.config import Config, settings_of
from prefeed.datasets.objects import Objects
from prefeed.datasets.origin import OfOrigin
from prefeed.errors import ForkedError, PrefeedError
from prefeed.types import ReadCounts

_log = logging.getLogger("prefeed")

Name = str | os.PathLike[str]
Item = int | Name | tuple[Name, int, int]
"""A sample: its index, or the path or URL of its object; or a part of an object: its path or URL, offset and length in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """How far a plan is.

    Attributes:
        planned: Samples that it names so far.
        position: Samples that ``advance`` was told of: everything before is done.
        reads: How the reads of its reader went, in all processes that have reported; None if no server follows the plan.
    """

    planned: int
    position: int
    reads: ReadCounts | None


class PlanReader:
    """Reads the samples of a plan, and reports to the server that they were read.

    Small and picklable: ``Plan.reader`` is what a program hands to its workers.

    **Threads and processes**: any number of threads, forked and spawned processes.
    **Blocking**: as reads of the dataset; a sample that is in memory is read without waiting.
    """

    def __init__(self, dataset: OfOrigin, on_node: NodeDataset | None, consumer: int) -> None:
        self._dataset: Any = dataset
        self._on_node = on_node
        self._consumer = consumer
        self._readers: IdleReaders[ObjectReader] = IdleReaders()
        self._is_over = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._dataset!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (PlanReader, (self._dataset, self._on_node, self._consumer))

    def read(self, item: Item) -> Any:
        """Return a sample, as the dataset returns it: the bytes of the object, unless the dataset decodes them; of a part its bytes.

        A sample that the plan does not name is read as well; nothing is ahead of it.

        Raises:
            IndexError: The dataset has no such sample.
            SourceError: The origin has no such object, or refuses it.
            TypeError: The dataset has no names, or the item is neither an index nor a name.
            ValueError: The object has no such part.
        """
        if self._on_node is None or self._is_over:
            return self._made(item)
        with self._readers.one(self._reader) as reader, serving(reader):
            return self._made(item)

    def _made(self, item: Item) -> Any:
        if isinstance(item, tuple):
            return _named(self._dataset, item).read_part(*item)
        return self._dataset[index_of(self._dataset, item)]

    def close(self) -> None:
        """Report what was read in this process, and close what is open; later reads are no longer the plan's. Idempotent."""
        self._is_over = True
        self._readers.close()

    def _reader(self) -> ObjectReader:
        assert self._on_node is not None
        return ObjectReader(self._on_node, consumer=self._consumer)


class Plan:
    """The samples that a program will read next, in order: the node has them in memory before they are read.

    Loaders that prefeed serves make their own plans. This is for programs with other loops and pipelines.

    Args:
        listing: A dataset of ``prefeed.datasets``, or the root that ``Objects`` would list: a directory or URL.
        items: Indices of its samples, paths or URLs of its objects, or ``(path or URL, offset, length)`` for parts of them, in the
            order of reading; they may repeat. Parts are fetched alone where the root is listed in blocks: ``blocks+URL``.
        config: Settings; defaults to those in force in the process. A dataset of a sample set brings its own.

    If no server can be reached, the plan is not followed, with one warning, and samples are read from the origin.

    Raises:
        IndexError: The listing has no such sample.
        ObjectNotFoundError: The listing has no object of that name.
        ValueError: An object has no such part.
        SourceError: The root cannot be listed.

    **Ownership**: the process that made it extends, advances and cancels it; ``reader`` goes to others.
    **Threads and processes**: any thread. In a forked child, ``extend`` and ``advance`` raise ``ForkedError``.
    **Blocking**: until the root is listed; nothing waits for a fetch.

    Attributes:
        reader: Reads its samples, also in other processes.
    """

    def __init__(
        self, listing: OfOrigin | str | os.PathLike[str], items: Iterable[Item] = (), *, config: Config | None = None
    ) -> None:
        settings = settings_of(config)
        if isinstance(listing, str | os.PathLike):
            listing = Objects(listing, config=settings)
        elif not isinstance(listing, OfOrigin):
            raise TypeError(
                f"a plan is made of a dataset of prefeed.datasets, a directory or a URL, not of {type(listing).__name__}"
            )
        self._dataset: Any = listing
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ends = Ends()
        self._position = 0
        self._is_over = False
        first = self._samples(items)
        self._access, self._consumer = _attached(listing, listing.prefeed_settings() or settings)
        number, on_node = (0, None) if self._consumer is None else (self._consumer.number, self._consumer.dataset)
        self.reader: PlanReader = PlanReader(listing, on_node, number)
        ids = self._planned(*first)
        if self._consumer is not None:
            self._consumer.begin(ids, goes_on=True)

    def read(self, item: Item) -> Any:
        """Return a sample of the plan; see ``PlanReader.read``."""
        return self.reader.read(item)

    def extend(self, items: Iterable[Item]) -> None:
        """These follow in the order of reading.

        The server keeps about 10 million objects of a plan that ``advance`` has not passed, and follows no further.

        Raises:
            IndexError: The listing has no such sample.
            ObjectNotFoundError: The listing has no object of that name.
            ValueError: The plan was cancelled, or an object has no such part.
            ForkedError: In a forked child.
        """
        more = self._samples(items)
        with self._changing():
            ids = self._planned(*more)
            if self._consumer is not None:
                self._consumer.extend(ids, are_read_soon=False)

    def advance(self, position: int) -> None:
        """All samples before this position of the plan are done, or are not read: the server waits for them no longer.

        Reads through ``reader`` are reported without it. It is needed where samples are left out, and for a plan that is
        extended without end.

        Args:
            position: Of the order of reading, 0 to ``len(plan)``; one that is no further than before changes nothing.

        Raises:
            ValueError: The plan has no such position, or was cancelled.
            ForkedError: In a forked child.
        """
        with self._changing():
            if not 0 <= position <= self._ends.num_samples:
                raise ValueError(f"position {position} of a plan of {self._ends.num_samples} samples")
            if position > self._position:
                self._position = position
                if self._consumer is not None:
                    self._consumer.advance(self._ends.id_at(position))

    def progress(self) -> PlanProgress:
        """Return how far the plan is. **Blocking**: until the server answers, a few seconds at most."""
        counts = None
        if self._consumer is not None and not self._is_over:
            self.reader._readers.report()
            counts = self._consumer.read_counts()
        return PlanProgress(planned=self._ends.num_samples, position=self._position, reads=counts)

    def cancel(self) -> None:
        """Nothing more is fetched ahead for the plan; samples can still be read. Idempotent; nothing in a forked child."""
        if self._pid != os.getpid():
            return
        with self._lock:
            was_over, self._is_over = self._is_over, True
        if not was_over:
            self.reader.close()
            if self._consumer is not None:
                self._consumer.close()

    def __len__(self) -> int:
        """Return how many samples it names so far."""
        return self._ends.num_samples

    def __repr__(self) -> str:
        state = ", cancelled" if self._is_over else "" if self._consumer is not None else ", without a server"
        return f"<{type(self).__name__} of {len(self):,} samples of {self._dataset!r}, {self._position:,} done{state}>"

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a plan belongs to the process that made it: give plan.reader to other processes")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Inside it, this thread alone changes the plan, which is not over."""
        if self._pid != os.getpid():
            raise ForkedError(
                "a plan belongs to the process that made it: a forked child reads with plan.reader, and may make a plan of its own"
            )
        with self._lock:
            if self._is_over:
                raise ValueError("the plan was cancelled: make another one")
            yield

    def _planned(self, samples: Indices, sizes: Indices | None) -> Indices:
        """Note items that follow, and return their objects; both in the order of reading.

        Args:
            samples: Of all items, one after the other.
            sizes: How many samples each item has; None: one each.
        """
        num_items = len(samples) if sizes is None else len(sizes)
        if self._access is None:
            self._ends.append(num_items, len(samples), sizes)
            return samples
        ids, counts = self._access.object_ids(samples)
        self._ends.append(num_items, len(ids), counts if sizes is None else sizes)
        return ids.astype(np.int64, copy=False)

    def _samples(self, items: Iterable[Item]) -> tuple[Indices, Indices | None]:
        """Return the samples of items, 0 to the length of the dataset, and how many each item has; None: one each."""
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
                part = _named(self._dataset, item).parts_of(*item)
                samples.extend(part)
                sizes.append(len(part))
            else:
                samples.append(index_of(self._dataset, item) % length)
                sizes.append(1)
        has_parts = len(samples) != len(sizes)
        return np.array(samples, dtype=np.int64), np.array(sizes, dtype=np.int64) if has_parts else None


def index_of(dataset: Any, item: Item) -> int:
    """Return the index of a sample that is named by its index, or by the path or URL of its object.

    Raises:
        IndexError: The dataset has no such sample.
        ObjectNotFoundError: It has no object of that name.
        TypeError: It has no names, or the item is neither an index nor a name.
    """
    if isinstance(item, str | os.PathLike):
        return _named(dataset, item).index_of(item)
    if isinstance(item, tuple):
        raise TypeError(f"{item!r} is a part of an object, not a sample")
    index, length = operator.index(item), len(dataset)
    if not -length <= index < length:
        raise IndexError(f"sample {index} of {length}")
    return index


def _named(dataset: Any, item: Any) -> Objects:
    """Return the dataset, whose samples have names.

    Raises:
        TypeError: They have none.
    """
    if not isinstance(dataset, Objects):
        raise TypeError(
            f"samples of {type(dataset).__name__} have no names: a plan for it takes indices, 0 to {len(dataset) - 1}, not {item!r}"
        )
    return dataset


def _attached(dataset: Any, config: Config) -> tuple[AccessMap | None, Consumer | None]:
    """Return the dataset's access map and a voice for its plan on the node; nothing when no server can be reached."""
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
            "prefeed: no plan for %s, whose objects are read when they are asked for: %s", repr(dataset), str(err)
        )
        return None, None
    return access, Consumer(node, access.dataset)
