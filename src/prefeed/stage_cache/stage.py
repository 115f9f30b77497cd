"""``Stage``: takes the fingerprint of a cached stage with each epoch, and computes the keys of its samples."""

from __future__ import annotations

import operator
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
from xxhash import xxh3_128_digest

from prefeed.errors import CannotFingerprintError
from prefeed.shown import describe
from prefeed.sources.filesystems import OWN
from prefeed.stage_cache.fingerprint import ABSENT, Part, Walk, fingerprint
from prefeed.stage_cache.parts import Snapshot, filled, label_of

_SHARE_OF_LOOKS: Final = 0.01
_MAX_CREDIT_SECONDS: Final = 1.0
"""A fingerprint is taken whenever an epoch begins, for at most this part of the time beyond the first second."""

_MAX_FALSE_ALARMS: Final = 16
"""Number of fingerprints that find no change after a part was set, from which on they are taken for a part of the time, too."""

_MAX_REQUESTED: Final = 1 << 16
"""Maximum number of indices that are remembered to recognise the next epoch."""

_MAX_FILLED: Final = 64
"""Maximum number of parts found at once that computing samples changes."""


class Stage:
    """Dataset whose samples are cached.

    The fingerprint is taken when a process begins, and when an epoch begins: a sample is requested again. It is also taken before samples
    are computed, if a part of the stage was set since, and for a hundredth of the time. Parts that computing samples changes, such as files
    that are opened late, do not count: the fingerprint is compared before and after.

    **Threads and processes.** Any thread. A forked child takes the fingerprint again, and so does an unpickled copy.

    Attributes:
        fingerprint: 16 bytes; others when samples are computed in another way.
        is_marked: A part of it is marked with ``not_random``.
        cost_seconds: How long the last fingerprint took.
    """

    def __init__(self, dataset: Any, version: str | None) -> None:
        """Take the fingerprint.

        Args:
            dataset: The dataset below the cache.
            version: Identifies the stage instead of its contents; see ``CachedDataset``.

        Raises:
            CannotFingerprintError: The dataset contains what cannot be pickled.
        """
        self._dataset = dataset
        self._version = version
        self._requested: set[Any] = set()
        self._credit_seconds = _MAX_CREDIT_SECONDS
        self._looked_at = self._earned_until = time.monotonic()
        self._num_false_alarms = 0
        self.cost_seconds: float = 0.0
        self.fingerprint: bytes = b""
        self.is_marked: bool = False
        self._walk: Walk | None = None
        self._snapshot: Snapshot | None = None
        self._filled_by_parent: dict[tuple[str, str, Part], Part] = {}
        try:
            self.look()
        except CannotFingerprintError as err:
            raise CannotFingerprintError(
                f"{err}. If computing a sample has set it, wrap the dataset before its samples are read", **err.details
            ) from err

    def look(self) -> None:
        """Take the fingerprint again; raises as the constructor."""
        self._process_id: int = os.getpid()
        began = time.monotonic()
        self._num_false_alarms += self.has_changed()
        try:
            found = self._take_fingerprint()
        finally:
            self._looked_at = time.monotonic()
            self.cost_seconds = self._looked_at - began
        if found != self.fingerprint:
            self.fingerprint, self.is_marked = found, _is_marked(self._dataset)
            self._num_false_alarms = 0

    def __getstate__(self) -> dict[str, Any]:
        # Other code may be imported in the process that unpickles it: the fingerprint is due there.
        return (
            self.__dict__
            | {"_process_id": 0, "_walk": None, "_snapshot": None, "_requested": set()}
            | {"_filled_by_parent": self._filled_here()}
        )

    def is_due(self, indices: Sequence[Any]) -> bool:
        """Return whether to take the fingerprint again before these samples are read."""
        is_again = self._are_requested_again(indices)
        if is_again:
            OWN.look_again()
        return os.getpid() != self._process_id or (is_again and (self._is_alarming() or self._may_look()))

    def is_doubtful(self) -> bool:
        """Return whether to take the fingerprint again before samples are computed, because they are stored under it."""
        return self._is_alarming() or time.monotonic() - self._looked_at >= self.cost_seconds / _SHARE_OF_LOOKS

    def has_changed(self) -> bool:
        """Return whether a named part was set since the last fingerprint and the last sample computed. Takes microseconds."""
        return self._snapshot is not None and (self._snapshot.has_changed() or filled.have_changed())

    def key(self, index: Any) -> bytes:
        """Return the 16 bytes that identify a sample.

        Raises:
            CannotFingerprintError: The index or the identity of the sample cannot be pickled.
        """
        sample = sample_of(self._dataset, index)
        if type(sample) is int:
            return xxh3_128_digest(self.fingerprint + b"%d" % sample)
        if type(sample) is tuple and _TEXTS.issuperset(map(type, sample)):
            return xxh3_128_digest(self.fingerprint + repr(sample).encode("utf-8", "backslashreplace"))
        return xxh3_128_digest(self.fingerprint + fingerprint(sample))

    @contextmanager
    def computing(self, *, leaves_out: bool = True) -> Iterator[None]:
        """Compute samples inside.

        Args:
            leaves_out: Parts of the stage that this changes do not count from then on. Take the fingerprint before, because a part that
                the user has changed in the meantime would not count either.
        """
        filled.begin_computing()
        try:
            yield
        finally:
            if leaves_out and self._walk is not None:
                self._leave_out_changed_parts(self._walk)
            filled.end_computing()
            if self._snapshot is not None:
                self._snapshot.take()

    def _take_fingerprint(self) -> bytes:
        if self._version is not None:
            return fingerprint(("version", self._version, describe(self._dataset)))
        filled.count_those_set()
        if self._filled_by_parent:
            self._fill_as_parent()
        walk = self._walk = Walk(filled=filled.digests)
        found = walk.fingerprint(stage_of(self._dataset), name=type(self._dataset).__qualname__)
        self._snapshot = Snapshot(walk, filled.digests, _attributes_of(self._dataset))
        return found

    def _filled_here(self) -> dict[tuple[str, str, Part], Part]:
        """Return the digests of parts from before computing by holder, name, and present digest: a spawned child finds them by these."""
        if self._walk is None or not filled.digests:
            return {}
        now = self._present()
        return {
            (label_of(now.holders[slot[0]]), slot[1], part): filled.digests[slot]
            for slot, part in now.slots.items()
            if slot in filled.digests
        }

    def _fill_as_parent(self) -> None:
        """Leave out the parts that computing has changed in the parent, if they came here as they were there."""
        now = self._present()
        for slot, part in now.slots.items():
            holder = now.holders[slot[0]]
            before = self._filled_by_parent.get((label_of(holder), slot[1], part))
            if before is not None and slot not in filled.digests:
                filled.add(slot, holder, before)
        self._filled_by_parent = {}

    def _present(self) -> Walk:
        """Walk through the stage as it is, with the parts that computing has changed."""
        walk = Walk(skips_unpicklable=True)
        with suppress(CannotFingerprintError):
            walk.fingerprint(stage_of(self._dataset))
        return walk

    def _leave_out_changed_parts(self, before: Walk) -> None:
        for _ in range(_MAX_FILLED):
            now = Walk(filled=filled.digests, skips_unpicklable=True)
            try:
                if now.fingerprint(stage_of(self._dataset)) == self.fingerprint:
                    return
            except CannotFingerprintError:  # reported when the next epoch begins
                return
            changed = (slot for slot, part in now.slots.items() if before.slots.get(slot, ABSENT) != part)
            slot = next((slot for slot in changed if slot[0] in before.holders), None)  # inner parts come first
            if slot is None:
                return
            filled.add(slot, now.holders[slot[0]], before.slots.get(slot, ABSENT))

    def _are_requested_again(self, indices: Sequence[Any]) -> bool:
        """Note samples that are requested, and return whether one of them was before in this epoch."""
        try:
            are_again = not self._requested.isdisjoint(indices)
            if are_again:
                self._requested.clear()
            if len(self._requested) < _MAX_REQUESTED:
                self._requested.update(indices)
        except TypeError:  # an index that is not hashable
            return False
        return are_again

    def _may_look(self) -> bool:
        """Return whether an epoch may begin here: samples that are drawn with replacement repeat within one."""
        now = time.monotonic()
        earned = (now - self._earned_until) * _SHARE_OF_LOOKS
        self._credit_seconds = min(self._credit_seconds + earned, max(_MAX_CREDIT_SECONDS, self.cost_seconds))
        self._earned_until = now
        if self._credit_seconds < self.cost_seconds:
            return False
        self._credit_seconds -= self.cost_seconds
        return True

    def _is_alarming(self) -> bool:
        return self.has_changed() and (self._num_false_alarms < _MAX_FALSE_ALARMS or self._may_look())


