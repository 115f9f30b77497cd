"""Looks at the code of a sampler, for what a copy of the sampler would use outside of itself."""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import random
import sys
import types
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

__all__ = ["ATOMS", "MODULES", "CannotForecastError", "Reach", "is_of_global_generator", "own_classes"]

ATOMS: Final = (
    *(types.NoneType, bool, int, float, complex, str, bytes, range, slice, types.EllipsisType, types.NotImplementedType),
    *(torch.dtype, torch.device, torch.Size, np.dtype, np.generic, enum.Enum),
)  # fmt: skip

MODULES: Final = frozenset(
    {
        *(
            "builtins",
            "typing",
            "collections",
            "collections.abc",
            "abc",
            "dataclasses",
            "enum",
            "functools",
            "itertools",
        ),
        *("operator", "math", "cmath", "statistics", "bisect", "heapq", "random", "numpy", "numpy.random"),
        *("torch", "torch.utils", "torch.utils.data", "torch.utils.data.sampler", "torch.utils.data.distributed"),
    }
)
"""Modules whose functions change nothing but their arguments and the global generators, unless ``_EFFECTS`` names them."""

_EFFECTS: Final = frozenset(
    {
        *("print", "open", "input", "exec", "eval", "compile", "breakpoint", "__import__", "exit", "quit"),
        *("globals", "locals", "vars", "setattr", "delattr", "__dict__", "__globals__"),
        *("distributed", "save", "savez", "load", "loadtxt", "savetxt", "genfromtxt", "fromfile", "tofile", "memmap"),
        *("dump", "open_memmap", "from_file"),
    }
)
"""Names of functions and attributes that reach outside of a copy."""

_STORES: Final = frozenset({"STORE_ATTR", "DELETE_ATTR"})

_NOT_BY_SYNTAX: Final = frozenset(
    {
        *("__init__", "__new__", "__repr__", "__str__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__"),
        *("__copy__", "__deepcopy__", "__init_subclass__", "__class_getitem__", "__getnewargs__"),
    }
)
"""Special methods that no statement calls while a sampler is drawn from."""

_COMPARISONS: Final = frozenset({"__eq__", "__lt__", "__le__", "__gt__", "__ge__"})
"""Methods that look at classes to compare them, as those of dataclasses do."""


class CannotForecastError(Exception):
    """A sampler cannot be drawn from ahead of torch; the message says why."""


def is_of_global_generator(value: Any) -> bool:
    """Return True for functions such as ``random.random`` and ``numpy.random.rand``."""
    if not issubclass(type(value), types.BuiltinFunctionType | types.MethodType):
        return False
    numpys = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return value.__self__ is not None and (value.__self__ is vars(random)["_inst"] or value.__self__ is numpys)


def own_classes(kind: type) -> list[type]:
    """Return a class and its bases, without those of ``MODULES``."""
    return [base for base in kind.__mro__ if base.__module__ not in MODULES]


