"""Fingerprint of a stage: a canonical hash of its pickled dataset, with the user's functions and classes by value.

Code of the user's own counts by its bytecode, closures, defaults and the globals that it names. Code of installed packages counts by
its name and the version of its distribution. Plain values are written by pickle in C without its memo, so that equal values have
equal bytes, and all else is replaced by a digest. See ADR 57. Start reading at ``fingerprint``.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import os
import pickle
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import PurePath
from typing import Any, Final

import numpy as np
from xxhash import xxh3_128, xxh3_128_digest

from prefeed.errors import CannotFingerprintError
from prefeed.stage_cache.distributions import digest_of_file, file_of, version_of, version_of_distribution

MARK: Final = "_prefeed_not_random"
"""Attribute of a value that a user has marked with ``not_random``."""

Part = tuple[bytes, bool]
"""Digest of a named part, and whether it is of a plain type, whose code names no globals."""

ABSENT: Final[Part] = b"", True
"""Part that is not set."""

Slot = tuple[int, str]
"""A named part of a stage: the id of its holder (an object, or the globals of a module) and its name there."""

_PLAIN: Final = frozenset({bool, int, float, str, bytes, bytearray, type(None), tuple, list, dict})
"""Types that pickle writes in C."""

_CONTAINERS: Final = frozenset({tuple, list, dict})
_ATOMS: Final = _PLAIN - _CONTAINERS
_LONG: Final = 64
_MAX_DEPTH: Final = 16

_ALWAYS: Final = ("numpy", "torch", "torchvision", "pillow")
"""Distributions whose versions always count, because others call them: torchvision decodes with Pillow."""

_NAMING: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_PARTS: Final[dict[type, tuple[str, ...]]] = {
    **dict.fromkeys((staticmethod, classmethod), ("__func__",)),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    type(functools.lru_cache(len)): ("__wrapped__",),
    types.MethodType: ("__func__", "__self__"),
}
"""Attributes that stand for values which pickle does not take."""

_DESCRIPTORS: Final = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.MemberDescriptorType, types.GetSetDescriptorType),
)
_DERIVED: Final = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__"),
        *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__", "_abc_impl"),
        *("__abstractmethods__", "__slotnames__", "__parameters__", "__orig_bases__", "__type_params__", MARK),
    }
)
"""Attributes of classes that follow from others, or do not change the work of their instances."""


def fingerprint(value: Any, *, name: str | None = None) -> bytes:
    """Return the hash of a value, 16 bytes, the same in every process and run.

    Args:
        value: A dataset, a transform, a function, or several in a tuple.
        name: Name of the value in an error; by default that of its class.

    Raises:
        CannotFingerprintError: The value contains what cannot be pickled; the message names it.
    """
    return Walk().fingerprint(value, name=name)


class Walk:
    """Walk through a value that computes its fingerprint.

    Attributes:
        slots: Each named part. Inner parts come before those around them.
        holders: Holder of each slot by id. Holding it keeps the id its own.
        is_marked: A part is marked with ``not_random``.
    """

    def __init__(self, *, filled: Mapping[Slot, Part] | None = None, skips_unpicklable: bool = False) -> None:
        """Begin.

        Args:
            filled: Parts that computing samples changes, to be used instead of the present ones.
            skips_unpicklable: Named parts that cannot be pickled have a constant digest.
        """
        self.slots: dict[Slot, Part] = {}
        self.holders: dict[int, Any] = {}
        self.is_marked = False
        self._filled = filled or {}
        self._skips_unpicklable = skips_unpicklable
        self._known: dict[int, tuple[Any, bytes]] = {}
        self._open: dict[int, int] = {}
        self._globals: dict[Slot, dict[str, Any]] = {}
        self._modules: set[tuple[int, frozenset[str]]] = set()

    def fingerprint(self, value: Any, *, name: str | None = None) -> bytes:
        """Return the hash of a value and of the globals that its code names; raises as the function ``fingerprint``."""
        try:
            content = self._written(value)
            named, num_done = [], 0
            while num_done < len(self._globals):  # these name others
                (_, reached), namespace = list(self._globals.items())[num_done]
                named.append(self._written((_name_of(namespace), self._named(namespace, (reached,), namespace))))
                num_done += 1
        except (_UnpicklableError, ValueError, RecursionError) as err:
            found = err if isinstance(err, _UnpicklableError) else _UnpicklableError(value, str(err))
            raise found.for_user(name or type(value).__qualname__) from err
        self._known.clear()
        return self._written((sys.version_info[:2], [*map(version_of_distribution, _ALWAYS)], content, sorted(named)))

    # ------------------------------------------------------------ values

    def _written(self, value: Any) -> bytes:
        """Return the hash of what pickle writes of a value, with a digest for each part that is not plain."""
        sink = _Sink()
        pickler = _Pickler(sink, protocol=5)
        pickler.walk = self
        pickler.fast = True  # no memo: one text has the same bytes whether it is one object or two
        pickler.dump(value)
        return sink.hash.digest()

    def digest(self, value: Any) -> bytes:
        """Return the digest of a value that is not plain."""
        key = id(value)
        if key in self._known:
            return self._known[key][1]
        if key in self._open:
            return b"again %d" % (len(self._open) - self._open[key])
        self._open[key] = len(self._open)
        try:
            self.is_marked = self.is_marked or MARK in getattr(value, "__dict__", ())
            found = self._written(self._content(value))
        except _UnpicklableError:
            raise
        except Exception as err:  # whatever the code of a class raises while it is pickled
            raise _UnpicklableError(value, str(err)) from err
        finally:
            del self._open[key]
        self._known[key] = (value, found)  # held, because an id is another object's once its own is gone
        return found

    def _content(self, value: Any) -> Any:
        """Return plain values, and parts, that a value consists of."""
        kind = type(value)
        if kind is types.FunctionType:
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if kind is types.CodeType:
            return _code(value)
        if kind in (set, frozenset):
            return kind.__name__, sorted(map(self._written, value))
        if kind in _PARTS:
            return kind.__name__, [getattr(value, name) for name in _PARTS[kind]]
        if kind is types.ModuleType:
            return "module", value.__name__, version_of(value.__name__)
        if kind in _DESCRIPTORS:
            return kind.__name__, value.__objclass__.__qualname__, value.__name__
        if kind in (types.BuiltinFunctionType, types.MethodWrapperType):
            owner = value.__self__
            is_method = not isinstance(owner, types.ModuleType | type | None)
            module = owner.__name__ if isinstance(owner, types.ModuleType) else _module_of(value)
            return "builtin", module, version_of(module), value.__qualname__, owner if is_method else None
        if kind is types.MappingProxyType:
            return "mappingproxy", dict(value)
        array = _array(value) if isinstance(value, np.ndarray) else _tensor(value)
        return array or self._instance(value)

    def _instance(self, value: Any) -> Any:
        """Return what pickle keeps of an instance, or what a dataset or transform of prefeed declares."""
        kind = type(value)
        if hasattr(kind, "prefeed_state"):
            names = {name for base in kind.__mro__ if version_of(_module_of(base)) for name in _names_set_in(base)}
            beyond = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in names}
            return "declared", kind, value.prefeed_state(), self._named(value, beyond, beyond)
        reducer = copyreg.dispatch_table.get(kind)
        reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # a name in its module
            module = _module_of(value if isinstance(getattr(value, "__module__", None), str) else kind)
            return "named", kind, module, version_of(module), reduced
        make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
        states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
        if all(isinstance(part, dict | None) for part in states):
            held = {str(name): item for part in states for name, item in (part or {}).items()}
            state = self._named(value, held, held)
        return "instance", kind, make, arguments, state, list(items or ()), list(pairs or ())

    def _named(self, holder: Any, names: Iterable[str], values: Mapping[str, Any]) -> list[tuple[str, bytes]]:
        """Return digests of parts by name. In which order they were set does not count."""
        self.holders[id(holder)] = holder
        found = []
        for name in sorted(set(names) - {MARK}):
            slot = (id(holder), name)
            part = self._filled.get(slot)
            if part is None or not part[1]:
                now = self._part(name, values[name], is_filled=part is not None)
                part = part or now
            self.slots[slot] = part
            if part != ABSENT:
                found.append((name, part[0]))
        return found

    def _part(self, name: str, value: Any, *, is_filled: bool) -> Part:
        try:
            return self._written(value), type(value) in _PLAIN
        except (_UnpicklableError, ValueError, RecursionError) as err:
            if self._skips_unpicklable or is_filled:
                return b"unpicklable", False
            found = err if isinstance(err, _UnpicklableError) else _UnpicklableError(value, str(err))
            found.path.insert(0, name)
            raise found from err

    # ------------------------------------------------------------ code

    def _function(self, value: types.FunctionType) -> Any:
        code, module = value.__code__, _name_of(value.__globals__)
        cells, own, values = _cells(value), vars(value), value.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        defaults = dict(zip(reversed(names), reversed(values), strict=False)) | (value.__kwdefaults__ or {})
        version = version_of(module)
        if version is not None:
            is_made_by_another = "<locals>" in code.co_qualname or "<lambda>" in code.co_qualname
            made_with = self._named(value, cells | defaults, cells | defaults) if is_made_by_another else None
            return "installed", module, code.co_qualname, version, made_with
        loaded, imported, attributes = _names_of(code)
        self._reach(value.__globals__, loaded, attributes)
        files = [(name, version_of(name) or digest_of_file(file_of(name) or "")) for name in _absolute(value, imported)]
        parts = cells | defaults | {name: item for name, item in own.items() if name != "__wrapped__"}
        return "function", code, list(defaults), self._named(value, parts, parts), files

    def _class(self, value: type) -> Any:
        version = version_of(_module_of(value))
        if version is not None and "<locals>" not in value.__qualname__:
            patched = {
                f"{base.__qualname__}.{name}": item
                for base in value.__mro__
                for name, item in list(vars(base).items())
                if type(item) is types.FunctionType and version_of(_name_of(item.__globals__)) is None
            }
            own = patched if not any(version_of(_module_of(base)) is None for base in value.__mro__) else {}
            return "installed", _module_of(value), value.__qualname__, version, own
        own = {name: item for name, item in vars(value).items() if not _is_derived(name)}
        return "class", value.__qualname__, type(value), value.__bases__, self._named(value, own, own)

    def _reach(self, namespace: dict[str, Any], names: Iterable[str], attributes: frozenset[str]) -> None:
        """Note globals that code names. Of a module that code names, count the attributes that the code names."""
        for name in names:
            value = namespace.get(name)
            if isinstance(value, types.ModuleType):
                if (id(value), attributes) not in self._modules:
                    self._modules.add((id(value), attributes))
                    self._reach(vars(value), attributes & vars(value).keys(), attributes)
            elif name in namespace and (version_of(_name_of(namespace)) is None or _is_code(value)):
                self._globals[id(namespace), name] = namespace


class _Sink:
    def __init__(self) -> None:
        self.hash = xxh3_128()
        self.write = self.hash.update


class _Pickler(pickle.Pickler):
    walk: Walk

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if kind in _CONTAINERS and len(value) > _LONG:
            paths = set(map(type, value))
            if len(paths) == 1 and issubclass(found := paths.pop(), PurePath) and kind is not dict:
                return found.__name__, list(map(str, value))
            return _digest_of_long(value)
        if kind in _PLAIN:
            return None
        return (type(value).__name__, str(value)) if isinstance(value, PurePath) else self.walk.digest(value)


class _UnpicklableError(Exception):
    """Reports a value that cannot be pickled, and the names by which it is reached."""

    def __init__(self, value: Any, reason: str, path: list[str] | None = None) -> None:
        super().__init__(reason)
        self.value = value
        self.path = path or []

    def for_user(self, name: str) -> CannotFingerprintError:
        where = ".".join([name, *self.path[:12]])
        what = f"{type(self.value).__module__}.{type(self.value).__qualname__}".removeprefix("builtins.")
        return CannotFingerprintError(
            f"{where} is a {what}, which cannot be identified ({self}): keep it out of the stage, or pass a name of your own "
            'for the stage, and change it with the code and the data: version="resize-224 v1"',
            where=where,
            type=what,
        )


def _digest_of_long(value: Any) -> Any:
    """Return the digest of a long container of texts, numbers, and containers of these; None for any other.

    No code of Python runs for each item: a list of 100,000 paths takes 10 ms.
    """
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _ATOMS:
            sink = _Sink()
            pickler = pickle.Pickler(sink, protocol=5)
            pickler.fast = True
            pickler.dump(value)
            return sink.hash.digest()
        if not kinds <= _PLAIN:
            return None
        containers = [item for item in level if type(item) in _CONTAINERS]
        dicts = [item for item in containers if type(item) is dict]
        level = [*chain.from_iterable(containers), *chain.from_iterable(map(dict.values, dicts))]
    return None


def _array(value: np.ndarray[Any, Any]) -> Any:
    shown = type(value), value.shape, repr(value.dtype) if value.dtype.names else value.dtype.str
    if isinstance(value, np.memmap) and value.mode == "r" and value.filename is not None:
        if value.base is getattr(value, "_mmap", None):  # a whole file, as large as the data perhaps
            status = os.stat(value.filename)
            return "memmap", shown, os.fspath(value.filename), value.offset, status.st_size, status.st_mtime_ns
    plain = np.asarray(value)
    content = plain.ravel().tolist() if plain.dtype.hasobject else _bytes_of(plain)
    masked = (np.ma.getmaskarray(value), value.fill_value) if isinstance(value, np.ma.MaskedArray) else None
    own = {name: item for name, item in getattr(value, "__dict__", {}).items() if masked is None or name[0] != "_"}
    return "array", shown, content, masked, own


def _tensor(value: Any) -> Any:
    """Return what a dense tensor consists of; None for any other value."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    shown = type(value), str(value.dtype), tuple(value.shape), value.requires_grad
    return "tensor", shown, _bytes_of(flat.numpy()), vars(value)


