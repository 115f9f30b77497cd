"""In which phase a sample set is, from what is known and seen. Pure.

::

    "" ─→ Bound ─→ Mount ─→ Syncing ─→ PartialReady ─→ Ready
                               └─────→ SyncFailed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NONE: Final = ""
BOUND: Final = "Bound"
MOUNT: Final = "Mount"
SYNCING: Final = "Syncing"
SYNC_FAILED: Final = "SyncFailed"
PARTIAL_READY: Final = "PartialReady"
READY: Final = "Ready"

INTERRUPTED: Final = "what brought the sample set up was killed; `prefeed sampleset apply` goes on with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a phase follows from.

    Attributes:
        is_recorded: The set was applied, and not deleted.
        is_worked_at: A process brings it up.
        has_server: Its node server answers.
        has_begun: The source could be opened, and is being listed or copied, or was.
        is_complete: What it holds is known, and copied to where it is read.
        error: Why the last try ended; empty: it did not, or well.
        num_ready: Nodes of the set that serve it, as far as this one knows.
        partitions: Nodes that were asked for.
    """

    is_recorded: bool = True
    is_worked_at: bool = False
    has_server: bool = False
    has_begun: bool = False
    is_complete: bool = False
    error: str = ""
    num_ready: int = 0
    partitions: int = 1


def phase_of(facts: Facts) -> str:
    """Return the phase, in the original's words."""
    if not facts.is_recorded:
        return NONE
    if facts.has_begun and not facts.is_worked_at and (facts.error or not facts.is_complete):
        return SYNC_FAILED
    if not facts.has_server:
        return BOUND
    if facts.is_worked_at and facts.has_begun and not facts.is_complete:
        return SYNCING
    if not facts.is_complete:
        return MOUNT
    return READY if facts.num_ready >= facts.partitions else PARTIAL_READY


def error_of(facts: Facts) -> str:
    """Return what is to be said of a failure; empty when there is none."""
    if facts.error or facts.is_worked_at or not facts.has_begun or facts.is_complete:
        return facts.error
    return INTERRUPTED
