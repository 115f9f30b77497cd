"""The loader's side of epochs that begin in place: whether they do, when the loader joins the server, and what is said of it."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

from prefeed.client.access import AccessMap
from prefeed.client.in_place import PlaceState
from prefeed.client.joining import Joining
from prefeed.client.launch import is_listening
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.core.in_place import LEAST_MEASURED, MOST_MEASURED, Course, PlacePolicy, Storage, is_short, was_short
from prefeed.errors import ConfigError, FilesUnknownError, PrefeedError, SampleSetError
from prefeed.loaders.access import Opening, columns_of
from prefeed.loaders.guesses import Column, Guess
from prefeed.run_summary import counters
from prefeed.shown import described
from prefeed.sources.mounts import Roots
from prefeed.torch.in_place import InPlace
from prefeed.torch.samples import SharedState
from prefeed.types import OriginReads, ReadCounts

_log = logging.getLogger("prefeed")

QUICK = "its files are read in place: storage answers faster than the cache"
SHORT = (
    "its samples are read in place: the epoch is over before the cache could help; the next one may be read through it"
)
NOT_READY = "its samples are read in place: the node server was not ready before the epoch ended"
SLOW = "storage is slow"
FEW_FILES = "its samples are read in place: they opened too few files to tell whether the cache would help"
NO_FILES = (
    "its samples are read in place: Python opened no file for them below {roots}; name the directory of the files with PREFEED_ROOTS or "
    "--root, or use `prefeed mount` if a library opens them in C"
)

_said: set[tuple[str, str]] = set()
"""Origins and reasons of which the log says that they are read in place."""

_NONE = -1

_stayed: set[tuple[str, str, int]] = set()
"""Class and length of datasets of which this process has read an epoch in place though storage was slow."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a loader has no plan; ``may_pass``: it is no fault of the loader or its dataset, and later epochs try again."""

    reason: str
    may_pass: bool = False


