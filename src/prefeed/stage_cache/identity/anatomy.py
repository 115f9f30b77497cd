"""What any value consists of: functions, classes, plain values, containers, arrays, instances; which look is for which."""

from __future__ import annotations

import copyreg
import dis
import functools
import itertools
import logging
import marshal
import os
import struct
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from enum import Enum, EnumMeta
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from prefeed.stage_cache.identity.bytecode import (
    MISSING,
    External,
    Reference,
    code_text,
    function_references,
    references,
    source_code,
)
from prefeed.stage_cache.identity.installed import (
    PatchedIn,
    binary_of,
    is_foreign,
    is_installed,
    is_installed_module,
    is_installed_name,
    look_at_patches,
    patches_of,
    version_of,
)
from prefeed.stage_cache.identity.parts import MARK, Anatomy, AsFarAsTold, Part, UntoldError, attributes
from prefeed.stage_cache.plug_ins import plug_in

# ---------------------------------------------------------------- code


def look_at_external(dotted: str) -> Anatomy:
    identity, parts = patches_of(dotted)
    told = f"{dotted} {version_of(dotted)} {binary_of(dotted)} {identity}".encode("utf-8", "backslashreplace")
    return Anatomy(kind="installed", content=lambda: [told], parts=parts)


def look_at_function(value: types.FunctionType) -> Anatomy:
    code, module = value.__code__, str(value.__globals__.get("__name__", ""))
    made_inside = made_with(value)
    if is_installed(module, code.co_filename) and not is_foreign(value):
        dotted = f"{module}.{code.co_qualname}"
        is_made_by_another = "<locals>" in code.co_qualname or "<lambda>" in code.co_qualname
        return Anatomy(kind="function", parts=(("", External(dotted)), *(made_inside if is_made_by_another else ())))
    used = [(f" -> {reference.name}", _value_of(reference)) for reference in function_references(value)]
    return Anatomy(kind="function", content=lambda: [_text_of(code)], parts=(*made_inside, *used))


def _text_of(code: types.CodeType) -> bytes:
    return f"{sys.version_info[:2]} {code_text(code)}".encode("utf-8", "backslashreplace")


def _value_of(reference: Reference) -> Any:
    return (reference.name, "is not defined") if reference.value is MISSING else reference.value


def made_with(value: types.FunctionType) -> list[Part]:
    """Return what a function's closure holds, and the defaults of its arguments, by name."""
    code, values = value.__code__, value.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    defaults = [*zip(reversed(names), reversed(values), strict=False), *(value.__kwdefaults__ or {}).items()]
    return [
        *cells_of(code.co_freevars, value.__closure__),
        *((f"(default of {name})", default) for name, default in defaults),
    ]


def cells_of(names: tuple[str, ...], cells: tuple[types.CellType, ...] | None) -> list[Part]:
    """Return what a function's closure holds, by name."""
    found = []
    for name, cell in zip(names, cells or (), strict=True):
        try:
            found.append((f" -> {name}", cell.cell_contents))
        except ValueError:  # not filled yet
            found.append((f" -> {name}", (name, "is not defined")))
    return found


def look_at_code(value: types.CodeType) -> Anatomy:
    return Anatomy(kind="code", content=lambda: [_text_of(value)])


def look_at_module(value: types.ModuleType) -> Anatomy:
    if is_installed_module(value):
        return look_at_external(value.__name__)
    code = source_code(value)
    if code is None and binary_of(value.__name__):
        return look_at_external(value.__name__)
    if code is None:
        raise UntoldError("it is a module without source")
    used = [(f".{reference.name}", _value_of(reference)) for reference in references(code, vars(value))]
    held = [(f".{name}", item) for name, item in sorted(vars(value).items()) if _is_of_module(value, name, item)]
    return Anatomy(kind="module", content=lambda: [_text_of(code)], parts=(*used, *held))


_OF_MODULES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, np.ndarray, types.NoneType)


def _is_of_module(module: types.ModuleType, name: str, value: Any) -> bool:
    """Return whether somebody who looks a name of a module up by text would find something of its own there."""
    if name.startswith("__"):
        return False
    if type(value) in _OF_MODULES:
        return True
    return isinstance(value, types.FunctionType | type) and value.__module__ == module.__name__


def look_at_builtin(value: Any) -> Anatomy:
    owner = value.__self__
    if owner is None or isinstance(owner, types.ModuleType | type):
        return look_at_external(f"{_module_of(value, owner)}.{value.__qualname__}")
    return Anatomy(kind=f"method {value.__name__}", parts=((".__self__", owner),))


