"""Takes functions, classes, arrays and instances apart for a fingerprint.

``contents_of`` returns plain values and the parts that a value consists of. The user's functions and classes consist of their code, installed ones
of their name and version.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import io
import mmap
import os
import struct
import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from xxhash import xxh3_128_digest

from prefeed.stage_cache.distributions import version_of
from prefeed.stage_cache.imports import Import, loaded_modules, modules_of, package_of, sources_of

if TYPE_CHECKING:
    from prefeed.stage_cache.fingerprint import Walk

MARK: Final = "_prefeed_not_random"
"""Attribute of a value that a user has marked with ``not_random``."""

_NAMING: Final = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_PARTS: Final[dict[type, tuple[str, ...]]] = {
    **dict.fromkeys((staticmethod, classmethod), ("__func__",)),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
    type(functools.lru_cache(len)): ("__wrapped__",),
    types.MethodType: ("__func__", "__self__"),
    struct.Struct: ("format",),
}
"""Attributes that stand for values which pickle does not take."""

_TRANSPARENT: Final = (
    *(type, types.FunctionType, types.ModuleType, tuple, list, dict, set, frozenset, *_PARTS),
    *(functools.partial, functools.partialmethod, functools.singledispatchmethod),
)
"""Types of values that only hold others."""

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


def contents_of(walk: Walk, value: Any) -> Any:
    """Return the plain values and the parts of a value."""
    kind = type(value)
    if kind is types.FunctionType:
        return _function(walk, value)
    if isinstance(value, type):
        return _class(walk, value)
    if kind is types.CodeType:
        return _code(value)
    if kind in (set, frozenset):
        return kind.__name__, sorted(map(walk.written, value))
    if kind in (types.BuiltinFunctionType, types.MethodType) and (owner := _owner_of(value)):
        return "attribute", owner, version_of(owner), value.__name__
    if kind in _PARTS:
        return kind.__name__, [getattr(value, name) for name in _PARTS[kind]]
    if kind is types.ModuleType:
        return _module(walk, value)
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
    return array or _instance(walk, value)


def _owner_of(method: Any) -> str | None:
    """Return the installed module with this method of an instance: ``random.random`` belongs to a generator."""
    module = _module_of(type(method.__self__))
    is_there = version_of(module) is not None and getattr(sys.modules.get(module), method.__name__, None) == method
    return module if is_there and not isinstance(method.__self__, types.ModuleType | type) else None


def _instance(walk: Walk, value: Any) -> Any:
    """Return the reduced form of an instance as in pickle, or the state that a class of prefeed declares."""
    kind = type(value)
    if hasattr(kind, "prefeed_state"):
        names = {name for base in kind.__mro__ if version_of(_module_of(base)) for name in _names_set_in(base)}
        beyond = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in names}
        return "declared", kind, value.prefeed_state(), walk.named(value, beyond, beyond)
    reducer = copyreg.dispatch_table.get(kind)
    reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
    if isinstance(reduced, str):  # a name in its module
        module = _module_of(value if isinstance(getattr(value, "__module__", None), str) else kind)
        return "named", kind, module, version_of(module), reduced
    make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
    states = state if isinstance(state, tuple) and len(state) == 2 else (state,)
    if all(isinstance(part, dict | None) for part in states):
        held = {str(name): item for part in states for name, item in (part or {}).items()}
        state = walk.named(value, held, held)
    return "instance", kind, make, arguments, state, list(items or ()), list(pairs or ())


def _function(walk: Walk, value: types.FunctionType) -> Any:
    code, module = value.__code__, name_of(value.__globals__)
    cells, own, values = _cells(value), vars(value), value.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    parts = cells | dict(zip(reversed(names), reversed(values), strict=False)) | (value.__kwdefaults__ or {})
    parts |= {f".{name}": item for name, item in own.items() if name != MARK}
    version = version_of(module)
    if version is not None:
        if module == "functools" and "registry" in own:  # a singledispatch function, whose cache changes
            parts = {"registry": list(own["registry"].items())}
        is_made_by_another = (
            bool(cells or own) or "<" in code.co_qualname
        )  # torch.no_grad() renames the code of its wrapper
        made_with = walk.standing(value, parts, parts) if is_made_by_another else None
        return "installed", module, code.co_qualname, version, made_with
    parts.pop(".__wrapped__", None)  # a cell as well
    names_in = _names_in(code)
    walk.reach(value.__globals__, names_in)
    package = package_of(value.__globals__)
    parts |= _imported(names_in, package)
    return "function", module, code, walk.named(value, parts, parts), sources_of(package, names_in.imports)


def _imported(names: CodeNames, package: str) -> dict[str, Any]:
    """Return what code names in the user's modules that it imports."""
    modules = set(modules_of(package, names.imports))
    return {
        f"{module}.{name}": namespace[name]
        for module, namespace in loaded_modules(modules).items()
        for name in names.attributes & namespace.keys()
        if f"{module}.{name}" not in modules
    }


def _module(walk: Walk, value: types.ModuleType) -> Any:
    version = version_of(value.__name__)
    if version is not None:
        return "module", value.__name__, version
    names = [name for name in vars(value) if not (name.startswith("__") and name.endswith("__"))]
    return "module", name_of(vars(value)), walk.standing(vars(value), names, vars(value))


