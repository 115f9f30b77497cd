"""Functions, methods, descriptors and modules."""

from __future__ import annotations

import functools
import logging
import sys
import types
from typing import Any

import numpy as np

from prefeed.stage.identity.bytecode import (
    MISSING,
    External,
    Reference,
    code_text,
    function_references,
    references,
    source_code,
)
from prefeed.stage.identity.installed import (
    binary_of,
    is_installed,
    is_installed_module,
    is_installed_name,
    version_of,
)
from prefeed.stage.identity.parts import Anatomy, Part, UntoldError, attributes
from prefeed.stage.identity.patches import is_foreign, patches_of

# ---------------------------------------------------------------- code


def look_at_external(dotted: str) -> Anatomy:
    identity, parts = patches_of(dotted)
    told = f"{dotted} {version_of(dotted)} {binary_of(dotted)} {identity}".encode("utf-8", "backslashreplace")
    return Anatomy(kind="installed", content=lambda: [told], parts=parts)


def look_at_function(value: types.FunctionType) -> Anatomy:
    code, module = value.__code__, str(value.__globals__.get("__name__", ""))
    made_inside = [
        *cells_of(code.co_freevars, value.__closure__),
        ("(defaults)", value.__defaults__),
        ("(defaults)", value.__kwdefaults__),
    ]
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


_PLAIN = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, np.ndarray, types.NoneType)


def _is_of_module(module: types.ModuleType, name: str, value: Any) -> bool:
    """Return whether somebody who looks a name of a module up by text would find something of its own there."""
    if name.startswith("__"):
        return False
    if type(value) in _PLAIN:
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
