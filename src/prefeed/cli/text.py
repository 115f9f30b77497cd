"""Text for terminals; imports nothing of prefeed, for every command needs it."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"""(:/{1,2})(?:[^\s'"@/:]*:(?!\d+/)[^\s'"@]*|[^\s'"@/]+)@""")
"""What stands before the host of a URL; a key may hold a slash, and a port is none. One slash: a URL taken for a path."""

_QUERY: Final = re.compile(r"""(:/{1,2}[^\s'"?]+\?)[^\s'"]+""")


def printable(text: object) -> str:
    """Return a text that can be printed: bytes of a path that are no UTF-8 are shown as ``\\udcff`` rather than not at all."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def masked(text: str) -> str:
    """Return the text of a message with ``***`` in place of users, keys and parameters of the URLs in it: people mistype commands."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))
