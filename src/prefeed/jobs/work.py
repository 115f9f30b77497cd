"""What each kind of job does, and how it is summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from prefeed.config import Config
from prefeed.errors import JobSpecError
from prefeed.jobs.clearing import clear, free_removed
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncResult
from prefeed.jobs.places import located
from prefeed.jobs.rmr import RmrResult, relative_paths, remove, survey
from prefeed.jobs.spec import RMR, SYNC, WARMUP, JobSpec
from prefeed.jobs.sync import sync
from prefeed.jobs.warming import WarmEvents, warm_up
from prefeed.sampleset.locations import locate
from prefeed.sampleset.records import find
from prefeed.sources.credentials import FILE
from prefeed.sources.objectstore import endpoint_of
from prefeed.types import WarmResult

_FAILURES_KEPT: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a job ended: counts, and why it is not done altogether, or an empty text.

    Attributes:
        problem: Why it failed; empty when it did not.
        counts: By name.
        filled_origin: It was a sync that gave a set's origin all that its source has.
        result: What the work itself returned.
    """

    problem: str
    counts: Mapping[str, Any]
    filled_origin: bool = False
    result: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEvents:
    """Who is told how far the work is, in the caller's thread."""

    sync: SyncEvents = field(default_factory=SyncEvents)
    warm: WarmEvents = field(default_factory=WarmEvents)
    removing: Callable[[int, int], None] = lambda _files, _bytes: None


def do_job(spec: JobSpec, config: Config, events: WorkEvents) -> Done:
    """Do what a job asks for; **blocking** until it is done.

    Raises:
        PrefeedError: It could not be begun, or not be gone on with.
    """
    if spec.type == SYNC:
        return _sync(spec, config, events)
    if spec.type == WARMUP:
        return warmed(warm_up(spec.place, spec.warmup, config, events.warm))
    if spec.type == RMR:
        return removed(
            remove_named(spec.place, spec.paths, config, events=events, one_file_system=spec.one_file_system)
        )
    result = clear(spec.place, spec.paths, config)
    return Done(problem="", counts=asdict(result), result=result)


def sync_and_renew(
    source: str, target: str, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:
    """Sync, and let this home list the places anew that were changed; see ``sync``."""
    result = sync(source, target, options, config, events)
    if not options.dry:
        if result.num_copied or result.num_deleted_dst:
            free_removed(target, [], config, entries=False)
        if result.num_deleted_src:
            free_removed(source, [], config, entries=False)
    return result


def remove_named(
    url: str, paths: tuple[str, ...], config: Config, *, events: WorkEvents, everything: bool = False,
    one_file_system: bool = True,
) -> RmrResult:  # fmt: skip
    """Remove what lies at the paths at its origin, and what the node's tiers hold of it; see ``rmr.remove``."""
    root, settings = located(url, config)
    named = relative_paths(root, paths, everything=everything)
    survey(root, named, settings, one_file_system=one_file_system)
    try:
        return remove(root, named, settings, one_file_system=one_file_system, progress=events.removing)
    finally:
        free_removed(url, named, config)


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


def _sync(spec: JobSpec, config: Config, events: WorkEvents) -> Done:
    source, target, settings = spec.source, spec.target, config
    if spec.sample_set:
        found = find(spec.sample_set, config)
        settings = found.settings(config)  # with its credentials
        source, target = source or found.source_url, target or found.origin_url
        if found.source_url == found.origin_url and not (spec.source or spec.target):
            raise JobSpecError(
                f"the sample set {found.name} is read at its source, and nothing of it is copied: give syncOptions a destination"
            )
        is_whole = (source, target) == (found.source_url, found.origin_url) and not spec.sync.dry
    else:
        is_whole = False
    ends = _place(source, settings), _place(target, settings)
    done = synced(sync_and_renew(*ends, spec.sync, settings, events.sync))
    return Done(problem=done.problem, counts=done.counts, filled_origin=is_whole, result=done.result)


def _place(uri: str, settings: Config) -> str:
    """Return a place as URL: documents have the original's spellings, too.

    Raises:
        JobSpecError: They say which server it is on, and the settings name another: buckets of the same name are many.
    """
    if uri.startswith("sampleset://"):
        return uri
    place = locate(uri, "the place of a sync")
    if place.endpoint and endpoint_of(place.url, settings).rstrip("/") != place.endpoint.rstrip("/"):
        raise JobSpecError(
            f"{uri} is {place.url} at {place.endpoint}, which is not where {place.url} would be looked for: say so with "
            f'"endpoint": "{place.endpoint}" for it in {settings.home / FILE}, or with AWS_ENDPOINT_URL'
        )
    return place.url
