"""Whether a pipeline is still what it was when its fingerprint was taken.

``Changes`` sees in a few microseconds per batch whether attributes were set, or what functions name (``Outside``).
``Looking`` takes the whole fingerprint again, when a pass begins and now and then.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
import time
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import is_
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from prefeed.errors import CannotFingerprintError, PrefeedError
from prefeed.sources.filesystems import OWN
from prefeed.stage_cache.fingerprint import fingerprint
from prefeed.stage_cache.identity.installed import is_installed, is_installed_name
from prefeed.stage_cache.library_state import library_state
from prefeed.stage_cache.lineage import Lineage, derived, lineage_of, working_directory
from prefeed.stage_cache.slots import Slots, noting

_MAX_NAMES: Final = 64
_MISSING: Final = object()


class Outside:
    """Globals of modules, and variables around functions, that the user's functions name, those of their functions included.

    In a notebook these are set again between two epochs; a module's stay as they are.

    **Threads and processes.** Any thread.
    """

    def __init__(self, functions: Iterable[FunctionType]) -> None:
        self._globals: list[tuple[dict[str, Any], str]] = []
        self._cells: list[CellType] = []
        waiting, seen = list(functions), set[FunctionType]()
        while waiting and len(self._globals) + len(self._cells) < _MAX_NAMES:
            function = waiting.pop(0)
            if function in seen or is_installed(function.__module__ or "", function.__code__.co_filename):
                continue
            seen.add(function)
            cells, names = function.__closure__ or (), _names(function)
            self._cells += cells
            self._globals += [(function.__globals__, name) for name in names]
            values = [*_contents(cells), *(function.__globals__[name] for name in names)]
            waiting += [called for value in values for called in functions_in(value)]

    def values(self) -> list[Any]:
        """Return what they refer to now, in one order."""
        return [*(names.get(name, _MISSING) for names, name in self._globals), *_contents(self._cells)]

    def leave_out(self, positions: Collection[int]) -> None:
        """Look at these no more."""
        count = len(self._globals)
        self._globals = [item for at, item in enumerate(self._globals) if at not in positions]
        self._cells = [cell for at, cell in enumerate(self._cells, count) if at not in positions]


def functions_in(value: Any) -> list[FunctionType]:
    """Return the functions that calling a value runs, as far as that is seen without looking into objects."""
    if isinstance(value, functools.partial):
        return functions_in(value.func)
    if isinstance(value, MethodType):
        return functions_in(value.__func__)
    return [value] if isinstance(value, FunctionType) else []


def methods_of(cls: type) -> list[FunctionType]:
    """Return the functions that a class and those above it define in code of the user's."""
    owners = (owner for owner in cls.__mro__ if not is_installed_name(owner.__module__))
    return [value for owner in owners for value in vars(owner).values() if isinstance(value, FunctionType)]


def _names(function: FunctionType) -> list[str]:
    """Return the names of globals that a function and those inside it mention, but for modules."""
    there = function.__globals__
    mentioned = dict.fromkeys(_mentioned(function.__code__))
    return [name for name in mentioned if name in there and not isinstance(there[name], ModuleType)]


def _mentioned(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _mentioned(constant)


def _contents(cells: Iterable[CellType]) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # nothing yet
            yield _MISSING


_MAX_ATTRIBUTES: Final = 48
"""Attributes that are looked at, those of the datasets first: 25 ns each, on 2 cores in November 2026."""

_MAX_ITEMS: Final = 16
"""Of a list of steps or datasets."""

_PLAIN: Final = frozenset({bool, int, float, str, bytes, types.NoneType})
_CODE: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)

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

    **Threads and processes.** Any thread. After a fork it continues; it cannot be pickled.
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
        """Count changes from now on."""
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


_LOOKS_AT_ONCE: Final = 16.0
_SHARE_OF_LOOKS: Final = 0.01
"""A dataset is looked at again whenever a pass begins, but this many times at most beyond this part of the time."""

_SHARE_OF_LATER_LOOKS: Final = 0.005
_LEAST_PAUSE_SECONDS: Final = 0.1
"""In between it is looked at as often as this part of the time allows: a pass may begin without a sign."""

_MOST_ASKED: Final = 1 << 16
"""Indices that are remembered, in order to know a new pass by them."""

_MAX_LAYERS: Final = 3
"""So often it is looked for what makings fill: one such thing may hide another."""


class Looking:
    """Looks at a dataset, and knows when to look again: in another process, and when a pass over the samples begins.

    It is cheap enough for every process and every pass.

    **Threads and processes.** Any thread; not to be pickled, since what was seen is of one process.

    Attributes:
        said: What was said last of a dataset that cannot be told.
        cost_seconds: How long the last look took that was due.
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
        self.cost_seconds: float = 0.0
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
            self._allowed += waited * _SHARE_OF_LOOKS / max(self.cost_seconds, 1e-4)
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
            self.cost_seconds = now - began
            waited = (began - self._looked_at) * _SHARE_OF_LOOKS / max(self.cost_seconds, 1e-4)
            self._allowed = min(self._allowed + waited, _LOOKS_AT_ONCE) - 1.0
            self._looked_at = now
            self._due_at = now + max(_LEAST_PAUSE_SECONDS, self.cost_seconds / _SHARE_OF_LATER_LOOKS)

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
            except PrefeedError:  # it cannot be told as it is: it is found when it is looked at again
                return
            filled = {} if before is None else slots.filled_since(before)
            if found.fingerprint == known.fingerprint or not filled:
                return
            slots.leave_out(filled)
