"""What each kind of job does, and how it is summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from prefeed.config import Config
from prefeed.jobs.clearing import clear, free_removed
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncResult
from prefeed.jobs.places import Place
from prefeed.jobs.rmr import RmrResult, relative_paths, remove, survey
from prefeed.jobs.spec import RMR, SYNC, WARMUP, Job
from prefeed.jobs.sync import sync_between
from prefeed.jobs.warming import WarmEvents, warm_up
from prefeed.types import WarmResult

_FAILURES_KEPT: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a job ended: counts, and why it is not done altogether, or an empty text.

    Attributes:
        problem: Why it failed; empty when it did not.
        counts: By name.
        result: What the work itself returned.
    """

    problem: str
    counts: Mapping[str, Any]
    result: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEvents:
    """Who is told how far the work is, in the caller's thread."""

    sync: SyncEvents = field(default_factory=SyncEvents)
    warm: WarmEvents = field(default_factory=WarmEvents)
    removing: Callable[[int, int], None] = lambda _files, _bytes: None


def do_job(job: Job, events: WorkEvents) -> Done:
    """Do what a job asks for; **blocking** until it is done.

    Raises:
        PrefeedError: It could not be begun, or not be gone on with.
    """
    if job.type == SYNC:
        source, target = job.places
        return synced(sync_and_renew(source, target, job.sync, job.settings, events.sync))
    (place,) = job.places
    if job.type == WARMUP:
        return warmed(warm_up(place, job.warmup, events.warm))
    if job.type == RMR:
        return removed(remove_named(place, job.paths, events=events, one_file_system=job.one_file_system))
    result = clear(place, job.paths)
    return Done(problem="", counts=asdict(result), result=result)


def sync_and_renew(
    source: Place, target: Place, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:
    """Sync, and let this home list the places anew that were changed; see ``sync``."""
    result = sync_between(source, target, options, config, events)
    if not options.dry:
        if result.num_copied or result.num_deleted_dst:
            free_removed(target, [], entries=False)
        if result.num_deleted_src:
            free_removed(source, [], entries=False)
    return result


def remove_named(
    place: Place, paths: tuple[str, ...], *, events: WorkEvents, everything: bool = False, one_file_system: bool = True
) -> RmrResult:  # fmt: skip
    """Remove what lies at the paths at its origin, and what the node's tiers hold of it; see ``rmr.remove``."""
    named = relative_paths(place.url, paths, everything=everything)
    survey(place.url, named, place.settings, one_file_system=one_file_system)
    try:
        return remove(place.url, named, place.settings, one_file_system=one_file_system, progress=events.removing)
    finally:
        free_removed(place, named)


def synced(result: SyncResult) -> Done:
    """Return how a sync ended."""
    counts = asdict(result)
    counts["failures"] = [failure["message"] for failure in counts["failures"][:_FAILURES_KEPT]]
    problem = ""
    if not result.is_complete:
        first = f", the first: {result.failures[0].message}" if result.failures else ""
        problem = result.full or f"{result.num_failed:,} of {result.num_listed:,} objects failed{first}"
    return Done(problem=problem, counts=counts, result=result)


def warmed(result: WarmResult) -> Done:
    """Return how a warm-up ended."""
    problem = f"{result.failed:,} of {result.objects:,} objects could not be fetched" if result.failed else ""
    return Done(problem=problem, counts=asdict(result), result=result)


def removed(result: RmrResult) -> Done:
    """Return how a removal ended."""
    counts = {
        "removed": result.num_removed,
        "bytes": result.bytes_removed,
        "failures": result.failures[:_FAILURES_KEPT],
    }
    problem = (
        f"{len(result.failures):,} could not be removed, the first: {result.failures[0]}" if result.failures else ""
    )
    return Done(problem=problem, counts=counts, result=result)