def _module_of(value: Any, owner: Any) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return str(getattr(value, "__module__", None) or getattr(owner, "__module__", None) or "builtins")


def look_at_descriptor(value: Any) -> Anatomy:
    owner = value.__objclass__
    if is_installed_name(owner.__module__):
        return look_at_external(f"{owner.__module__}.{owner.__qualname__}.{value.__name__}")
    return Anatomy(kind=f"{type(value).__name__} {value.__name__} {binary_of(owner.__module__)}")


def look_at_method(value: types.MethodType) -> Anatomy:
    return Anatomy(kind="method", parts=((".__func__", value.__func__), (".__self__", value.__self__)))


def look_at_partial(value: functools.partial[Any]) -> Anatomy:
    parts: tuple[Part, ...] = ((".func", value.func), (".args", value.args), *attributes(value.keywords))
    return Anatomy(kind=type(value).__name__, parts=parts)


def look_at_property(value: property) -> Anatomy:
    return Anatomy(kind="property", parts=((".fget", value.fget), (".fset", value.fset), (".fdel", value.fdel)))


def look_at_wrapped(value: Any) -> Anatomy:
    return Anatomy(kind=type(value).__name__, parts=((".__func__", value.__func__),))


def look_at_cached(value: Any) -> Anatomy:
    return Anatomy(kind=type(value).__name__, parts=((".__wrapped__", value.__wrapped__),))


def look_at_cached_property(value: functools.cached_property[Any]) -> Anatomy:
    return Anatomy(kind="cached_property", parts=((".func", value.func),))  # and a lock


def look_at_weak(value: Any) -> Anatomy:
    return Anatomy(kind=type(value).__name__)  # what others keep is not kept here: a cache


def look_at_ufunc(value: np.ufunc) -> Anatomy:
    for module in ("numpy", "scipy.special"):
        if getattr(sys.modules.get(module), value.__name__, None) is value:
            return look_at_external(f"{module}.{value.__name__}")
    raise UntoldError("what it calls is out of sight")


def look_at_logger(value: logging.Logger) -> Anatomy:
    return Anatomy(kind=f"logger {value.name}")  # no sample depends on what is logged where


_UNSAID: Final = frozenset(
    {
        *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__"),
        *(
            "__annotate_func__",
            "__annotations_cache__",
            "__firstlineno__",
            "__static_attributes__",
            "__abstractmethods__",
        ),
        *("_abc_impl", "__parameters__", "__orig_bases__", "__slotnames__", "__type_params__", MARK),
    }
)
"""Attributes of classes that do not change what their instances do, or follow from the rest."""

_OF_PYDANTIC: Final = frozenset({"__pydantic_fields__", "__pydantic_decorators__"})


_OF_ENUMS: Final = (types.FunctionType, property, classmethod, staticmethod)
"""What an enum has besides its members; the rest follows from these."""


def look_at_class(value: type) -> Anatomy:
    if is_installed_class(value):
        return look_at_external(f"{value.__module__}.{value.__qualname__}")
    own = {name: item for name, item in vars(value).items() if not _is_unsaid(name)}
    bases = tuple((".__bases__", base) for base in (type(value), *value.__bases__))
    return Anatomy(kind=f"class {value.__qualname__}", parts=(*bases, *attributes(own)))


def _is_unsaid(name: str) -> bool:
    # pydantic keeps what it compiled from fields and validators, with addresses in it.
    return name in _UNSAID or (name.startswith("__pydantic_") and name not in _OF_PYDANTIC)


def look_at_enum_class(value: EnumMeta) -> Anatomy:
    if is_installed_class(value):
        return look_at_external(f"{value.__module__}.{value.__qualname__}")
    named: dict[str, Enum] = dict(value.__members__)
    members = {name: member.value for name, member in named.items()}
    functions = {name: item for name, item in vars(value).items() if isinstance(item, _OF_ENUMS)}
    bases = tuple((".__bases__", base) for base in value.__bases__)
    return Anatomy(kind=f"enum {value.__qualname__}", parts=((".__members__", members), *bases, *attributes(functions)))


def is_installed_class(cls: type) -> bool:
    """Return whether a class comes from an installed package; one made in a function of it has no name, and does not."""
    return "<locals>" not in cls.__qualname__ and is_installed_name(cls.__module__)


