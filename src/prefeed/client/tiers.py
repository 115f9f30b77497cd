"""The memory tiers of the servers that this process was connected to. A forked child has its parent's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from prefeed.store.memory import NUM_FILES, MemoryReader

_MOST: Final = 8
"""Servers whose tiers are kept; those of earlier servers are empty."""

# Changed by single calls that need no lock, which a fork would leave held in the child.
_tiers: dict[str, MemoryReader] = {}


def keep_tier(instance: str, descriptors: Sequence[int]) -> None:
    """Own the descriptors of a server's tier from now on.

    Args:
        instance: Of the server.
        descriptors: As its welcome brought them; fewer where this process may open no more.
    """
    if len(descriptors) < NUM_FILES:
        for descriptor in descriptors:
            os.close(descriptor)
        return
    _tiers.setdefault(instance, MemoryReader(descriptors))
    for earlier in list(_tiers)[:-_MOST]:
        _tiers.pop(earlier, None)


def tier_of(instance: str) -> MemoryReader | None:
    """Return the tier of a server, None if this process was not connected to that server."""
    return _tiers.get(instance)
