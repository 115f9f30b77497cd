"""What the functions of a pipeline name besides their arguments: globals of their modules, and variables around them.

In a notebook these are set anew between two epochs; a module's stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from prefeed.stage.identity.installed import is_installed, is_installed_name

_MAX_NAMES: Final = 64
_MISSING: Final = object()


class Outside:
    """Variables that functions of the user's refer to, those of their functions included.

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
