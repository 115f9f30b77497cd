"""Selects the paths of a job with ordered patterns, of which the first match decides. Pure.

The parts of a path are tried from the top, as in rsync and juicefs: ``a/``, ``a/b/``, ``a/b/c.jpg``. If one of them is excluded, everything
below it is excluded, too.

==========  ==================================================================
``*``       any characters but ``/``
``**``      any characters, ``/`` too
``?``       one character but ``/``
``[a-z]``   one of these; ``[!a-z]`` or ``[^a-z]``: none of these
``\\x``      the character x
``dir/``    directories only
``/a``      at the root only; a pattern without a slash in front matches the end of a path
==========  ==================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from prefeed.errors import JobSpecError
from prefeed.transfer.entries import key_of

WORK_NAME: Final = ".prefeed-sync"
"""Work directory of syncs in a destination. Never listed, copied or removed as data."""

_CLASS: Final = re.compile(r"\[([!^]?)(\]?[^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Rule:
    """An ``--exclude`` or ``--include`` pattern."""

    pattern: str
    excludes: bool


class Rules:
    """Filter of paths.

    Args:
        rules: In the order in which they are tried. A path that matches none is included.
        start: First key to include; empty for no limit.
        end: Last key to include; empty for no limit.

    Raises:
        JobSpecError: A pattern is invalid.
    """

    def __init__(self, rules: Sequence[Rule] = (), *, start: str = "", end: str = "") -> None:
        self._rules = [(compile_pattern(rule.pattern), rule.pattern.endswith("/"), rule.excludes) for rule in rules]
        self._start, self._end = key_of(start), key_of(end)

    def takes(self, path: str) -> bool:
        """Return whether to include a file of this path. Leftovers of killed syncs never are."""
        parts = path.split("/")
        if WORK_NAME in parts or not self._is_in_range(path):
            return False
        if not self._rules:
            return True
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return not any(self._excludes(each, is_directory=True) for each in above) and not self._excludes(path)

    def takes_below(self, directory: str) -> bool:
        """Return whether a directory may contain included paths. Call it for the directories above first."""
        directory = directory.rstrip("/")
        return directory.rpartition("/")[2] != WORK_NAME and not self._excludes(directory, is_directory=True)

    def is_past_end(self, path: str) -> bool:
        """Return whether this path and all later ones in key order are excluded."""
        return bool(self._end) and key_of(path) > self._end

    def _is_in_range(self, path: str) -> bool:
        if not self._start and not self._end:
            return True
        key = key_of(path)
        return self._start <= key and (not self._end or key <= self._end)

    def _excludes(self, path: str, *, is_directory: bool = False) -> bool:
        for pattern, is_for_directories, excludes in self._rules:
            if (is_directory or not is_for_directories) and pattern.search(path):
                return excludes
        return False


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern to a regular expression for ``search`` in a path.

    Raises:
        JobSpecError: The pattern is empty, or has a bracket that is not closed.
    """
    body = pattern.rstrip("/")
    if not body:
        raise JobSpecError(f"{pattern!r} is not a pattern; write one like *.tmp, or dir/ for a directory")
    anchor = r"\A" if body.startswith("/") else r"(?:\A|/)"
    try:
        return re.compile(anchor + _translate(body.lstrip("/"), pattern) + r"\Z", re.DOTALL)
    except re.error as err:
        raise JobSpecError(f"{pattern!r} is not a pattern: {err}") from err


def _translate(body: str, pattern: str) -> str:
    out, at = [], 0
    while at < len(body):
        char = body[at]
        if char == "*":
            double = body.startswith("**", at)
            out.append(".*" if double else "[^/]*")
            at += 2 if double else 1
        elif char == "?":
            out.append("[^/]")
            at += 1
        elif char == "[":
            match = _CLASS.match(body, at)
            if match is None:
                raise JobSpecError(f"{pattern!r} has a [ that is not closed; write \\[ for the character itself")
            inside = match[2].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
            out.append(f"(?!/)[{'^' if match[1] else ''}{inside}]")
            at = match.end()
        else:
            at += char == "\\" and at + 1 < len(body)
            out.append(re.escape(body[at]))
            at += 1
    return "".join(out)
