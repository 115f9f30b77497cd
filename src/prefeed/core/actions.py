"""What the scheduler asks its interpreter to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Placement(enum.IntEnum):
    """Where a fetched object goes."""

    RESIDENT = 1
    TRANSIENT = 2
    DIRECT = 3
    """To the readers that wait for it, and nowhere else."""


class Outcome(enum.IntEnum):
    """What a reader that asked for an object is told."""

    STORED = 1
    """It is in the tier now: look again."""
    INLINE = 2
    """The bytes come with the answer."""
    FAILED = 3
    """The origin refuses it for good; the answer holds the error."""
    READ_ORIGIN = 4
    """The server cannot help: read the origin yourself."""


@dataclass(slots=True)
class Ticket:
    """One object on its way from the origin; mutable, for its placement may change on arrival.

    Attributes:
        reserved_bytes: Bytes of the budget that are reserved for it.
        attempts: Requests made so far.
        started: Clock reading of the first request, in seconds; set by the interpreter.
        is_demanded: It was begun because a reader waits for it.
    """

    dataset: int
    object_id: int
    placement: Placement
    reserved_bytes: int
    attempts: int = 0
    started: float = 0.0
    is_demanded: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request the object from its origin, then tell the scheduler ``arrived`` or ``failed``."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Free:
    """Delete the entry from the tier, then tell the scheduler ``freed``."""

    dataset: int
    object_id: int
    stored_bytes: int
    was_resident: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell a waiting reader how its question ended.

    Attributes:
        was_held: The object was there when the reader asked: a hit, if the reader gets it.
    """

    token: int
    dataset: int
    object_id: int
    outcome: Outcome
    code: str = ""
    message: str = ""
    was_held: bool = False


Action = Fetch | Free | Answer
