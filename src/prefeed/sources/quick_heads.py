"""Heads of answers in HTTP/1.1, as ``quick_fetches`` takes them: whether what follows is simply the object, or the part, and its version."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WHOLE: Final = -1
"""In place of the first byte of a part: the whole object."""

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 (\d{3})[ \r]")
_CONTENT_RANGE: Final = re.compile(rb"bytes (\d+)-(\d+)/(\d+)")


class Head(NamedTuple):
    """What the head of an answer says.

    Attributes:
        status: Its number; 0: it has none.
        is_wanted: The bytes that were asked for follow, and nothing else; else only ``status`` is told.
        version: Etag of the object, else ``""``.
        modified_seconds: Its time, since 1970, where there is no etag; 0 when the server told none.
        object_bytes: Of a part: size of the whole object; else 0.
        keeps: The connection can be used again.
    """

    status: int
    is_wanted: bool = False
    version: str = ""
    modified_seconds: int = 0
    object_bytes: int = 0
    keeps: bool = True


NO_HEAD: Final = Head(0)


def parse_head(head: bytes, first: int, size_bytes: int) -> Head:
    """Return what a head says.

    Args:
        head: Its lines, each with its end.
        first: First byte of the part that was asked for; ``WHOLE``: the whole object was.
        size_bytes: Number of bytes that were asked for.
    """
    found = _STATUS_LINE.match(head)
    status = int(found[1]) if found else 0
    if status != (200 if first == WHOLE else 206):
        return Head(status)
    lower = head.lower()
    length = _header(lower, lower, b"content-length")
    object_bytes = _size_of_whole(_header(lower, lower, b"content-range"), first, size_bytes)
    if not length.isdigit() or int(length) != size_bytes or _is_odd(lower) or object_bytes < 0:
        return Head(status)
    etag = _header(head, lower, b"etag").decode("latin-1")
    changed = "" if etag else _header(head, lower, b"last-modified").decode("latin-1")
    keeps = b"close" not in _header(lower, lower, b"connection")
    return Head(status, True, etag, _seconds(changed), object_bytes, keeps)


def _header(head: bytes, lower: bytes, name: bytes) -> bytes:
    """Return the value of a header, as ``head`` spells it; empty without one."""
    begins = lower.find(b"\r\n%b:" % name)
    if begins < 0:
        return b""
    begins += len(name) + 3
    return head[begins : head.index(b"\r\n", begins)].strip()


def _size_of_whole(content_range: bytes, first: int, size_bytes: int) -> int:
    """Return the size of the object that a part is of, 0 of a whole one; -1: it is not the part that was asked for, or no part was."""
    if first == WHOLE:
        return -1 if content_range else 0
    found = _CONTENT_RANGE.fullmatch(content_range)
    is_it = found is not None and (int(found[1]), int(found[2])) == (first, first + size_bytes - 1)
    return int(found[3]) if found is not None and is_it else -1


def _is_odd(lower: bytes) -> bool:
    """Return whether the body is not simply the object, or it is not certain where it ends."""
    encoding = _header(lower, lower, b"content-encoding")
    return (
        b"\r\ntransfer-encoding:" in lower
        or encoding not in (b"", b"identity")
        or lower.count(b"\r\ncontent-length:") != 1
        or b"\r\n " in lower
        or b"\r\n\t" in lower
    )


def _seconds(text: str) -> int:
    """Return a date of HTTP in seconds since 1970; 0 for none, and for what is no date."""
    if not text:
        return 0
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - most servers send etags

    try:
        return int(parsedate_to_datetime(text).timestamp())
    except ValueError:
        return 0
