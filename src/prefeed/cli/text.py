"""Escapes and masks text for terminals. Imports nothing of prefeed, because every command imports this module."""

from __future__ import annotations

import re
from typing import Final

_USER: Final = re.compile(r"""(:/{1,2})(?:[^\s'"@/:]*:(?!\d+/)[^\s'"@]*|[^\s'"@/]+)@""")
"""User and key in front of the host of a URL. A key may contain a slash. A URL that was parsed as a path has one slash."""

_QUERY: Final = re.compile(r"""(:/{1,2}[^\s'"?]+\?)[^\s'"]+""")


def printable(text: object) -> str:
    """Escape bytes of a path that are not UTF-8, as ``\\udcff``, so that the text can be printed."""
    return str(text).encode("utf-8", "backslashreplace").decode("utf-8")


def mask_secrets(text: str) -> str:
    """Replace users, keys and parameters of the URLs in a message by ``***``, because messages repeat mistyped commands."""
    return _QUERY.sub(r"\1***", _USER.sub(r"\1***@", text))
