"""Writes docs/reference/licences.md: the licences of what prefeed needs, and of what its extras need, as their packages say."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "licences.md"
LEFT_OUT = {"dev", "docs"}
"""Extras for those who work on prefeed."""

HEAD = """\
# Licences of dependencies

prefeed is licensed under Apache-2.0. This page is written by `make licences`. It names what `pip install prefeed` installs, and below that
what the extras name themselves; torch and others bring packages of their own.

| package | for | licence |
|---|---|---|
"""


def names_of(requirements: list[str]) -> list[str]:
    """Return the names of the packages of requirements, without markers that ask for an extra."""
    return [re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0].lower() for line in requirements if "extra ==" not in line]


def needed() -> Iterator[tuple[str, str]]:
    """Yield each package once, and what it is for: first those of prefeed with those that they need, then the extras'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, str] = {}
    waiting = names_of(project["dependencies"])
    while waiting:
        name = waiting.pop(0)
        if name not in found and is_here(name):
            found[name] = "prefeed"
            waiting += names_of(requires(name) or [])
    for extra, requirements in project["optional-dependencies"].items():
        for name in names_of(requirements) if extra not in LEFT_OUT else ():
            found.setdefault(name, f"`prefeed[{extra}]`")
    yield from found.items()


def is_here(name: str) -> bool:
    """Return whether a package is installed: one for another system or Python is not."""
    try:
        metadata(name)
    except PackageNotFoundError:
        return False
    return True


def licence_of(name: str) -> str:
    """Return what a package says of its licence: the expression, or the classifiers, or the first line of the text."""
    about = metadata(name)
    classifiers = [
        line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")
    ]
    text = about.get("License-Expression") or ", ".join(classifiers) or (about.get("License") or "").splitlines()[:1]
    return (text if isinstance(text, str) else "".join(text)) or "not said"


def page() -> str:
    """Return the page."""
    rows = [
        (name, use, licence_of(name) if is_here(name) else "not installed where this was written")
        for name, use in needed()
    ]
    return HEAD + "".join(f"| {name} | {use} | {licence} |\n" for name, use, licence in rows)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {page().count(chr(10)) - HEAD.count(chr(10))} packages\n")