def _class(walk: Walk, value: type) -> Any:
    version = version_of(_module_of(value))
    if version is not None and "<locals>" not in value.__qualname__:
        patched = {
            f"{base.__qualname__}.{name}": item
            for base in value.__mro__
            for name, item in list(vars(base).items())
            if type(item) is types.FunctionType
            and "__name__" in item.__globals__  # absent from code that attrs generates
            and version_of(name_of(item.__globals__)) is None
        }
        return "installed", _module_of(value), value.__qualname__, version, patched
    own = {name: item for name, item in vars(value).items() if not _is_derived(name)}
    name = name_of({"__name__": _module_of(value)}), value.__qualname__
    return "class", name, type(value), value.__bases__, walk.standing(value, own, own)


def _array(value: np.ndarray[Any, Any]) -> Any:
    shown = type(value), value.shape, repr(value.dtype) if value.dtype.names else value.dtype.str
    mapped = getattr(value, "_mmap", None)
    if isinstance(value, np.memmap) and mapped is not None and value.mode == "r" and value.filename is not None:
        status = os.stat(value.filename)  # the file may be as large as the data
        start = value.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        start += value.offset - value.offset % mmap.ALLOCATIONGRANULARITY
        return "memmap", shown, os.fspath(value.filename), start, value.strides, status.st_size, status.st_mtime_ns
    plain = np.asarray(value)
    content = plain.ravel().tolist() if plain.dtype.hasobject else _bytes_of(plain)
    masked = (np.ma.getmaskarray(value), value.fill_value) if isinstance(value, np.ma.MaskedArray) else None
    own = {} if isinstance(value, np.memmap) else getattr(value, "__dict__", {})
    own = {name: item for name, item in own.items() if masked is None or name[0] != "_"}
    return "array", shown, content, masked, own


def _tensor(value: Any) -> Any:
    """Return the contents of a dense tensor; None for any other value."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    shown = type(value), str(value.dtype), tuple(value.shape), value.requires_grad
    return "tensor", shown, _bytes_of(flat.numpy()), vars(value)


def _bytes_of(value: np.ndarray[Any, Any]) -> bytes:
    return xxh3_128_digest(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data) if value.nbytes else b""


def _code(code: types.CodeType) -> Any:
    """Return the contents of code, without its file and its lines."""
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return "code", code.co_code, code.co_exceptiontable, counts, names, code.co_consts


class CodeNames(NamedTuple):
    """Names that code and the functions inside it use.

    Attributes:
        loaded: Globals that are loaded.
        values: Those that are loaded for more than one of their attributes, for example to be passed on.
        imports: Imports inside.
        attributes: All names.
    """

    loaded: frozenset[str]
    values: frozenset[str]
    imports: tuple[Import, ...]
    attributes: frozenset[str]


@functools.lru_cache(4096)
def _names_in(code: types.CodeType) -> CodeNames:
    codes, steps = [code], list[dis.Instruction]()
    for each in codes:  # grows
        codes += [constant for constant in each.co_consts if isinstance(constant, types.CodeType)]
        steps += [step for step in dis.get_instructions(each) if step.opname != "EXTENDED_ARG"]
    loads = [(step.argval, after.opname) for step, after in pairwise(steps) if step.opname in _NAMING]
    imports = dict.fromkeys(
        Import(level.argval, step.argval, names.argval or ())
        for level, names, step in zip(steps, steps[1:], steps[2:], strict=False)
        if step.opname == "IMPORT_NAME"
    )
    return CodeNames(
        frozenset(name for name, _ in loads),
        frozenset(name for name, after in loads if after not in ("LOAD_ATTR", "LOAD_METHOD")),
        tuple(imports),
        frozenset(name for each in codes for name in each.co_names),
    )


def _cells(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


@functools.cache
def _names_set_in(cls: type) -> frozenset[str]:
    cached = {name for name, item in vars(cls).items() if isinstance(item, functools.cached_property)}
    codes = [item.__code__ for item in vars(cls).values() if isinstance(item, types.FunctionType)]
    steps = pairwise(step for code in codes for step in dis.get_instructions(code))
    return frozenset(cached) | {
        step.argval for before, step in steps if step.opname == "STORE_ATTR" and before.argval == "self"
    }


def _module_of(value: Any) -> str:
    module = getattr(value, "__module__", None)
    return module if isinstance(module, str) else "builtins"  # types of some compiled packages have a descriptor there


def is_opaque(value: Any) -> bool:
    """Return whether a value is an instance of an installed class, whose inner parts are no concern of the user's."""
    return not isinstance(value, _TRANSPARENT) and version_of(_module_of(type(value))) is not None


def type_of(value: Any) -> Any:
    """Return what is known of a value that cannot be pickled: its type and, of files and foreign functions, the name."""
    names = ("name",) if isinstance(value, io.IOBase) else ("filename", "__name__")
    shown = list[str]()
    for name in names:
        with suppress(Exception):  # whatever the code of a class raises
            shown += [each for each in (getattr(value, name, None),) if isinstance(each, str)]
    return type(value), shown


def name_of(namespace: Mapping[str, Any]) -> str:
    """Return the name of the module with these globals."""
    name = str(namespace.get("__name__"))
    return "__main__" if name == "__mp_main__" else name  # the script, in a process that was spawned


def _is_derived(name: str) -> bool:
    return name in _DERIVED or (name.startswith("__pydantic_") and name != "__pydantic_fields__")
