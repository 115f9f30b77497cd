"""Parameters of a mount, passed from the command to the holder and its daemons."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from prefeed.fuse.wire import READ_BYTES

SUBTYPE: Final = "prefeed"
KIND: Final = f"fuse.{SUBTYPE}"
"""Type of mounts by prefeed in ``/proc/self/mountinfo``."""


SMALL_BYTES: Final = READ_BYTES
"""Objects up to this size are read with direct I/O. The kernel caches larger ones, or reads them itself."""

_MIN_READ_BYTES: Final = 128 * 1024
_FITTING: Final = 0.9


def read_bytes_for(sizes: NDArray[np.uint64]) -> int:
    """Compute the maximum read size of the kernel, so that nine of ten small objects need one read. Pure.

    With direct I/O the kernel first prepares all memory of a read, which takes a microsecond per page (ADR 38). A buffer of 1 MiB would cost
    that for each small file.
    """
    small = sizes[sizes <= SMALL_BYTES]
    if not small.size:
        return READ_BYTES
    most = int(np.quantile(small, _FITTING, method="higher"))
    return min(READ_BYTES, max(_MIN_READ_BYTES, 1 << max(0, most - 1).bit_length()))


class MountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of a mount.

    Attributes:
        url: URL of the origin without credentials.
        manifest: Directory of the manifest.
        point: Absolute path of the mount point.
        links: Names in the root of the mount, and the directories of this machine that they link to.
        others: True if other users may read the mount.
        copies: Directories that may contain large objects as local files.
        read_bytes: Maximum read size of the kernel in bytes.
    """

    url: str
    manifest: str
    point: str
    links: dict[str, str] = {}
    others: bool = False
    copies: tuple[str, ...] = ()
    read_bytes: int = READ_BYTES