class Reach:
    """Looks at the code that may run while a copy is drawn from, for what it uses outside of the copy.

    A method is looked at if its name occurs in code that was looked at: which object it is called on is not known. Code of
    ``MODULES`` is not looked at.
    """

    def __init__(self, classes: set[type], functions: list[types.FunctionType], own: set[str]) -> None:
        self._classes = set[type]()
        self._names = set[str]()
        self._own = set(own)  # names of attributes of objects in the copy
        self._stored = set[str]()
        self._seen = set[types.CodeType]()
        self._found: list[tuple[Mapping[str, Any], str, Any]] = []
        self._functions = deque(functions)
        for cls in classes:
            self._add(cls)

    def check(self) -> None:
        """Look at everything.

        Raises:
            CannotForecastError: Something is used that is not copied.
        """
        while self._functions:
            self._look(self._functions.popleft())
        for name in self._stored:
            if any(name in vars(cls) and not _is_descriptor(vars(cls)[name]) for cls in self._classes):
                raise CannotForecastError(f"its code sets {name}, which is an attribute of its class")
            if name not in self._own:
                raise CannotForecastError(f"its code sets {name}, perhaps of a class or function")

    def is_unchanged(self) -> bool:
        """Return False if the program has given another value to a name since it was looked at."""
        return all(namespace.get(name) is value for namespace, name, value in self._found)

    def _add(self, cls: type) -> None:
        if cls in self._classes:
            return
        if type(cls).__module__ not in MODULES:
            raise CannotForecastError(f"{cls.__name__} has a metaclass, {type(cls).__name__}")
        self._classes.add(cls)
        special = {
            name for name in vars(cls) if name.startswith("__") and isinstance(vars(cls)[name], types.FunctionType)
        }
        for name in self._names | (special - _NOT_BY_SYNTAX):
            self._resolve(cls, name)

    def _name(self, name: str, *, is_text: bool = False) -> None:
        if name in _EFFECTS and not is_text:
            raise CannotForecastError(f"its code uses {name}")
        if name not in self._names:
            self._names.add(name)
            for cls in list(self._classes):
                self._resolve(cls, name)

    def _resolve(self, cls: type, name: str) -> None:
        value = vars(cls).get(name)
        self._found.append((vars(cls), name, value))
        if isinstance(value, types.FunctionType):
            self._functions.append(value)
        elif isinstance(value, staticmethod):
            self._value(name, value.__func__)
        elif isinstance(value, property | functools.cached_property):
            functions = (value.func,) if isinstance(value, functools.cached_property) else (value.fget, value.fset)
            self._functions.extend(part for part in functions if isinstance(part, types.FunctionType))
        elif not _is_descriptor(value):
            self._value(name, value)

    def _look(self, function: types.FunctionType) -> None:
        code = function.__code__
        if code in self._seen:
            return
        self._seen.add(code)
        for name, value in vars(function).items():
            self._value(name, value)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._value(f"a default of {code.co_name}", value)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__":
                self._value(name, _content(cell))
        uses, waiting = set[str](), [code]
        while waiting:
            inner = waiting.pop()
            waiting.extend(part for part in inner.co_consts if isinstance(part, types.CodeType))
            for text in inner.co_consts:
                if isinstance(text, str) and text.isidentifier():  # perhaps for getattr
                    self._name(text, is_text=True)
            before: Any = None
            for step in dis.get_instructions(inner):
                self._step(step, code, function.__globals__)
                uses.add(step.opname if step.opname in _STORES else str(step.argval))
                if step.opname in _STORES and "self" in (before if isinstance(before, tuple) else (before,))[-1:]:
                    self._own.add(step.argval)
                before = step.argval
        if uses & {"type", "__class__"} and uses & _STORES:
            raise CannotForecastError("its code sets attributes, perhaps of its class")

    def _step(self, step: dis.Instruction, code: types.CodeType, namespace: dict[str, Any]) -> None:
        kind, name = step.opname, step.argval
        if kind in ("STORE_GLOBAL", "DELETE_GLOBAL") or (kind == "STORE_DEREF" and name in code.co_freevars):
            raise CannotForecastError(f"its code sets {name}, which is not its own")
        if kind.startswith("IMPORT_NAME") and name not in MODULES:
            raise CannotForecastError(f"its code imports {name}")
        if kind in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            if name in _EFFECTS:
                raise CannotForecastError(f"its code uses {name}")
            self._found.append((namespace, name, namespace.get(name)))
            self._value(name, namespace.get(name, getattr(builtins, name, None)))
            if name == "type":
                self._making()
        elif step.opcode in dis.hasname:
            self._name(name)
            if name in ("__class__", "replace") and code.co_name not in _COMPARISONS:
                self._making()
            if kind in _STORES:
                self._stored.add(name)

    def _making(self) -> None:
        """Look at constructors as well: a class may be called that is not named."""
        self._name("__init__")
        self._name("__new__")

    def _value(self, name: str, value: Any) -> None:
        """Look at a value that code refers to by name."""
        module = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if isinstance(value, types.FunctionType) and module not in MODULES:
            self._functions.append(value)
        elif isinstance(value, type) and value.__module__ not in MODULES:
            for base in value.__mro__:
                if base.__module__ not in MODULES:
                    self._add(base)
                    self._functions.extend(
                        part for part in (vars(base).get("__init__"), vars(base).get("__new__")) if part
                    )
        elif _is_constant(value):
            for cls in own_classes(type(value)):
                self._add(cls)
        elif not ((module in MODULES and _is_code(value)) or is_of_global_generator(value)):
            raise CannotForecastError(f"its code uses {name}, {_described(value)}")


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_constant, value))
    return isinstance(value, (*ATOMS, np.ufunc))


def _is_code(value: Any) -> bool:
    """Return True for modules, classes, and functions that their module has by their name: what an object does is its own."""
    if isinstance(value, types.ModuleType | type):
        return True
    return getattr(sys.modules.get(value.__module__), getattr(value, "__name__", ""), None) is value


def _is_descriptor(value: Any) -> bool:
    kinds = (property, types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType)
    return isinstance(value, kinds)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _described(value: Any) -> str:
    return f"the module {value.__name__}" if isinstance(value, types.ModuleType) else f"a {type(value).__name__}"