# ---------------------------------------------------------------- datasets that choose samples


def stage_of(dataset: Any) -> Any:
    """Return the value to identify a stage by: a dataset, without its choice of samples from another one."""
    kind = type(dataset)
    if _is_subset(kind):
        return stage_of(dataset.dataset)
    if _is_concat(kind):
        return "joined", [stage_of(part) for part in dataset.datasets]
    if _is_declared(kind):
        return kind.__qualname__, dataset.prefeed_stage()
    if _is_folder(kind):
        return kind, {name: value for name, value in vars(dataset).items() if name not in _OF_FOLDERS}
    return dataset, _working_directory()  # it may open files by relative paths


def _attributes_of(dataset: Any) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Yield the attributes that ``stage_of`` takes out of datasets, and their names."""
    kind = type(dataset)
    if _is_declared(kind) or _is_folder(kind):
        names = frozenset(name for name in vars(dataset) if not name.startswith("_")) - _OF_FOLDERS
        yield vars(dataset), names
    if _is_declared(kind) or _is_subset(kind):
        yield from _attributes_of(getattr(dataset, "dataset", None))
    elif _is_concat(kind):
        for part in dataset.datasets:
            yield from _attributes_of(part)


def sample_of(dataset: Any, index: Any) -> Any:
    """Return the identity of a sample in a stage: path and version of its object, path and label, or index."""
    kind = type(dataset)
    if _is_subset(kind):
        if type(index) is list:  # torch passes a list on to the dataset below
            return sample_of(dataset.dataset, [dataset.indices[at] for at in index])
        return sample_of(dataset.dataset, dataset.indices[index])
    if _is_concat(kind):
        return _sample_of_part(dataset, index)
    if _is_declared(kind):
        return dataset.prefeed_sample(index)
    if _is_folder(kind):
        path, *label = dataset.samples[index]
        return os.path.abspath(path), *label
    # Indices that are equal count as several, because a dataset may return the index: 2, np.int64(2), -1.
    if type(index) is int:
        return index
    return (type(index).__name__, int(index)) if isinstance(index, np.integer) else ["index", index]


def _sample_of_part(dataset: Any, index: int) -> Any:
    """Return the identity of a sample in a ``ConcatDataset``; a part that occurs twice has each sample once."""
    at = index + len(dataset) if operator.index(index) < 0 else index
    if not 0 <= at < len(dataset):
        raise IndexError(f"sample {index} is out of range: the dataset has {len(dataset)} samples")
    number = bisect_right(dataset.cumulative_sizes, at)
    part = dataset.datasets[number]
    first = next(number for number, other in enumerate(dataset.datasets) if other is part)
    sample = sample_of(part, at - (dataset.cumulative_sizes[number - 1] if number else 0))
    return (first, *sample) if type(sample) is tuple else (first, sample) if type(sample) is int else [first, sample]


_OF_FOLDERS: Final = frozenset({"root", "classes", "class_to_idx", "samples", "targets", "imgs"})
"""Attributes of torchvision's folders of which each sample has its own part."""