def look_at_enum_member(value: Enum) -> Anatomy:
    name: Any = value.name or value.value  # of flags together, the number
    return Anatomy(kind="member", content=lambda: [repr(name).encode()], parts=((".__class__", type(value)),))


# ---------------------------------------------------------------- plain values


def look_at_plain(value: Any) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [repr(value).encode("utf-8", "backslashreplace")])


def look_at_float(value: float) -> Anatomy:
    return Anatomy(kind="float", content=lambda: [struct.pack("<d", value)])


def look_at_complex(value: complex) -> Anatomy:
    return Anatomy(kind="complex", content=lambda: [struct.pack("<dd", value.real, value.imag)])


def look_at_text(value: str) -> Anatomy:
    return Anatomy(kind="str", content=lambda: [value.encode("utf-8", "surrogatepass")])


def look_at_path(value: PurePath) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [str(value).encode("utf-8", "surrogateescape")])


def look_at_slice(value: slice) -> Anatomy:
    return Anatomy(kind="slice", parts=((".start", value.start), (".stop", value.stop), (".step", value.step)))


def look_at_bytes(value: bytes | bytearray) -> Anatomy:
    return Anatomy(kind=type(value).__name__, content=lambda: [value])


# ---------------------------------------------------------------- containers

_PLAIN: Final = frozenset({bool, int, float, complex, str, types.NoneType})
"""Not bytes: there may be many GB of them, which are not to be copied."""

_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})
_CONTAINERS: Final = _SEQUENCES | {dict}
_PLAIN_OR_CONTAINERS: Final = _PLAIN | _CONTAINERS
_MAX_DEPTH: Final = 32
_MAX_OCCURRENCES: Final = 64
_FEW_CONTAINERS: Final = 1 << 12
"""Of more than these each may occur so often on average: nested lists that hold each other twice have no end otherwise."""


def look_at_sequence(value: list[Any] | tuple[Any, ...]) -> Anatomy:
    if is_plain(value):
        return _whole(value)
    kinds = set(map(type, value))
    if len(kinds) == 1 and issubclass(next(iter(kinds)), PurePath):
        return Anatomy(
            kind=f"{type(value).__name__} of {next(iter(kinds)).__name__}",
            content=lambda: [marshal.dumps(list(map(str, value)), 2)],
        )
    return Anatomy(kind=type(value).__name__, parts=tuple((f"[{index}]", item) for index, item in enumerate(value)))


def is_plain(value: Any) -> bool:
    """Return whether a container holds nothing but numbers, texts and containers of these, found at the speed of C."""
    level: list[Any] = [value]
    num_containers, distinct = 0, set[int]()
    for _ in range(_MAX_DEPTH):
        kinds = set(map(type, level))
        if kinds <= _PLAIN:
            return True
        if not kinds <= _PLAIN_OR_CONTAINERS:
            return False
        level = [item for item in level if type(item) in _CONTAINERS]
        num_containers += len(level)
        distinct.update(map(id, level))
        if num_containers > max(_FEW_CONTAINERS, _MAX_OCCURRENCES * len(distinct)):
            return False
        dicts = [item for item in level if type(item) is dict]
        sequences = level if not dicts else [item for item in level if type(item) is not dict]
        level = [
            *itertools.chain.from_iterable(sequences),
            *itertools.chain.from_iterable(dicts),
            *itertools.chain.from_iterable(map(dict.values, dicts)),
        ]
    return False


def _whole(value: Any) -> Anatomy:
    # Version 2 has no references, so that the bytes depend on values alone, not on which of them are one object; sets
    # are sorted. marshal also takes arrays, as bytes without a type: hence ``is_plain``.
    return Anatomy(kind="plain", content=lambda: [marshal.dumps(value, 2)])


def look_at_dict(value: dict[Any, Any]) -> Anatomy:
    return _whole(value) if is_plain(value) else Anatomy(kind="dict", parts=tuple(items_of(value)))


def items_of(value: dict[Any, Any]) -> Iterator[Part]:
    for key, item in value.items():
        yield f"[key {_short(key)}]", key
        yield f"[{_short(key)}]", item


def look_at_set(value: set[Any] | frozenset[Any]) -> Anatomy:
    if is_plain(value):
        return _whole(value)
    parts = tuple((f"[{_short(item)}]", item) for item in value)
    return Anatomy(kind=type(value).__name__, parts=parts, is_unordered=True)


def _short(value: Any) -> str:
    return repr(value)[:40] if type(value) in _PLAIN | {bytes} else f"<{type(value).__name__}>"


