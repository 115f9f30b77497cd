"""When a dataset is looked at anew, and what of it does not count: cheap enough for every process and every pass."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from prefeed.errors import PrefeedError
from prefeed.sources.filesystems import OWN
from prefeed.stage.fingerprint import fingerprint
from prefeed.stage.library_state import library_state
from prefeed.stage.lineage import Lineage, derived, lineage_of
from prefeed.stage.slots import Slots, noting

_LOOKS_AT_ONCE: Final = 16.0
_SHARE_OF_LOOKS: Final = 0.01
"""A dataset is looked at anew whenever a pass begins, but for more than this part of the time only so many times."""

_SHARE_OF_LATER_LOOKS: Final = 0.005
_LEAST_PAUSE_SECONDS: Final = 0.1
"""In between it is looked at as often as this part of the time allows: a pass may begin without a sign."""

_MOST_ASKED: Final = 1 << 16
"""Indices that are remembered, in order to know a new pass by them."""

_MAX_LAYERS: Final = 3
"""So often it is looked for what makings fill: one such thing may hide another."""


class Looking:
    """Looks at a dataset, and knows when to look again: in another process, and when a pass over the samples begins.

    **Threads and processes.** Any thread; not to be pickled, since what was seen is of one process.

    Attributes:
        said: What was said last of a dataset that cannot be told.
    """

    def __init__(self, dataset: Any, version: str | None, *, is_new: bool = False) -> None:
        """Note what to look at.

        Args:
            dataset: The topmost below the cache.
            version: Stands for its code; see ``lineage_of``.
            is_new: It came from another process, and is to be looked at in this one.
        """
        self.said = ""
        self._dataset = dataset
        self._version = version
        self._slots: Slots | None = None
        self._process_id = 0 if is_new else os.getpid()
        self._asked: set[Any] = set()
        self._allowed = _LOOKS_AT_ONCE
        self._looked_at = time.monotonic()
        self._cost_seconds = 0.0
        self._due_at = time.monotonic() + _LEAST_PAUSE_SECONDS

    def is_due(self, indices: Sequence[Any]) -> bool:
        """Return whether to look: in another process, or in another pass."""
        is_another_pass = self._are_asked_again(indices)
        if is_another_pass:
            OWN.look_again()
        if os.getpid() != self._process_id:
            return True
        return self._may_look() if is_another_pass else time.monotonic() >= self._due_at

    def _are_asked_again(self, indices: Sequence[Any]) -> bool:
        """Note which samples are asked for, and return whether one of them was before in this pass."""
        asked = self._asked
        try:
            are_again = not asked.isdisjoint(indices)
            if are_again:
                asked.clear()
            if len(asked) < _MOST_ASKED:
                asked.update(indices)
        except TypeError:  # asked by something that is not hashable
            return False
        return are_again

    def _may_look(self) -> bool:
        """Return whether looking is worth its while: samples may also be drawn again and again in one pass."""
        if self._allowed < 1.0:
            waited = time.monotonic() - self._looked_at
            self._allowed += waited * _SHARE_OF_LOOKS / max(self._cost_seconds, 1e-4)
            self._looked_at += waited
        return self._allowed >= 1.0

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Inside it, everything is looked at."""
        self._process_id = os.getpid()
        began = time.monotonic()
        try:
            yield
        finally:
            now = time.monotonic()
            self._cost_seconds = now - began
            waited = (began - self._looked_at) * _SHARE_OF_LOOKS / max(self._cost_seconds, 1e-4)
            self._allowed = min(self._allowed + waited, _LOOKS_AT_ONCE) - 1.0
            self._looked_at = now
            self._due_at = now + max(_LEAST_PAUSE_SECONDS, self._cost_seconds / _SHARE_OF_LATER_LOOKS)

    def lineage(self) -> Lineage:
        """Return where samples come from, as everything is now; what their making fills counts as it was before.

        Raises:
            CannotFingerprintError: That cannot be told.
        """
        found, self._slots = self._look(Slots())
        return found

    def _look(self, slots: Slots) -> tuple[Lineage, Slots]:
        with noting(slots):
            found = lineage_of(self._dataset, self._version)
        state = library_state()
        return (derived(found, fingerprint(state)) if state else found), slots

    def leave_out_what_was_filled(self, known: Lineage) -> None:
        """Samples were made: what is other than before was filled by that, and does not count.

        Args:
            known: What was found before.
        """
        before = self._slots
        for _ in range(_MAX_LAYERS):
            try:
                found, slots = self._look(Slots(passes_over=True))
            except PrefeedError:  # as it is, nobody can tell it: it is found when it is looked at again
                return
            filled = {} if before is None else slots.filled_since(before)
            if found.fingerprint == known.fingerprint or not filled:
                return
            slots.leave_out(filled)
