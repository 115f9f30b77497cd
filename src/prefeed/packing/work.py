"""One packing on its way: what all its steps look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefeed.packing.journal import Job
from prefeed.packing.order import Order
from prefeed.packing.place import Place
from prefeed.sources.manifest import Manifest

PackProgress = Callable[[int, int, int], None]
"""Called with (objects done, objects in all, bytes of those done since the last call)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is packed, in which order, and where to.

    Attributes:
        job: The options.
        place: Where the pack comes to lie.
        manifest: The listing of what is packed.
        order: Its objects in packing order.
        progress: Told how far it is.
    """

    job: Job
    place: Place
    manifest: Manifest
    order: Order
    progress: PackProgress
