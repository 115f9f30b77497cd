"""Files that a client hands to its server, in the private directory of the socket: what is too much for a message.

A message names the file, and the server removes it once it has read it. What a killed client, or a server that was killed over
it, has left is removed by the next server.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prefeed.types import Buffer

_PREFIX: Final = "transit-"


def put_in_transit(directory: Path, parts: Iterable[Buffer], *, suffix: str = "") -> str:
    """Return the path of a new file that holds these parts, one after the other.

    Args:
        directory: The server's runtime directory.
        parts: Bytes.
        suffix: Says what is in it, where the message does not.

    Raises:
        OSError: It cannot be written; nothing is left of it.
    """
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=suffix, dir=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
    except BaseException:
        os.unlink(name)
        raise
    return name


def remove_left(directory: Path) -> None:
    """Remove the files that nobody asks for any more: no client of the server that begins has handed one over yet."""
    for path in directory.glob(f"{_PREFIX}*"):
        path.unlink(missing_ok=True)
