"""Which code is installed, and so told by its version, and which is the user's own, and so told by what it says.

A name in a package counts by the package's version. What was put under such a name in its place is looked for, and counts by
what it says: under the name itself, in its class, in the module that it is found in and those of the same package that this
module uses (``patches_of``). Deeper is not looked: that is for audits.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter, is_
from types import ModuleType
from typing import Any, Final, NamedTuple

import xxhash

from prefeed.stage_cache.identity.parts import Anatomy, Part, UntoldError

_SCHEMES = ("stdlib", "platstdlib", "purelib", "platlib")
_PACKAGES = ("site-packages", "dist-packages")
_WORKS_WITH = {"torchvision": ("PIL", "numpy")}
"""Packages whose results are made by others, which the user's code need not name."""


@functools.lru_cache(4096)
def is_installed(module_name: str, file: str | None) -> bool:
    """Return whether code of a module lies below site-packages or the standard library; a file alone may not be known."""
    if module_name in ("__main__", "__mp_main__"):
        return False
    if module_name.partition(".")[0] == "prefeed":  # also where it is installed editable
        return True
    if file is None:
        return module_name.partition(".")[0] in sys.stdlib_module_names
    return file.startswith("<frozen ") or os.path.realpath(file).startswith(_roots())


def is_below_packages(path: str) -> bool:
    """Return whether a file belongs to an installed package or to Python, as far as its name tells."""
    return path.startswith(_roots())


def is_installed_module(module: ModuleType) -> bool:
    """Return whether a module is installed."""
    return is_installed(module.__name__, getattr(module, "__file__", None) or _first(getattr(module, "__path__", ())))


def is_installed_name(module_name: str) -> bool:
    """Return whether the module of this name is installed; one that was never imported counts by its top package."""
    for name in (module_name, module_name.partition(".")[0]):
        module = sys.modules.get(name)
        if module is not None:
            return is_installed_module(module)
    return is_installed(module_name, _origin(module_name.partition(".")[0]))


@functools.cache
def version_of(module_name: str) -> str:
    """Return the version of the distribution that a module comes from, of Python for the standard library."""
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return " ".join([_own_version(top), *map(_own_version, _WORKS_WITH.get(top, ()))])


def _own_version(top: str) -> str:
    version = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(version, str):
        return version
    names = _distributions().get(top, [])
    versions = " ".join(f"{name} {importlib.metadata.version(name)}" for name in sorted(set(names)))
    return versions or _digest_of_package(top)


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def _digest_of_package(top: str) -> str:
    """Return what tells a package without a version: its code."""
    module = sys.modules.get(top)
    roots = list(getattr(module, "__path__", ()))
    single = getattr(module, "__file__", None) or (None if roots else _origin(top))
    files = [single] if isinstance(single, str) and not roots else []
    for root in roots or ([os.path.dirname(single)] if isinstance(single, str) and _is_init(single) else []):
        for folder, _, names in os.walk(root):
            files += [os.path.join(folder, name) for name in names if name.endswith(_CODE_SUFFIXES)]
    told = sorted((os.path.relpath(path, os.path.dirname(files[0])), digest_of_file(path)) for path in files)
    return xxhash.xxh3_128_hexdigest(repr(told).encode()) if told else ""


def _is_init(path: str) -> bool:
    return os.path.basename(path).startswith("__init__.")


_CODE_SUFFIXES = (".py", *importlib.machinery.EXTENSION_SUFFIXES)


def binary_of(dotted: str) -> str:
    """Return what tells the compiled module of the user's own that a name comes from by its bytes; "" for others."""
    for name in dotted.split(":"):  # of a class and what it made, see ``anatomy.py``
        while name:
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
                return "" if is_installed(name, file) else digest_of_file(file)
            name = name.rpartition(".")[0]
    return ""


@functools.cache
def digest_of_file(path: str) -> str:
    """Return what tells a file by its bytes, read once; "" for one that cannot be read."""
    try:
        with open(path, "rb") as file:
            return xxhash.xxh3_128_hexdigest(file.read())
    except OSError:
        return ""


@functools.cache
def _roots() -> tuple[str, ...]:
    found = {sysconfig.get_paths()[scheme] for scheme in _SCHEMES} | set(site.getsitepackages())
    found.add(site.getusersitepackages())
    found.update(path for path in sys.path if os.path.basename(path) in _PACKAGES)  # of another environment
    return tuple(os.path.realpath(root) + os.sep for root in sorted(found))


@functools.cache
def _origin(top: str) -> str | None:
    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # noqa: BLE001 - whatever a finder, or a broken package, makes of it
        return None
    if spec is None:
        return None
    return spec.origin if spec.has_location else _first(spec.submodule_search_locations or ())


def _first(paths: Any) -> str | None:
    return next(iter(paths), None)


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
"""Packages whose module alone is looked at."""

_OWN_OPERATORS: Final = frozenset(
    {"aten", "prim", "prims", "torch", "torchvision", "image", "quantized", "higher_order"}
)
"""Namespaces of operators that come with torch and torchvision, known by their versions."""


@dataclass(frozen=True, slots=True)
class PatchedIn:
    """What was put into an installed module, and into modules of its package that it uses, that many steps away."""

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
