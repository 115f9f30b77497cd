"""Watches the named parts of stages between two fingerprints.

A fingerprint takes 0.3 to 80 ms. Comparing the values of its named parts by identity takes microseconds, so that this is done before samples
are computed: an attribute that was set since the last fingerprint is noticed before a sample is stored under the wrong key. Values that are
changed in place are noticed in small containers only. Parts that computing samples changes are kept in ``FilledParts``.
"""

from __future__ import annotations

import operator
import os
import threading
import types
import weakref
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.contents import name_of
from prefeed.stage_cache.fingerprint import Part, Slot, Walk, fingerprint

_MAX_PARTS: Final = 256
"""Number of parts that are compared: a dataset may consist of a hundred thousand objects."""

_MAX_VALUES: Final = 1024
_MAX_ITEMS: Final = 64
_MAX_DEPTH: Final = 2
"""Number of values in all, and size and depth of a container, up to which the items of a container are compared."""

Namespace = Mapping[str, Any]


class Snapshot:
    """Values of the named parts of a stage, except those that computing samples changes.

    **Threads and processes.** Any thread.
    """

    def __init__(self, walk: Walk, filled: Iterable[Slot], others: Iterable[tuple[Namespace, frozenset[str]]]) -> None:
        """Take the values of the parts that a walk has found, and of other names."""
        names: dict[int, set[str]] = {}
        for holder, name in islice(reversed(walk.slots), _MAX_PARTS):  # outer ones come last
            names.setdefault(holder, set()).add(name)
        left_out: dict[int, set[str]] = {}
        for holder, name in filled:
            left_out.setdefault(holder, set()).add(name)
        self._places: list[tuple[Namespace, frozenset[str] | None, frozenset[str]]] = [
            (namespace, known, frozenset()) for namespace, known in others
        ]
        for key, found in names.items():
            holder, out = walk.holders[key], frozenset(left_out.get(key, ()))
            namespace = namespace_of(holder)
            if namespace is not None:  # of an object all names, because one may be added
                self._places.append((namespace, frozenset(found - out) if type(holder) is dict else None, out))
        self._values: list[Any] = []
        self.take()

    def take(self) -> None:
        """Take the values again."""
        self._values = self._present()

    def has_changed(self) -> bool:
        """Return whether a part has another value than when the values were taken."""
        return not _are_same(self._values, self._present())

    def _present(self) -> list[Any]:
        found: list[Any] = []
        for namespace, names, left_out in self._places:
            for name in list(namespace) if names is None else names:
                if name not in left_out:
                    found.append(name)
                    _flatten(namespace.get(name), found)
        return found


class FilledParts:
    """Parts of all stages that computing samples changes in this process, such as counters and files opened late.

    In place of such a part, the fingerprint has the digest from before. If the part has another value than computing left, the user has
    set it, and it counts again.

    **Threads and processes.** Any thread. A forked child continues with the same parts.

    Attributes:
        digests: Digest of each part from before.
    """

    def __init__(self) -> None:
        self.digests: dict[Slot, Part] = {}
        self._left: dict[Slot, tuple[Namespace, list[Any]]] = {}
        self._holders: list[Any] = []  # those without weak references: an id is another object's once its own is gone
        self._start()

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._num_computing = 0

    def add(self, slot: Slot, holder: Any, before: Part) -> None:
        """Leave out a part; its present value is the one that computing left."""
        with self._lock:
            self.digests[slot] = before
            namespace = namespace_of(holder)
            if namespace is not None:
                self._left[slot] = namespace, _value(namespace, slot[1])
            try:
                weakref.finalize(holder, self._forget, slot).atexit = False
            except TypeError:
                self._holders.append(holder)

    def begin_computing(self) -> None:
        """Let samples be computed from here on, in this thread."""
        with self._lock:
            self._num_computing += 1

    def end_computing(self) -> None:
        """Take the values that computing has left."""
        with self._lock:
            self._num_computing -= 1
            for slot in list(self._left):
                self._take(slot)

    def have_changed(self) -> bool:
        """Return whether a part was set while no sample was computed."""
        with self._lock:
            return self._num_computing == 0 and any(map(self._is_set, list(self._left)))

    def count_those_set(self) -> None:
        """Let parts count again that were set while no sample was computed. One that cannot be pickled stays left out."""
        with self._lock:
            for slot, (namespace, _) in list(self._left.items()):
                if self._num_computing > 0 or not self._is_set(slot):
                    continue
                try:
                    fingerprint(namespace.get(slot[1]))
                except CannotFingerprintError:
                    self._take(slot)
                else:
                    self._forget(slot)

    def _take(self, slot: Slot) -> None:
        left = self._left.get(slot)
        if left is not None:  # its holder may be gone
            self._left[slot] = left[0], _value(left[0], slot[1])

    def _is_set(self, slot: Slot) -> bool:
        left = self._left.get(slot)
        return left is not None and not _are_same(left[1], _value(left[0], slot[1]))

    def _forget(self, slot: Slot) -> None:
        self.digests.pop(slot, None)
        self._left.pop(slot, None)


filled: Final = FilledParts()
"""Those of this process."""

os.register_at_fork(after_in_child=filled._start)


def namespace_of(holder: Any) -> Namespace | None:
    """Return the named values of a holder of parts; None for a function, whose parts are not attributes."""
    if type(holder) is dict:
        return holder
    return None if isinstance(holder, types.FunctionType) else getattr(holder, "__dict__", None)


def label_of(holder: Any) -> str:
    """Return the name of a holder of parts, the same in every process: that of its module or class."""
    if type(holder) is dict:
        return f"globals of {name_of(holder)}"
    return f"class {holder.__qualname__}" if isinstance(holder, type) else type(holder).__qualname__


def _value(namespace: Namespace, name: str) -> list[Any]:
    found: list[Any] = [name in namespace]
    _flatten(namespace.get(name), found)
    return found


def _flatten(value: Any, found: list[Any], depth: int = 0) -> None:
    """Append a value and, if it is a small container, its items."""
    found.append(value)
    kind = type(value)
    if kind in _CONTAINERS and depth <= _MAX_DEPTH and len(value) <= _MAX_ITEMS and len(found) <= _MAX_VALUES:
        if kind is dict:
            found.extend(value)
        for item in list(value.values() if kind is dict else value):
            _flatten(item, found, depth + 1)


_CONTAINERS: Final = frozenset({dict, list, tuple})


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))
