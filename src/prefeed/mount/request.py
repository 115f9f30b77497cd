"""What a mount shows, as it is handed from the command to the holder and its daemons."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefeed.fuse.wire import READ_BYTES

SUBTYPE: Final = "prefeed"
KIND: Final = f"fuse.{SUBTYPE}"
"""Type of the mounts in ``/proc/self/mountinfo``."""


SMALL_BYTES: Final = READ_BYTES
"""Objects up to this size are read with direct I/O; larger ones are kept in the kernel's cache, or read by the kernel itself."""

_LEAST_READ_BYTES: Final = 128 * 1024
_FITTING: Final = 0.9


def read_bytes_for(sizes: NDArray[np.uint64]) -> int:
    """Return how much the kernel may ask for at once: nine of ten small objects come in one piece. Pure.

    With direct I/O the kernel first makes ready all the memory that it asks for, a microsecond a page (ADR 38): a reader with
    room for 1 MiB would pay for all of it at each small file.
    """
    small = sizes[sizes <= SMALL_BYTES]
    if not small.size:
        return READ_BYTES
    most = int(np.quantile(small, _FITTING, method="higher"))
    return min(READ_BYTES, max(_LEAST_READ_BYTES, 1 << max(0, most - 1).bit_length()))


class MountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is mounted, and where.

    Attributes:
        url: The origin, without credentials.
        manifest: Directory of its listing.
        point: Absolute path of the mount point.
        links: Names below the mount point and the directories of this machine that they lead to.
        others: Other users may read as well.
        copies: Directories in which large objects are looked for, as files that the kernel can read by itself.
        read_bytes: Most that the kernel asks for at once.
    """

    url: str
    manifest: str
    point: str
    links: dict[str, str] = {}
    others: bool = False
    copies: tuple[str, ...] = ()
    read_bytes: int = READ_BYTES