class Place:
    """The loader's side of epochs that begin in place.

    **Ownership**: the loader's attachment. **Threads and processes**: the training loop, and the thread of ``joining``; a forked
    child makes its own.

    Attributes:
        dataset: Stands in for the loader's dataset.
        pid: Of the process that made it.
        joining: The last try to join the server.
        is_refused: The node cannot serve the dataset, whenever it is asked.
    """

    def __init__(self, loader: Any, opening: Opening, config: Config) -> None:
        self.dataset: InPlace = InPlace(loader.dataset, opening, config, num_workers=loader.num_workers)
        self.pid: int = os.getpid()
        self.joining: Joining | None = None
        self.is_refused = False
        self.opening = opening
        self.config = config
        self._measures = measures(opening, config)
        self._policy = PlacePolicy()
        self._was_quick = False  # in this epoch
        self._stayed_quick = False  # the epoch before, to its end
        self._began_joined = False
        self._is_told = True  # how the epoch before went
        self._has_stayed = False  # in place, though its storage was slow
        self._num_workers: int = loader.num_workers
        self._num_looked_at = _NONE  # reads of this process, of which storage is no slower
        self._origin = ""
        self._counted = (0, 0)  # files and bytes of this epoch that the run summary has

    @property
    def state(self) -> PlaceState:
        """What the processes share."""
        return self.dataset.state

    @property
    def is_joined(self) -> bool:
        """True when samples are read through the server's cache."""
        return bool(self.state.note_number)

    def open_on(self, node: NodeClient) -> AccessMap:
        """Open the access map on a node; close the connection if that fails.

        Raises:
            PrefeedError: The node cannot serve the dataset.
        """
        try:
            return self.opening(node)
        except BaseException:
            node.close()
            raise

    def begins_in_place(self, *, is_connected: bool) -> bool:
        """Return whether the next epoch begins in place."""
        return not is_connected or (self._measures and self._policy.begins_in_place)

    def epoch_begins(self, *, in_place: bool) -> None:
        """Another epoch begins."""
        self.epoch_ended()
        self._is_told, self._was_quick, self._began_joined = False, False, not in_place
        self._num_looked_at = _NONE
        self.dataset.shared.epoch_begins()
        self.state.epoch_begins(in_place=in_place)
        self._counted = (0, 0)

    def epoch_ended(self) -> None:
        """The policy hears how the epoch went, once."""
        self.count_direct()
        if self._is_told or not self._measures:
            return
        self._is_told, self._stayed_quick = True, False
        if self._began_joined:
            self._policy.ended(Course.JOINED)
        elif self.is_joined:
            self._policy.ended(Course.SLOWED_DOWN if self._was_quick else Course.SLOW)
        else:
            self._policy.ended(Course.IN_PLACE)
            self._stayed_quick = self.state.storage() is Storage.QUICK

    def why_in_place(self) -> str:
        """Return why the whole epoch was read in place."""
        if self.state.stays:
            return SHORT
        if not self._measures or self.state.storage() is Storage.SLOW:
            return NOT_READY
        num_measured = self.state.num_measured()
        if num_measured < LEAST_MEASURED:
            return FEW_FILES if num_measured else NO_FILES.format(roots=Roots.of(self.config).describe())
        return QUICK

    def in_place(self) -> tuple[int, int, int]:
        """Return samples of this epoch that were read in place, and about how many files these opened, of how many bytes."""
        num_samples, num_files, num_bytes = self.state.in_place()
        return num_samples, num_samples if self.opening.is_of_prefeed else num_files, num_bytes

    def count_direct(self) -> None:
        """Count for the run summary what was read in place in this epoch since the last call."""
        before, self._counted = self._counted, self.in_place()[1:]
        counters.add(counters.DIRECT, self._counted[0] - before[0])
        counters.add(counters.ORIGIN_BYTES, self._counted[1] - before[1])

    def reads(self, *, round_trip_seconds: float | None) -> OriginReads:
        """Return how the samples of this epoch were read so far.

        Args:
            round_trip_seconds: How long the server let a question wait; None: it was asked none.
        """
        waited_seconds, num_reads = self.state.waited()
        num_samples, num_files, num_bytes = self.in_place()
        is_slow = self._measures and self.state.storage() is Storage.SLOW
        return OriginReads(
            origin=self._place_of_files(),
            in_place=not self.is_joined,
            why=(SLOW if is_slow else "") if self.is_joined else self.why_in_place().partition(": ")[2],
            open_seconds=waited_seconds / num_reads if num_reads else None,
            round_trip_seconds=round_trip_seconds,
            samples=num_samples,
            files=num_files,
            bytes=num_bytes,
        )

    def say(self, name: str, why: str) -> None:
        """Log that a loader reads in place; of an origin it is said once per process."""
        said = self._place_of_files(), why
        if said not in _said:
            _said.add(said)
            _log.info("prefeed: %s: %s", name, why)

    def _place_of_files(self) -> str:
        """Return the directory above the files of the dataset, as far as it is known; it stays the same."""
        if not self._origin:
            seen = self.dataset.seen
            paths = self.opening.some_paths if seen is None else sum(seen.files(most=MOST_MEASURED).values(), ())
            if not paths:
                return Roots.of(self.config).describe()
            self._origin = os.path.commonpath([os.path.dirname(path) for path in paths])
        return self._origin

    def should_join(self, *, waited_seconds: float = 0.0, is_next_pass: bool = False) -> bool:
        """Return whether storage has slowed down, and no joining is under way; asked with each batch.

        Args:
            waited_seconds: That the loop has waited for batches in this pass.
            is_next_pass: The iterator has begun another pass: it may have no end.
        """
        num_measured = self.state.num_measured_here
        if num_measured == self._num_looked_at:
            return False  # the loop itself reads, and has measured nothing since storage was not slow
        if self.state.stays and (is_next_pass or not was_short(waited_seconds=waited_seconds)):
            self.state.stay_no_more()
        storage = self.state.storage() if self._measures else Storage.SLOW
        if storage is not Storage.SLOW and not self._num_workers:
            self._num_looked_at = num_measured
        self._was_quick = self._was_quick or storage is Storage.QUICK
        is_joining = self.joining is not None and self.joining.is_running
        is_left_alone = is_joining or self.is_joined or self.is_refused or self.state.stays
        return storage is Storage.SLOW and not is_left_alone

    def stays(self) -> bool:
        """Return whether an epoch whose reads are slow is read in place to its end: it is short, and nothing is known of its files.

        Then a server would have to start, and be asked for each file what it is: that takes longer than to open the files. So it is once,
        of a loader's first epoch; what its samples open is noted, and the next one is fetched ahead. A program that makes another
        loader for each epoch has the server from the second one on, and one whose dataset was learned in an earlier run from the
        first one on, unless each is over before a server has started.
        """
        inner, num_workers = self.dataset.inner, self._num_workers
        kind = type(inner).__module__, type(inner).__qualname__, len(inner)
        may_stay = self._measures and self.dataset.seen is not None and self.config.autostart and not self._has_stayed
        if not may_stay or is_listening(self.config):
            return False
        waited_seconds, num_reads = self.state.waited()
        if not is_short(
            waited_seconds=waited_seconds,
            num_reads=num_reads,
            num_samples=len(inner),
            num_workers=num_workers,
            has_been=kind in _stayed or self.opening.was_learned(),
        ) or columns_of(inner, self.config):
            return False
        self._has_stayed = True
        _stayed.add(kind)
        self.state.stay()
        return True

    def guess(self, access: AccessMap) -> Guess | None:
        """Return what samples opened in place as a guess of what they open; None where nothing was seen, or all is known."""
        learned, seen = access.learned, self.dataset.seen
        if learned is None or seen is None or learned.num_known >= learned.num_samples:
            return None
        files = seen.files()
        return Guess([Column(0, learned.num_samples, lambda sample: files.get(sample, ()))]) if files else None

    def begin_joining(self, attachment: ref[Any], *, at_once: bool = False) -> None:
        """Let the loader join when storage is slow, or at once; after a quick epoch the loop alone looks, once per batch."""
        before = self.joining
        if self._stayed_quick and not at_once:
            return
        if self.is_refused or (before is not None and before.is_running and not before.is_waiting):
            return  # the node is being opened: it joins this epoch
        if before is not None:
            before.stop()
        self.joining = Joining(
            self.state, partial(_join, attachment, ref(self)), when_slow=self._measures and not at_once
        )

    def end(self) -> None:
        """The loader is let go; takes no lock."""
        if self.joining is not None:
            self.joining.stop()


