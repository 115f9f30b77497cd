"""``Stage``: takes the fingerprint of a cached stage with each epoch, and computes the keys of its samples."""

from __future__ import annotations

import operator
import os
import time
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from xxhash import xxh3_128_digest

from prefeed.errors import CannotFingerprintError
from prefeed.shown import describe
from prefeed.sources.filesystems import OWN
from prefeed.stage_cache.fingerprint import ABSENT, Part, Slot, Walk, fingerprint

_LOOKS_AT_ONCE: Final = 16.0
_SHARE_OF_LOOKS: Final = 0.01
"""A fingerprint is taken whenever an epoch begins, at most this often beyond this part of the time."""

_MAX_REQUESTED: Final = 1 << 16
"""Maximum number of indices that are remembered to recognise the next epoch."""

_MAX_FILLED: Final = 64
"""Maximum number of parts found at once that computing samples changes."""

_filled: dict[Slot, Part] = {}
"""Parts of stages that computing samples changes in this process, such as counters and open files, as they were before."""

_holders: list[Any] = []
"""Holders of such parts without weak references: an id is another object's once its own is gone."""


class Stage:
    """Dataset whose samples are cached.

    The fingerprint is taken when a process begins, and when an epoch begins: a sample is requested again. Parts that computing samples
    changes, such as files that are opened late, do not count: the fingerprint is compared before and after.

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
        self._allowed = _LOOKS_AT_ONCE
        self._earned_until = time.monotonic()
        self.cost_seconds: float = 0.0
        self.fingerprint: bytes = b""
        self.is_marked: bool = False
        self._walk: Walk | None = None
        self.look()

    def look(self) -> None:
        """Take the fingerprint again; raises as the constructor."""
        self._process_id: int = os.getpid()
        began = time.monotonic()
        try:
            found = self._take_fingerprint()
        finally:
            self.cost_seconds = time.monotonic() - began
        if found != self.fingerprint:
            self.fingerprint, self.is_marked = found, _is_marked(self._dataset)

    def __getstate__(self) -> dict[str, Any]:
        # Other code may be imported in the process that unpickles it: the fingerprint is due there.
        return self.__dict__ | {"_process_id": 0, "_walk": None, "_requested": set()}

    def is_due(self, indices: Sequence[Any]) -> bool:
        """Return whether to take the fingerprint again before these samples are read."""
        is_again = self._are_requested_again(indices)
        if is_again:
            OWN.look_again()
        return os.getpid() != self._process_id or (is_again and self._may_look())

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
    def computing(self) -> Iterator[None]:
        """Compute samples inside; parts of the stage that this changes do not count from then on.

        Take the fingerprint before, because a part that the user has changed meanwhile would not count either.
        """
        try:
            yield
        finally:
            if self._walk is not None:
                self._leave_out_changed_parts(self._walk)

    def _take_fingerprint(self) -> bytes:
        if self._version is not None:
            return fingerprint(("version", self._version, describe(self._dataset)))
        self._walk = Walk(filled=_filled)
        return self._walk.fingerprint(stage_of(self._dataset), name=type(self._dataset).__qualname__)

    def _leave_out_changed_parts(self, before: Walk) -> None:
        for _ in range(_MAX_FILLED):
            now = Walk(filled=_filled, skips_unpicklable=True)
            try:
                if now.fingerprint(stage_of(self._dataset)) == self.fingerprint:
                    return
            except CannotFingerprintError:  # reported when the next epoch begins
                return
            changed = (slot for slot, part in now.slots.items() if before.slots.get(slot, ABSENT) != part)
            slot = next((slot for slot in changed if slot[0] in before.holders), None)  # inner parts come first
            if slot is None:
                return
            _filled[slot] = before.slots.get(slot, ABSENT)
            try:
                weakref.finalize(now.holders[slot[0]], _filled.pop, slot, None).atexit = False
            except TypeError:
                _holders.append(now.holders[slot[0]])

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
        earned = (now - self._earned_until) * _SHARE_OF_LOOKS / max(self.cost_seconds, 1e-4)
        self._allowed, self._earned_until = min(self._allowed + earned, _LOOKS_AT_ONCE), now
        if self._allowed < 1.0:
            return False
        self._allowed -= 1.0
        return True


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


def sample_of(dataset: Any, index: Any) -> Any:
    """Return the identity of a sample in a stage: path and version of its object, path and label, or index."""
    kind = type(dataset)
    if _is_subset(kind):
        return sample_of(dataset.dataset, dataset.indices[index])
    if _is_concat(kind):
        return _sample_of_part(dataset, index)
    if _is_declared(kind):
        return dataset.prefeed_sample(index)
    if _is_folder(kind):
        path, *label = dataset.samples[index]
        return os.path.abspath(path), *label
    try:
        at = operator.index(index)
    except TypeError:  # a dataset that is read by name
        return ["index", index]
    return at + len(dataset) if at < 0 else at


def _sample_of_part(dataset: Any, index: int) -> Any:
    """Return the identity of a sample in a ``ConcatDataset``; a part that occurs twice has each sample once."""
    at = operator.index(index)
    at += len(dataset) if at < 0 else 0
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