def _bytes_of(value: np.ndarray[Any, Any]) -> bytes:
    return xxh3_128_digest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data) if value.nbytes else b""


def _code(code: types.CodeType) -> Any:
    """Return what code does, but not its file and its lines."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return "code", code.co_code, code.co_exceptiontable, counts, names, code.co_consts


@functools.lru_cache(4096)
def _names_of(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """Return the globals that code and the functions inside it load, the modules they import, and all names they use."""
    codes, instructions = [code], list[dis.Instruction]()
    for each in codes:  # grows
        codes += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
        instructions += dis.get_instructions(each)
    loaded = dict.fromkeys(step.argval for step in instructions if step.opname in _NAMING)
    imported = dict.fromkeys(step.argval for step in instructions if step.opname == "IMPORT_NAME")
    return tuple(loaded), tuple(imported), frozenset(name for each in codes for name in each.co_names)


def _absolute(function: types.FunctionType, imported: Iterable[str]) -> Iterator[str]:
    """Yield the names of modules that a function imports; a relative one is below the function's package."""
    package = str(function.__globals__.get("__package__") or "")
    for name in imported:
        yield name if not package or file_of(name) is not None else f"{package}.{name}".rstrip(".")


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


@functools.cache
def _names_set_in(cls: type) -> frozenset[str]:
    functions = (item for item in vars(cls).values() if isinstance(item, types.FunctionType))
    return frozenset(name for function in functions for name in function.__code__.co_names)


def _module_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else "builtins"  # types of some compiled packages have a descriptor there


def _name_of(namespace: Mapping[str, Any]) -> str:
    name = str(namespace.get("__name__"))
    return "__main__" if name == "__mp_main__" else name  # the script, in a process that was spawned


def _is_code(value: Any) -> bool:
    return isinstance(value, type | types.FunctionType | types.BuiltinFunctionType)


def _is_derived(name: str) -> bool:
    return name in _DERIVED or (name.startswith("__pydantic_") and name != "__pydantic_fields__")
