"""Versions of modules: of the installed distribution that a module comes from, or none for the user's own modules."""

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
from typing import Final

import xxhash

_SCHEMES: Final = ("stdlib", "platstdlib", "purelib", "platlib")
_PACKAGES: Final = ("site-packages", "dist-packages")
_COMPILED: Final = tuple(importlib.machinery.EXTENSION_SUFFIXES)


def is_below_packages(path: str) -> bool:
    """Return whether a file belongs to an installed package or to Python, by its name."""
    return path.startswith(_roots())


@functools.lru_cache(4096)
def version_of(module_name: str) -> str | None:
    """Return the version of an installed module, the bytes of a compiled one, or None for the user's own.

    A module in site-packages without a distribution has no version, and counts as the user's own.
    """
    top = module_name.partition(".")[0]
    if top in ("__main__", "__mp_main__"):
        return None
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    file = file_of(module_name) or file_of(top)
    if top != "prefeed" and (file is None or not is_below_packages(os.path.realpath(file))):
        return digest_of_file(file) if file is not None and file.endswith(_COMPILED) else None
    return version_of_distribution(top) or None


def file_of(module_name: str) -> str | None:
    """Return the file of a module, or its directory. No module is imported."""
    module = sys.modules.get(module_name)
    if module is not None:
        return getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    top, *rest = module_name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except Exception:  # noqa: BLE001 - any error of a finder or of a broken package
        return None
    if spec is None:
        return None
    folders = spec.submodule_search_locations or ()
    if not rest:
        return spec.origin if spec.has_location else next(iter(folders), None)
    paths = [os.path.join(folder, *rest) for folder in folders]
    return next((f for path in paths for f in (f"{path}.py", f"{path}/__init__.py") if os.path.isfile(f)), None)


@functools.cache
def version_of_distribution(name: str) -> str:
    """Return the version of the distribution with this name, or of those with this package; "" if there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        names = sorted(set(_packages().get(name, ())))
        return " ".join(f"{each} {importlib.metadata.version(each)}" for each in names)


def digest_of_file(path: str) -> str:
    """Return the hash of a file's bytes; "" for a file that cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return _digest_of_file(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(1024)
def _digest_of_file(path: str, _mtime_ns: int, _size_bytes: int) -> str:
    try:
        with open(path, "rb") as file:
            return xxhash.xxh3_128_hexdigest(file.read())
    except OSError:
        return ""


@functools.cache
def _packages() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@functools.cache
def _roots() -> tuple[str, ...]:
    found = {sysconfig.get_paths()[scheme] for scheme in _SCHEMES} | {*site.getsitepackages()}
    found.add(site.getusersitepackages())
    found.update(path for path in sys.path if os.path.basename(path) in _PACKAGES)  # of another environment
    return tuple(os.path.realpath(root) + os.sep for root in sorted(found))
