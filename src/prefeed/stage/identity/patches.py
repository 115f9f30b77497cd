"""What stands in installed packages in place of what was installed: functions that somebody has put there.

A name in a package counts by the package's version, so what was put under such a name is looked for, and counts by what it
says: under the name itself, in its class, in the module that it is found in and those of the same package that this
module uses. Deeper is not looked: that is for audits.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, Final, NamedTuple

from prefeed.stage.identity.installed import digest_of_file, is_installed, is_installed_name
from prefeed.stage.identity.parts import Anatomy, Part, UntoldError

_NOTHING: Final = object()
_DEPTH: Final = 1

_CALLED: Final = {
    "torchvision": ("PIL.Image", "PIL.ImageOps", "torch.nn.functional"),
    "PIL": ("PIL.Image",),
}
"""Modules whose functions a package's results depend on, and the user's code need not name."""

_CLASSES: Final = {"PIL.Image": ("Image",), "torch": ("Tensor",)}
"""Classes whose methods the user's code calls without naming them."""

_LARGE: Final = frozenset({"torch", "numpy", "scipy"})
"""Packages of which only the module itself is looked at."""

_OWN_OPERATORS: Final = frozenset(
    {"aten", "prim", "prims", "torch", "torchvision", "image", "quantized", "higher_order"}
)
"""Namespaces of operators that come with torch and torchvision, known by their versions."""


@dataclass(frozen=True, slots=True)
class PatchedIn:
    """What was put into an installed module, and into modules of its package that it uses, so many steps away."""

    module: str
    depth: int = _DEPTH


_known: Final[dict[tuple[str, int], PatchedIn]] = {}


def patched_in(module: str, depth: int = _DEPTH) -> PatchedIn:
    """Return the one object for a module, so that it is looked at once."""
    return _known.setdefault((module, depth), PatchedIn(module, depth))


def patches_of(dotted: str) -> tuple[str, tuple[Part, ...]]:
    """Return what an installed name stands for now, and what was put there or where it is found.

    Raises:
        UntoldError: It is an operator of torch's whose code cannot be seen.
    """
    if dotted.startswith("torch.ops."):
        return "", tuple(_operator(dotted))
    name = dotted.rpartition(":")[2]
    module, found = _found(name)
    if module is None:
        return "", ()
    if is_foreign(found):
        return "", (("(patched)", found),)
    parts: list[Part] = [("", patched_in(module.__name__))]
    parts += [("", patched_in(other)) for other in _CALLED.get(name.partition(".")[0], ())]
    if isinstance(found, type):
        parts += [part for base in found.__mro__ for part in _foreign_in(base)]
    return _identity(found), tuple(parts)


def look_at_patches(value: PatchedIn) -> Anatomy:
    """Return what was put into a module."""
    module = sys.modules.get(value.module)
    if module is None:
        return Anatomy(kind="patches")
    own = vars(module)
    parts = _foreign_in(module)
    parts += [part for name in _CLASSES.get(value.module, ()) if name in own for part in _foreign_in(own[name])]
    top = value.module.partition(".")[0]
    if value.depth > 0 and top not in _LARGE and not hasattr(module, "__path__"):
        used = {item.__name__ for item in list(own.values()) if isinstance(item, types.ModuleType)}
        parts += [("", patched_in(name, value.depth - 1)) for name in sorted(used) if name.partition(".")[0] == top]
    return Anatomy(kind="patches", parts=tuple(parts))


def is_foreign(value: Any) -> bool:
    """Return whether a function is of no installed package."""
    value = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
    if not isinstance(value, types.FunctionType):
        return False
    name, file = value.__globals__.get("__name__"), value.__code__.co_filename
    if not isinstance(name, str):
        return False  # it was made of text, as those of data classes are
    return not (is_installed(name, file) if file[:1] != "<" else is_installed_name(name))


