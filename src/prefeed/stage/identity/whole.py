"""Which look is for which value, and how an instance is taken apart."""

from __future__ import annotations

import copyreg
import dis
import functools
import logging
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, EnumMeta
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from prefeed.stage.identity import functions, values
from prefeed.stage.identity.bytecode import External
from prefeed.stage.identity.parts import Anatomy, AsFarAsTold, Part, UntoldError, attributes
from prefeed.stage.identity.patches import PatchedIn, look_at_patches
from prefeed.stage.identity.types import look_at_class, look_at_enum_class, look_at_enum_member


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
    parts += [part for key, item in pairs or () for part in values.items_of({key: item})]
    return Anatomy(kind="instance", parts=tuple(parts))


def _look_at_ordered(value: OrderedDict[Any, Any]) -> Anatomy:
    """Look at a dictionary of which each module of torch's has a dozen, most of them empty."""
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
        return values.look_at_tensor
    return _look_at_instance


_BY_BASE: Final[tuple[tuple[Any, Callable[[Any], Anatomy]], ...]] = (
    (type, look_at_class),
    (Enum, look_at_enum_member),
    (np.memmap, values.look_at_memmap),
    (np.ndarray, values.look_at_array_like),
    (PurePath, values.look_at_path),
    (np.generic, values.look_at_number),
    (functools.partial, functions.look_at_partial),
    (np.ufunc, functions.look_at_ufunc),
    (weakref.WeakKeyDictionary | weakref.WeakValueDictionary | weakref.WeakSet, functions.look_at_weak),
    (logging.Logger | logging.LoggerAdapter, functions.look_at_logger),
)

_BY_TYPE: Final[dict[type, Callable[[Any], Anatomy]]] = {
    **dict.fromkeys(
        (bool, int, types.NoneType, types.EllipsisType, types.NotImplementedType, range), values.look_at_plain
    ),
    **dict.fromkeys((list, tuple), values.look_at_sequence),
    **dict.fromkeys((set, frozenset), values.look_at_set),
    **dict.fromkeys((bytes, bytearray), values.look_at_bytes),
    **dict.fromkeys((staticmethod, classmethod), functions.look_at_wrapped),
    **dict.fromkeys((types.BuiltinFunctionType, types.MethodWrapperType), functions.look_at_builtin),
    **dict.fromkeys(
        (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
        functions.look_at_descriptor,
    ),
    **dict.fromkeys((types.MemberDescriptorType, types.GetSetDescriptorType), functions.look_at_descriptor),
    slice: values.look_at_slice,
    np.ndarray: values.look_at_array,
    float: values.look_at_float,
    complex: values.look_at_complex,
    str: values.look_at_text,
    dict: values.look_at_dict,
    OrderedDict: _look_at_ordered,
    types.MappingProxyType: lambda value: values.look_at_dict(dict(value)),
    types.FunctionType: functions.look_at_function,
    types.CodeType: functions.look_at_code,
    types.ModuleType: functions.look_at_module,
    types.MethodType: functions.look_at_method,
    property: functions.look_at_property,
    functools.cached_property: functions.look_at_cached_property,
    type(functools.lru_cache(values.look_at_plain)): functions.look_at_cached,
    PatchedIn: look_at_patches,
    External: lambda value: functions.look_at_external(value.dotted),
    AsFarAsTold: lambda value: Anatomy(kind="vouched for", parts=(("", value.value),)),
}