# ---------------------------------------------------------------- arrays


def look_at_array(value: np.ndarray[Any, Any]) -> Anatomy:
    if value.dtype.hasobject:
        return Anatomy(kind=f"array {value.dtype} {value.shape}", parts=(("", value.ravel().tolist()),))
    kind = f"{type(value).__name__} {_dtype_text(value.dtype)} {value.shape}"
    if not value.dtype.itemsize:
        return Anatomy(kind=kind)
    return Anatomy(kind=kind, content=lambda: [np.ascontiguousarray(value).reshape(-1).view(np.uint8).data])


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return repr(dtype) if dtype.names else dtype.str  # fields may overlap, which ``descr`` does not know


def look_at_array_like(value: np.ndarray[Any, Any]) -> Anatomy:
    """Look at an array of a class derived from numpy's: what else it holds counts as well."""
    own = dict(getattr(value, "__dict__", {}))
    if isinstance(value, np.ma.MaskedArray):
        masked = {"mask": np.ma.getmaskarray(value), "fill_value": value.fill_value}
        own = masked | {name: item for name, item in own.items() if name in _OF_MASKED or not name.startswith("_")}
    data = ("", np.asarray(value))
    return Anatomy(kind="array", parts=((".__class__", type(value)), data, *attributes(own)))


_OF_MASKED: Final = frozenset({"_optinfo", "_hardmask"})
"""What else a masked array's result may depend on; the rest of its private attributes follow from its use."""


def look_at_memmap(value: np.memmap[Any, Any]) -> Anatomy:
    if value.mode != "r" or value.filename is None or value.base is not value._mmap:  # type: ignore[attr-defined]
        return look_at_array(value)
    # The whole of a file that is only read: as large as the data, perhaps, and known by its version.
    status = os.stat(value.filename)
    told = (os.fspath(value.filename), value.offset, status.st_size, status.st_mtime_ns)
    kind = f"mapped {_dtype_text(value.dtype)} {value.shape} {value.strides}"
    return Anatomy(kind=kind, parts=((".filename", told),))


def look_at_number(value: Any) -> Anatomy:
    return Anatomy(kind=f"{type(value).__name__} {_dtype_text(value.dtype)}", content=lambda: [value.tobytes()])


def look_at_tensor(value: Any) -> Anatomy:
    found = plug_in("torch").content_of(value)
    if found is None:
        raise UntoldError(f"its layout is {value.layout}")
    told, content = found
    parts = ((".__class__", type(value)), *attributes(vars(value)))
    return Anatomy(kind=f"tensor {told}", content=lambda: [content()], parts=parts)


def anatomy_of(value: Any) -> Anatomy:
    """Return what a value consists of.

    Raises:
        UntoldError: That depends on more than what can be looked at: an open file, a lock, a generator.
    """
    look = _BY_TYPE.get(type(value)) or _by_base(value)
    return look(value)


# ---------------------------------------------------------------- instances

_NEW: Final[Any] = vars(copyreg)["__newobj__"]
"""What pickle makes an instance with, whose class says nothing else."""


def _look_at_instance(value: Any) -> Anatomy:
    """Take an instance apart as pickle would, unless it says itself what it consists of."""
    teller = defining_class(type(value), "prefeed_state")
    if teller is not None:
        parts = [(".__class__", type(value)), *_told(type(value).prefeed_state(value))]
        return Anatomy(kind="instance", parts=(*parts, *attributes(state_beyond(value, teller))))
    reduced = _reduced(value)
    if isinstance(reduced, str):  # a name in its module
        dotted = f"{type(value).__module__}.{type(value).__qualname__}:{getattr(value, '__module__', None)}.{reduced}"
        return Anatomy(kind="named", parts=(("", External(dotted)),))
    make, arguments, state, items, pairs = [*reduced, None, None, None][:5]
    if make is _NEW and len(arguments) == 1:
        parts = [(".__class__", arguments[0])]
    else:
        parts = [(".__class__", type(value)), (".__reduce__()", make), (".__reduce__()", arguments)]
    parts += _state(state)
    parts += [(f"[{index}]", item) for index, item in enumerate(items or ())]
    parts += [part for key, item in pairs or () for part in items_of({key: item})]
    return Anatomy(kind="instance", parts=tuple(parts))


def _look_at_ordered(value: OrderedDict[Any, Any]) -> Anatomy:
    """Look at a dictionary; each module of torch's has a dozen of them, mostly empty."""
    return _look_at_instance(value) if value or vars(value) else Anatomy(kind="empty OrderedDict")


