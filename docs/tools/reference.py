"""The pages of the API: every public name, and a warning for each that has no docstring."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import griffe

log = logging.getLogger("mkdocs.prefeed")

GROUPS: Final = {
    "prefeed.torch": ("loaders", "Loaders"),
    "prefeed.prefetching": ("loaders", "Loaders"),
    "prefeed.loaders": ("loaders", "Loaders"),
    "prefeed.datasets": ("datasets", "Datasets and plans"),
    "prefeed.api": ("reading", "Reading"),
    "prefeed.files": ("reading", "Reading"),
    "prefeed.types": ("reading", "Reading"),
    "prefeed.stage_cache": ("stages", "Stage caches"),
    "prefeed.diagnose": ("measuring", "Measuring"),
    "prefeed.vision": ("vision", "Vision"),
    "prefeed.config": ("settings", "Settings"),
    "prefeed.errors": ("errors", "Errors"),
}
"""Where a name is defined: its page, and the title of that."""

OTHER: Final = ("other", "Other")
MODULES: Final = ("datasets", "vision", "errors")
"""Modules among the public names: their own names are public too."""


@cache
def pages(root: Path) -> dict[str, str]:
    """Return the text of each page by its place in the site, in the order of the navigation."""
    package = griffe.load("prefeed", search_paths=[root / "src"], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    names: dict[tuple[str, str], list[str]] = {group: [] for group in [*GROUPS.values(), OTHER]}
    for path, found in _public(package):
        names[_group(found.canonical_path)].append(path)
        for missing in _without_docstring(found, path):
            log.warning("%s is public and has no docstring", missing)
    return {
        f"api/{page}.md": f"# {title}\n\n" + "\n".join(f"::: {path}\n" for path in paths)
        for (page, title), paths in names.items()
        if paths
    }


def _public(package: griffe.Module) -> Iterator[tuple[str, griffe.Object | griffe.Alias]]:
    """Yield each public name and what it stands for, those of public modules last."""
    exported = [str(name) for name in package.exports or []]
    for name in exported:
        if name not in MODULES:
            yield f"prefeed.{name}", package[name]
    for module in (name for name in MODULES if name in exported):
        members = package[module]
        own = [name for name, member in members.members.items() if not (name.startswith("_") or member.is_alias)]
        for name in map(str, members.exports or own):
            yield f"prefeed.{module}.{name}", members[name]


def _group(path: str) -> tuple[str, str]:
    return next((group for home, group in GROUPS.items() if path.startswith(f"{home}.")), OTHER)


def _without_docstring(found: griffe.Object | griffe.Alias, path: str) -> Iterator[str]:
    """Yield the name, and the public methods of a class, that nothing is said about."""
    if not found.has_docstring and not found.is_attribute:
        yield path
    if found.is_class:
        for name, member in found.members.items():
            if not name.startswith("_") and member.is_function and not member.has_docstring:
                yield f"{path}.{name}"