class ReadTotals:
    """Counts of the reads of one loader, over all that stood in for its dataset so far."""

    def __init__(self) -> None:
        self._before = ReadCounts()  # of stand-ins that were replaced, and of epochs in place that are over
        self._reported = (
            0,
            0,
            0,
        )  # samples, files, bytes of this epoch; negative: those of earlier epochs that were not reported

    def now(self, shared: SharedState, place: Place | None) -> ReadCounts:
        """Return all reads: those through readers of the stand-in, and those of this epoch in place."""
        hits, others = shared.num_reads()
        direct = 0 if place is None else place.in_place()[1]
        before = self._before
        return ReadCounts(
            hits=before.hits + hits, misses=before.misses + others, direct_reads=before.direct_reads + direct
        )

    def keep(self, shared: SharedState, place: Place | None) -> None:
        """Keep the counts of a stand-in that is replaced."""
        self._before = self.now(shared, place)

    def epoch_begins(self, place: Place) -> None:
        """Keep the counts of the epoch before, because those of the place begin at zero."""
        samples, files, num_bytes = place.in_place()
        self._before = replace(self._before, direct_reads=self._before.direct_reads + files)
        reported = self._reported  # less than all of an epoch that the loop has left
        self._reported = reported[0] - samples, reported[1] - files, reported[2] - num_bytes

    def not_reported(self, reads: OriginReads) -> OriginReads:
        """Return the reads of this epoch without those that were returned before, because an iterator may continue in another epoch."""
        samples, files, num_bytes = self._reported
        self._reported = reads.samples, reads.files, reads.bytes
        return replace(
            reads,
            samples=reads.samples - samples,
            files=max(0, reads.files - files),
            bytes=max(0, reads.bytes - num_bytes),
        )


def measures(opening: Opening, config: Config) -> bool:
    """Return whether storage decides if a dataset is read in place: it opens its files by path."""
    return config.limits.read_in_place and not opening.is_of_prefeed


def _join(attachment: ref[Any], place: ref[Place], joining: Joining) -> None:
    """Join the server; refer to the loader weakly while that starts, because a program may not open its dataset's files twice."""
    attached, placed = attachment(), place()
    if attached is None or placed is None or (not attached.was_connected and placed.stays()):
        return
    began, config = time.monotonic(), placed.config
    node: NodeClient | Refusal | None = None
    if not attached.is_connected:
        del attached, placed
        try:
            node = NodeClient.connect(config)
        except Exception as err:  # noqa: BLE001 - reported by ``join``
            node = refusal_of(err)
        attached, placed = attachment(), place()
    if attached is not None and placed is not None:
        attached.join(placed, joining, node, began)
    elif isinstance(node, NodeClient):
        node.close()


def refusal_of(err: Exception) -> Refusal:
    """Return why a loader could not join the server."""
    if isinstance(err, PrefeedError | OSError):
        return Refusal(str(err), may_pass=not isinstance(err, FilesUnknownError | SampleSetError | ConfigError))
    _log.debug("prefeed: joining failed", exc_info=err)
    # The loop may have changed the dataset just while this looked at it.
    return Refusal(described(err), may_pass=True)
