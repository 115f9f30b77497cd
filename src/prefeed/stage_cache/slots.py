"""Where what a stage is made of is kept: attributes, globals, variables around functions, each with a digest.

A making may fill some of them: a counter, a file's content that is read late, a dict of results. These do not tell another
stage. Which ones they are is seen by looking before and after a making: their digests of before stand for them from then on.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, Final

Slot = tuple[int, str]
"""The id of a holder and the name of what it holds."""

_PASSED: Final = (tuple, list, dict, set, frozenset, str, bytes, MappingProxyType)
"""Containers: what changes inside them counts as a change of their holder."""


_left: Final[dict[Slot, bytes]] = {}
_kept: Final[list[Any]] = []  # an id is another object's as soon as its own is gone


class Slots:
    """What was found by looking at a stage once.

    Attributes:
        left: Slots that makings fill, with the digests that stand for them.
        found: Digest of each other slot.
    """

    def __init__(self, *, passes_over: bool = False) -> None:
        """Begin.

        Args:
            passes_over: Things that cannot be told, such as a lock, have a digest for once.
        """
        self.left = _left
        self.passes_over = passes_over
        self.found: dict[Slot, bytes] = {}
        self._around: dict[Slot, Slot | None] = {}
        self._again: set[Slot] = set()
        self._held: dict[int, Any] = {}  # an id is another object's as soon as its own is gone
        self._inside: Slot | None = None

    @staticmethod
    def is_holder(value: Any) -> bool:
        """Return whether a value holds others by name."""
        return isinstance(value, FunctionType | type | ModuleType) or (
            not isinstance(value, _PASSED) and hasattr(value, "__dict__")
        )

    def hold(self, value: Any) -> None:
        """Note a holder."""
        self._held[id(value)] = value

    def enter(self, slot: Slot, *, is_known: bool) -> None:
        """From now until ``leave``, what a slot holds is looked at.

        Args:
            slot: That one.
            is_known: It was looked at before, as what another slot holds.
        """
        self._around[slot], self._inside = self._inside, slot
        if is_known:
            self._again.add(slot)

    def leave(self, slot: Slot) -> None:
        """It was looked at."""
        self._inside = self._around[slot]

    def filled_since(self, before: Slots) -> dict[Slot, bytes]:
        """Return the innermost slots that hold something else than before, with the digests of before.

        A slot that was not there has none, and counts as if it were not there now.
        """
        changed = {
            slot
            for slot, digest in self.found.items()
            if slot not in self._again and slot[0] in before._held and before.found.get(slot) != digest
        }
        around: set[Slot] = set()
        for slot in changed:
            above = self._around[slot]
            while above is not None and above not in around:
                around.add(above)
                above = self._around[above]
        return {slot: before.found.get(slot, b"") for slot in changed - around}

    def leave_out(self, filled: dict[Slot, bytes]) -> None:
        """From now on, in this process, these digests stand for slots that makings fill."""
        for slot, digest in filled.items():
            holder = self._held[slot[0]]
            try:
                weakref.finalize(holder, _left.pop, slot, None).atexit = False
            except TypeError:
                _kept.append(holder)
            _left[slot] = digest


class _Looking(threading.local):
    slots: Slots | None = None


_looking = _Looking()


def noted_in() -> Slots | None:
    """Return what notes the slots of a look that begins now, in this thread."""
    return _looking.slots


@contextmanager
def noting(slots: Slots | None) -> Iterator[None]:
    """Inside it, fingerprints note slots, in this thread."""
    before, _looking.slots = _looking.slots, slots
    try:
        yield
    finally:
        _looking.slots = before
