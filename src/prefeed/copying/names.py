"""Which paths of an origin can be files below a directory. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prefeed.types import ObjectInfo

_MOST_NAME_BYTES: Final = 255


def why_unsafe(path: str) -> str | None:
    """Return why no file of a copy may have this path; None when it may.

    A store's key is any text: one with ``..`` in it would leave the directory.
    """
    if not path or path.startswith("/"):
        return "is empty or absolute"
    if "\0" in path:
        return "has a zero byte in it"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has {part!r} between two slashes, which is no name of a file"
        if len(part) > _MOST_NAME_BYTES // 4 and len(os.fsencode(part)) > _MOST_NAME_BYTES:
            return f"has a name of more than {_MOST_NAME_BYTES} bytes in it"
    return None


def parents_of(path: str) -> Iterator[str]:
    """Yield the directories above a relative path, nearest first, without the root."""
    end = path.rfind("/")
    while end > 0:
        yield path[:end]
        end = path.rfind("/", 0, end)


def directories_of(paths: Iterable[str]) -> set[str]:
    """Return every directory that these files lie in, without the root."""
    found: set[str] = set()
    for path in paths:
        for parent in parents_of(path):
            if parent in found:
                break
            found.add(parent)
    return found


def sort_out(
    items: Sequence[ObjectInfo], *, folds_case: bool
) -> tuple[list[ObjectInfo], dict[str, str]]:  # fmt: skip
    """Return the objects that can lie side by side in a directory, by path, and for the other paths why they cannot.

    Args:
        items: A listing; of a path that it has twice the last one counts.
        folds_case: Whether the directory's file system takes ``A`` and ``a`` for the same name.
    """
    refused = {info.path: reason for info in items if (reason := why_unsafe(info.path))}
    safe = {info.path: info for info in items if info.path not in refused}
    directories = directories_of(safe)
    seen: set[str] = {directory.casefold() for directory in directories} if folds_case else set()
    kept = []
    for path in sorted(safe):  # sources list in any order; what fits is to be the same on every node
        if path in directories:
            refused[path] = "is a file and a directory at the origin"
        elif folds_case and path.casefold() in seen:
            refused[path] = "differs from another name in upper and lower case only, which is the same name there"
        else:
            kept.append(safe[path])
            if folds_case:
                seen.add(path.casefold())
    return kept, refused
