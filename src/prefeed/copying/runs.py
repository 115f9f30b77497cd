"""One run of ``prefeed stage`` as values: what is wanted, what is planned, who is told, what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefeed.copying.engine import CopyFailure, CopyProgress, CopySummary
from prefeed.copying.records import CopyRecord
from prefeed.types import ListingProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """What is wanted.

    Attributes:
        url: The origin, as it was typed: credentials in it are used, and appear nowhere.
        place: Directory on the file system that gets the copy.
        size_bytes: The most that it may take; None: what there is.
        order: Paths in the order in which they are to get a copy when not all can; None: small files first.
        allow_partial: A part of an origin that is no directory will do.
    """

    url: str
    place: Path
    size_bytes: int | None = None
    order: Sequence[str] | None = None
    allow_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """What a run is about to do.

    Attributes:
        num_objects: Objects of the origin.
        total_bytes: Their size.
        num_kept: Copies that are there already, and right.
        num_to_copy: Copies to be made.
        bytes_to_copy: Their size.
        num_left: Objects without room for a copy.
        left_bytes: Their size.
        num_removed: Copies removed because the origin has their objects no more.
        opens_per_gib: Opens that a GiB of the chosen copies saves.
        room_bytes: What the copy may take.
        why: What leaves no more room.
        has_links: Whether objects without a copy are links to the origin.
    """

    num_objects: int
    total_bytes: int
    num_kept: int
    num_to_copy: int
    bytes_to_copy: int
    num_left: int
    left_bytes: int
    num_removed: int
    opens_per_gib: int
    room_bytes: int
    why: str
    has_links: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvents:
    """Who is told how far a run is, in the caller's thread."""

    waiting: Callable[[int], None] = lambda _: None
    listing: ListingProgress = lambda _objects, _bytes: None
    planned: Callable[[StagePlan], None] = lambda _: None
    copying: Callable[[CopyProgress], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How a run ended.

    Attributes:
        record: The copy as it is now.
        plan: What was to be done.
        summary: What was copied in this run.
        failures: Objects that could not be copied, and why.
        is_usable: Whether each name of the origin is there, as a copy or as a link: what was asked for.
    """

    record: CopyRecord
    plan: StagePlan
    summary: CopySummary
    failures: tuple[CopyFailure, ...]
    is_usable: bool
