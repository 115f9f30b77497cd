"""Whether anything of a pipeline was set anew since its fingerprint was taken: looked at in a few microseconds a batch."""

from __future__ import annotations

import dataclasses
import os
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import is_
from types import FunctionType
from typing import Any, Final

from prefeed.errors import CannotFingerprintError
from prefeed.stage.fingerprint import fingerprint
from prefeed.stage.lineage import working_directory
from prefeed.stage.outside import Outside, functions_in, methods_of

_MAX_ATTRIBUTES: Final = 48
"""Attributes that are looked at, those of the datasets first: 25 ns each, on 2 cores in November 2026."""

_MAX_ITEMS: Final = 16
"""Of a list of steps or datasets."""

_PLAIN: Final = frozenset({bool, int, float, str, bytes, types.NoneType})
_CODE: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MISSING: Final = object()

_changing: set[tuple[type, str]] = set()
"""Attributes that changed while a sample was being made, in this process: counters, handles that are opened late."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was set at one time.

    Attributes:
        directory: The working directory.
        states: Attributes of each object.
        values: Of all these, in order.
        outside: What functions name besides; see ``Outside``.
    """

    directory: str
    states: list[dict[str, Any]]
    values: list[Any]
    outside: list[Any]


class Changes:
    """Watches the attributes of a dataset, of the datasets below it and of their steps, and what their functions name.

    Which objects attributes are is what is compared, and of numbers and texts the values: what changes inside a list or an
    array is not seen. Attributes that change while a sample is being made are left out from then on, for all instances of
    that class.

    **Threads and processes.** Any thread. After a fork it goes on; it cannot be pickled.
    """

    def __init__(self, dataset: Any, passed_through: type[Any]) -> None:
        """Note what is set now.

        Args:
            dataset: The topmost.
            passed_through: Of datasets of this class nothing is looked at but their ``dataset``.
        """
        self._owners = _chain(dataset, passed_through)
        self._states = [owner.__dict__ for owner in self._owners]
        self._outside = Outside(_functions(self._owners))
        # Thread -> process. No lock: another thread could hold it while this one forks.
        self._making: dict[int, int] = {}
        self._noted = self.now()

    def is_any(self) -> bool:
        """Return whether there may be a change: cheap, and seldom wrong. Never while a sample is being made."""
        if self.is_making:
            return False
        noted = self._noted
        return not self._are_the_objects(noted) or working_directory() != noted.directory

    @property
    def is_making(self) -> bool:
        """Whether a sample is being made in this process."""
        return bool(self._making) and os.getpid() in self._making.values()

    def _are_the_objects(self, noted: Snapshot) -> bool:
        try:
            are_same = all(map(is_, chain.from_iterable(map(dict.values, self._states)), noted.values)) and all(
                map(is_, self._outside.values(), noted.outside)
            )
        except RuntimeError:  # another thread sets one this moment
            return False
        return are_same and sum(map(len, self._states)) == len(noted.values)

    def now(self) -> Snapshot:
        """Return what is set now."""
        states = [dict(state) for state in self._states]
        values = [*chain.from_iterable(map(dict.values, states))]
        return Snapshot(working_directory(), states, values, self._outside.values())

    def are_in(self, snapshot: Snapshot) -> bool:
        """Return whether anything that counts has changed since what was noted last."""
        if snapshot.directory != self._noted.directory or self._changed_outside(snapshot):
            return True
        changed = [found for found in self._changed(snapshot) if (type(found[0]), found[1]) not in _changing]
        return any(not _is_opened(old, new) for *_, old, new in changed)

    def note(self, snapshot: Snapshot) -> None:
        """From now on, what has changed since this counts."""
        self._noted = snapshot

    @contextmanager
    def making(self) -> Iterator[None]:
        """Inside it a sample is made: what changes meanwhile does not count."""
        thread = threading.get_ident()
        self._making[thread] = os.getpid()
        try:
            yield
        finally:
            if not self._are_the_objects(self._noted):
                self._leave_out_what_changed()
            self._making.pop(thread, None)

    def _leave_out_what_changed(self) -> None:
        snapshot = self.now()
        changed = {(type(owner), name) for owner, name, *_ in self._changed(snapshot)}
        outside = self._changed_outside(snapshot)
        if changed or outside:
            _changing.update(changed)
            self._outside.leave_out(outside)
            self._noted = dataclasses.replace(snapshot, directory=self._noted.directory, outside=self._outside.values())

    def _changed_outside(self, snapshot: Snapshot) -> set[int]:
        """Return at which positions something else is named."""
        both = zip(self._noted.outside, snapshot.outside, strict=False)  # another thread may leave some out
        return {at for at, (old, new) in enumerate(both) if not _is_same(old, new)}

    def _changed(self, snapshot: Snapshot) -> Iterator[tuple[Any, str, Any, Any]]:
        """Yield whose attribute is another, its name, what it was and what it is."""
        for owner, was, now in zip(self._owners, self._noted.states, snapshot.states, strict=True):
            for name in {**was, **now}:
                old, new = was.get(name, _MISSING), now.get(name, _MISSING)
                if not _is_same(old, new):
                    yield owner, name, old, new


def _is_same(old: Any, new: Any) -> bool:
    return old is new or (type(old) is type(new) and type(old) in _PLAIN and bool(old == new))


def _is_opened(old: Any, new: Any) -> bool:
    """Return whether a handle was opened late: something that cannot be told is where nothing was."""
    if old is not None and old is not _MISSING:
        return False
    try:
        fingerprint(new)
    except CannotFingerprintError:
        return True
    return False


def _chain(dataset: Any, passed_through: type[Any]) -> list[Any]:
    """Return the datasets and steps whose attributes are looked at, the nearest first."""
    found: list[Any] = []
    waiting, seen, room = [dataset], set[int](), _MAX_ATTRIBUTES
    while waiting:
        value = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, passed_through):
            waiting.append(value.dataset)
            continue
        state = getattr(value, "__dict__", None)
        if type(state) is not dict:  # a list, say
            continue
        room -= len(state)
        if room < 0:
            break
        found.append(value)
        waiting += [part for item in state.values() for part in _items(item) if _is_link(part)]
    return found


def _functions(owners: list[Any]) -> Iterator[FunctionType]:
    """Yield the functions that make samples: those that owners hold, and the methods of their classes."""
    for owner in owners:
        yield from methods_of(type(owner))
        for value in owner.__dict__.values():
            for item in _items(value):
                yield from functions_in(item)


def _items(value: Any) -> list[Any]:
    if type(value) in (list, tuple):
        return list(value[:_MAX_ITEMS])
    return list(value.values())[:_MAX_ITEMS] if type(value) is dict else [value]


def _is_link(value: Any) -> bool:
    """Return whether a value is a dataset or a step that may have attributes of its own."""
    cls = type(value)
    if isinstance(value, _CODE) or type(getattr(value, "__dict__", None)) is not dict:
        return False
    return hasattr(cls, "__call__") or (hasattr(cls, "__getitem__") and hasattr(cls, "__len__"))  # noqa: B004