def _told(state: Any) -> list[Part]:
    return attributes(state) if isinstance(state, dict) else [(".prefeed_state()", state)]


def defining_class(cls: type, name: str) -> type | None:
    """Return the class that gives a class this attribute; None when only instances may have it, or say that they do."""
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def state_beyond(value: Any, base: type) -> dict[str, Any]:
    """Return what an instance of a class derived from another holds that the other's code did not put there."""
    if type(value) is base:
        return {}
    state = value.__getstate__()
    own = state[0] if isinstance(state, tuple) else state
    slots = state[1] if isinstance(state, tuple) and len(state) == 2 else None
    held = {**(own if isinstance(own, dict) else {"__getstate__()": own}), **(slots or {})}
    theirs = _set_by(base)
    return {name: item for name, item in held.items() if name not in theirs and item is not None}


@functools.cache
def _set_by(cls: type) -> frozenset[str]:
    """Return the names of attributes that a class's own methods set."""
    codes = [item.__code__ for item in vars(cls).values() if isinstance(item, types.FunctionType)]
    steps = (step for code in codes for step in dis.get_instructions(code))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


def _reduced(value: Any) -> Any:
    reducer = copyreg.dispatch_table.get(type(value))
    try:
        return reducer(value) if reducer is not None else value.__reduce_ex__(4)
    except Exception as err:  # whatever a class's own code makes of it
        raise UntoldError(str(err)) from err


def _state(state: Any) -> list[Part]:
    if isinstance(state, dict):
        return attributes(state)
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        own, slots = state
        if own is None or isinstance(own, dict):
            return [*attributes(own or {}), *attributes(slots)]
    return [] if state is None else [(".__getstate__()", state)]


# ---------------------------------------------------------------- which is which


def _by_base(value: Any) -> Callable[[Any], Anatomy]:
    """Return how to look at a value that is of none of the exact types."""
    if isinstance(value, EnumMeta):
        return look_at_enum_class
    for base, look in _BY_BASE:
        if isinstance(value, base):
            return look
    if any(cls.__module__ == "torch" and cls.__name__ == "Tensor" for cls in type(value).__mro__):
        return look_at_tensor
    return _look_at_instance


_BY_BASE: Final[tuple[tuple[Any, Callable[[Any], Anatomy]], ...]] = (
    (type, look_at_class),
    (Enum, look_at_enum_member),
    (np.memmap, look_at_memmap),
    (np.ndarray, look_at_array_like),
    (PurePath, look_at_path),
    (np.generic, look_at_number),
    (functools.partial, look_at_partial),
    (np.ufunc, look_at_ufunc),
    (weakref.WeakKeyDictionary | weakref.WeakValueDictionary | weakref.WeakSet, look_at_weak),
    (logging.Logger | logging.LoggerAdapter, look_at_logger),
)

_BY_TYPE: Final[dict[type, Callable[[Any], Anatomy]]] = {
    **dict.fromkeys((bool, int, types.NoneType, types.EllipsisType, types.NotImplementedType, range), look_at_plain),
    **dict.fromkeys((list, tuple), look_at_sequence),
    **dict.fromkeys((set, frozenset), look_at_set),
    **dict.fromkeys((bytes, bytearray), look_at_bytes),
    **dict.fromkeys((staticmethod, classmethod), look_at_wrapped),
    **dict.fromkeys((types.BuiltinFunctionType, types.MethodWrapperType), look_at_builtin),
    **dict.fromkeys(
        (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
        look_at_descriptor,
    ),
    **dict.fromkeys((types.MemberDescriptorType, types.GetSetDescriptorType), look_at_descriptor),
    slice: look_at_slice,
    np.ndarray: look_at_array,
    float: look_at_float,
    complex: look_at_complex,
    str: look_at_text,
    dict: look_at_dict,
    OrderedDict: _look_at_ordered,
    types.MappingProxyType: lambda value: look_at_dict(dict(value)),
    types.FunctionType: look_at_function,
    types.CodeType: look_at_code,
    types.ModuleType: look_at_module,
    types.MethodType: look_at_method,
    property: look_at_property,
    functools.cached_property: look_at_cached_property,
    type(functools.lru_cache(look_at_plain)): look_at_cached,
    PatchedIn: look_at_patches,
    External: lambda value: look_at_external(value.dotted),
    AsFarAsTold: lambda value: Anatomy(kind="vouched for", parts=(("", value.value),)),
}
