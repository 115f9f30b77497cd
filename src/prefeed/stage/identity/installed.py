"""Which code is installed, and so told by its version, and which is the user's own, and so told by what it says."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import xxhash

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
    """Return what tells a package that nobody gave a version: its code."""
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
