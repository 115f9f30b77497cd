"""What all messages have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Root of all messages; some hold credentials, so the text of none shows what is in it."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"
