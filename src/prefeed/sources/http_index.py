r"""Listings of plain HTTP servers, which have none of their own: an index file, else WebDAV.

The index is one UTF-8 text file in the root, named by the setting ``index``. Make it with::

    find . -type f -printf '%P\t%s\n' > index.txt

One object a line: its path relative to the root, then, optionally, its size in bytes.

* With a tab in the line, the last tab ends the path and a decimal size follows; an empty size means unknown.
* Without a tab, a line that ends in spaces and decimal digits has that size; any other line is all path. A path
  that itself ends in a space and digits therefore needs a tab and a size.
* Empty lines and lines that begin with ``#`` are skipped; write ``./#name`` for a path that begins with ``#``.
* A leading ``./`` or ``/`` is dropped. The index does not list itself.
* Paths are written as they are, not percent-encoded; they are encoded when requested.

An index holds no versions: a file that changes without changing its size is not noticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from prefeed.errors import CannotListError
from prefeed.types import ObjectInfo

_SPACED = re.compile(r"(.*[^ ]) +([0-9]+)")


def parse_index(chunks: Iterable[bytes], *, name: str) -> Iterator[list[ObjectInfo]]:
    """Yield the objects of an index file given in pieces cut anywhere; the format is in the module's docstring.

    Args:
        chunks: The file's bytes.
        name: URL of the index, for messages.

    Raises:
        CannotListError: A line that is no path and size; the message holds its number.
    """
    rest = b""
    number = 0
    for chunk in chunks:
        lines = (rest + bytes(chunk)).split(b"\n")
        rest = lines.pop()
        yield from _parse_lines(lines, number, name)
        number += len(lines)
    yield from _parse_lines([rest], number, name)


def _parse_lines(lines: list[bytes], number: int, name: str) -> Iterator[list[ObjectInfo]]:
    objects = [info for at, line in enumerate(lines, number + 1) if (info := parse_line(line, at, name)) is not None]
    if objects:
        yield objects


def parse_line(line: bytes, number: int, name: str) -> ObjectInfo | None:
    """Return the object that a line of an index lists; None for a comment, an empty line or the index itself."""
    text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
    if not text.strip() or text.startswith("#"):
        return None
    path, tab, size = text.rpartition("\t")
    if not tab:
        spaced = _SPACED.fullmatch(text)
        path, size = (spaced[1], spaced[2]) if spaced else (text, "")
    if size and not (size.isascii() and size.isdigit()):
        raise CannotListError(
            f"line {number} of {name}: {size[:40]!r} after the tab is not a size in bytes", line=number, index=name
        )
    path = path.removeprefix("./").lstrip("/")
    if not path or path == name.rpartition("/")[2]:
        return None
    return ObjectInfo(path=path, size_bytes=int(size) if size else -1, version="")
