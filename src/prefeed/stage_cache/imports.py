"""Source files of the modules that a function imports when it is called.

Such a module counts by its source and by that of all the user's modules that this source imports. Sources are parsed and not run. Once a
module is imported, its source is not read again until it is reloaded, because the process computes with what it has read. A module that
was not imported when its importer was first fingerprinted counts by nothing else, because its import must not change the key.
Start reading at ``sources_of``.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128_hexdigest

from prefeed.stage_cache.distributions import digest_of_file, file_of, version_of


class Import(NamedTuple):
    """An import statement: ``from ..a import b, c`` has level 2, name "a" and names "b" and "c"."""

    level: int
    name: str
    names: tuple[str, ...]


class _Source(NamedTuple):
    spec: Any
    digest: str
    package: str
    imports: tuple[Import, ...]


_sources: Final[dict[str, _Source]] = {}
_late: Final = set[str]()


def package_of(namespace: Mapping[str, Any]) -> str:
    """Return the package that relative imports of a module with these globals start at."""
    name = str(namespace.get("__name__") or "")
    return str(namespace.get("__package__") or (name if "__path__" in namespace else name.rpartition(".")[0]))


def modules_of(package: str, imports: Iterable[Import]) -> Iterator[str]:
    """Yield the names of modules that imports load, parents first."""
    for level, name, names in imports:
        base = name
        if level:
            try:
                base = importlib.util.resolve_name("." * level + name, package)
            except ImportError:  # beyond the top; the import raises as well
                continue
        if version_of(base) is not None:
            yield base
            continue
        parts = base.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        yield from (child for child in (f"{base}.{each}" for each in names) if file_of(child) is not None)


def loaded_modules(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the globals of the user's modules with these names, except modules that were imported late."""
    found = dict[str, dict[str, Any]]()
    for name in names:
        if version_of(name) is None:
            module = sys.modules.get(name)
            if module is None:
                _late.add(name)
            elif name not in _late:
                found[name] = vars(module)
    return found


def sources_of(package: str, imports: Iterable[Import]) -> list[tuple[str, str]]:
    """Return the modules that imports reach, each with its version or the hash of its source.

    The package that the imports stand in, and those above it, are loaded in any case and do not count.
    """
    found = dict[str, str]()
    waiting = list(modules_of(package, imports))
    for name in waiting:  # grows
        if name in found or f"{package}.".startswith(f"{name}."):
            continue
        version = version_of(name)
        if version is None:
            source = _source_of(name)
            version = source.digest
            waiting += modules_of(source.package, source.imports)
        found[name] = version
    return sorted(found.items())


def _source_of(name: str) -> _Source:
    path, spec = file_of(name) or "", getattr(sys.modules.get(name), "__spec__", None)
    known = _sources.get(name)
    if known is not None and known.spec is spec and (spec is not None or known.digest == digest_of_file(path)):
        return known
    content, imports = b"", tuple[Import, ...]()
    with suppress(OSError):
        content = Path(path).read_bytes()
    with suppress(SyntaxError, ValueError):
        imports = tuple(_imports_in(ast.parse(content))) if path.endswith(".py") else ()
    package = name if Path(path).name in ("__init__.py", name) else name.rpartition(".")[0]
    _sources[name] = _Source(spec, xxh3_128_hexdigest(content), package, imports)
    return _sources[name]


def _imports_in(tree: ast.AST) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(0, each.name, ()) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield Import(node.level, node.module or "", tuple(each.name for each in node.names))