_TEXTS: Final = frozenset({str, bytes, int})


def _is_subset(kind: type) -> bool:
    return (kind.__module__, kind.__qualname__) == ("torch.utils.data.dataset", "Subset")


def _is_concat(kind: type) -> bool:
    return (kind.__module__, kind.__qualname__) == ("torch.utils.data.dataset", "ConcatDataset")


def _is_declared(kind: type) -> bool:
    """Return whether a dataset of prefeed declares its stage and samples. A class derived from one may do otherwise."""
    return kind.__module__.startswith("prefeed.") and hasattr(kind, "prefeed_sample")


def _is_folder(kind: type) -> bool:
    method = getattr(kind, "__getitem__", None)
    return getattr(method, "__module__", "") == "torchvision.datasets.folder" and hasattr(kind, "find_classes")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed
        return ""


def _is_marked(dataset: Any) -> bool:
    """Return whether a dataset, one below it, or a function that is mapped is marked with ``not_random``."""
    seen = set[int]()
    while dataset is not None and id(dataset) not in seen:
        seen.add(id(dataset))
        walk = Walk(skips_unpicklable=True)
        with suppress(CannotFingerprintError):
            walk.fingerprint((dataset, getattr(dataset, "fn", None)))
        if walk.is_marked:
            return True
        dataset = getattr(dataset, "__dict__", {}).get("dataset")
    return False