def _foreign_in(holder: Any) -> list[Part]:
    """Return the functions of no installed package in a module or a class."""
    named = [(name, value) for name, value in [*vars(holder).items()] if type(value) in _FUNCTIONS]
    values = [value for _, value in named]
    clean = _clean.get(id(holder))
    if clean is not None and clean.is_as(values):
        return []
    found = [(f".{name}", value) for name, value in named if is_foreign(value)]
    if not found:
        functions = [getattr(value, "__func__", value) for value in values]
        functions = [function for function in functions if isinstance(function, types.FunctionType)]
        _clean[id(holder)] = _Clean(holder, values, functions, [*map(_code_of, functions)])
    return found


class _Clean(NamedTuple):
    """A module or a class in which nothing was foreign: looking again costs next to nothing.

    Attributes:
        holder: That one; an id is another object's as soon as its own is gone.
        values: Its functions, as they stand there.
        functions: Those of Python's, without what is around them.
        codes: Theirs.
    """

    holder: Any
    values: list[Any]
    functions: list[types.FunctionType]
    codes: list[types.CodeType]

    def is_as(self, values: list[Any]) -> bool:
        """Return whether all of it is as it was."""
        return (
            len(values) == len(self.values)
            and all(map(is_, values, self.values))
            and all(map(is_, map(_code_of, self.functions), self.codes))
        )


_code_of: Final = attrgetter("__code__")
_FUNCTIONS: Final = frozenset({types.FunctionType, staticmethod, classmethod})
_clean: Final[dict[int, _Clean]] = {}


def _found(name: str) -> tuple[types.ModuleType | None, Any]:
    """Return the module that a name is found in, and what it stands for there, without running any code."""
    prefix, rest = name, list[str]()
    while prefix not in sys.modules:
        prefix, _, last = prefix.rpartition(".")
        if not prefix:
            return None, _NOTHING
        rest.insert(0, last)
    module = sys.modules[prefix]
    found: Any = module
    for part in rest:
        spaces = [vars(base) for base in found.__mro__] if isinstance(found, type) else [getattr(found, "__dict__", {})]
        found = next((space[part] for space in spaces if part in space), _NOTHING)
    return module, found


def _identity(found: Any) -> str:
    """Return what tells one function of a package from another that was put in its place."""
    if isinstance(found, types.FunctionType):
        return f"{found.__globals__.get('__name__')}.{found.__code__.co_qualname}"
    own = getattr(found, "__dict__", {})
    name = getattr(found, "__qualname__", None) if callable(found) and not isinstance(own, dict) else None
    return name if isinstance(name, str) else ""


def _operator(dotted: str) -> Iterator[Part]:
    """Yield the functions of an operator that was defined in Python."""
    namespace, _, name = dotted.removeprefix("torch.ops.").partition(".")
    name = name.partition(".")[0]
    if namespace in _OWN_OPERATORS or not name:
        return
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    custom: Any = sys.modules.get("torch._library.custom_ops")
    defined = getattr(custom, "OPDEFS", {}).get(f"{namespace}::{name}")
    if defined is not None:
        yield ".init", defined._init_fn
        yield from ((f".{key}", _unwrapped(defined._backend_fns[key])) for key in sorted(defined._backend_fns, key=str))
    elif any(key.startswith(f"{namespace}/{name}/") for key in torch.library._impls):
        raise UntoldError(
            f"the code of torch.ops.{namespace}.{name} cannot be seen: define it with torch.library.custom_op"
        )
    else:  # compiled
        yield "(libraries)", [digest_of_file(path) for path in sorted(torch.ops.loaded_libraries)]


def _unwrapped(function: Any) -> Any:
    """Return the user's function in what torch has put around it."""
    while isinstance(function, types.FunctionType) and not is_foreign(function):
        names = function.__code__.co_freevars
        if "fn" not in names or function.__closure__ is None:
            break
        function = function.__closure__[names.index("fn")].cell_contents
    return function
