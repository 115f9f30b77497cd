"""What a mount shows, as it is handed from the command to the holder and its daemons."""

from __future__ import annotations

from typing import Final

import msgspec

SUBTYPE: Final = "prefeed"
KIND: Final = f"fuse.{SUBTYPE}"
"""Type of the mounts in ``/proc/self/mountinfo``."""


class MountRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is mounted, and where.

    Attributes:
        url: The origin, without credentials.
        manifest: Directory of its listing.
        point: Absolute path of the mount point.
        links: Names below the mount point and the directories of this machine that they lead to.
        others: Other users may read as well.
        copies: Directories in which large objects are looked for, as files that the kernel can read by itself.
    """

    url: str
    manifest: str
    point: str
    links: dict[str, str] = {}
    others: bool = False
    copies: tuple[str, ...] = ()
