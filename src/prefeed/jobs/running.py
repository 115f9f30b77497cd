"""Run jobs, and manage recorded jobs: queue, run, terminate and rerun.

``do_job`` runs a job of any type. ``apply_job`` records a job, waits for the earlier jobs of its set, and runs it::

    (none) → Pending → Running → Succeeded        Succeeded is final.
                │          └───→ Failed           Applying a failed job again reruns it.
                └──────────────→ Failed
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, Final
from uuid import uuid4

from prefeed.client.launch import server_environment
from prefeed.config import Config
from prefeed.errors import JobConflictError, JobError, PrefeedError, SampleSetError
from prefeed.jobs.clearing import clear, free_removed
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress, SyncResult
from prefeed.jobs.places import JobLocation, locate_place, lock_job_sets
from prefeed.jobs.records import FAILED, PENDING, RUNNING, SUCCEEDED, JobRecord, JobRecords
from prefeed.jobs.rmr import RmrResult, relative_paths, remove, survey
from prefeed.jobs.spec import RMR, SYNC, WARMUP, ResolvedJob, parse_spec, resolve_job
from prefeed.jobs.sync import sync_between
from prefeed.jobs.warming import WarmEvents, warm_up
from prefeed.sampleset.documents import Document
from prefeed.sampleset.records import SampleSet, record_progress
from prefeed.system.machine import Process
from prefeed.types import WarmResult

TERMINATE_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.1
_CLAIM_SECONDS: Final = 30.0
_FAILURES_KEPT: Final = 20


class TerminatedError(KeyboardInterrupt):
    """SIGTERM was received. Derived from KeyboardInterrupt, so that ``except Exception`` does not catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of a job.

    Attributes:
        problem: Reason of the failure; empty if the job succeeded.
        counts: Counts by name, for the record.
        result: Return value of the function that did the job.
    """

    problem: str
    counts: Mapping[str, Any]
    result: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvents:
    """Callbacks of a job, called in the caller's thread."""

    sync: SyncEvents = field(default_factory=SyncEvents)
    warm: WarmEvents = field(default_factory=WarmEvents)
    waiting: Callable[[Sequence[str]], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


# ---------------------------------------------------------------- types of jobs


def do_job(job: ResolvedJob, events: JobEvents) -> JobOutcome:
    """Run a job of any type. **Blocking** until the job has ended.

    Raises:
        PrefeedError: The job could not start or continue.
    """
    if job.type == SYNC:
        source, target = job.places
        return sync_outcome(sync_and_renew(source, target, job.sync, job.settings, events.sync))
    (place,) = job.places
    if job.type == WARMUP:
        return warm_outcome(warm_up(place, job.warmup, events.warm))
    if job.type == RMR:
        return removal_outcome(remove_named(place, job.paths, one_file_system=job.one_file_system))
    result = clear(place, job.paths)
    return JobOutcome(problem="", counts=asdict(result), result=result)


def sync_and_renew(
    source: JobLocation, target: JobLocation, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:
    """Sync two places, and drop this home's listings of changed ones. See ``sync``."""
    result = sync_between(source, target, options, config, events)
    if not options.dry:
        if result.num_copied or result.num_deleted_dst:
            free_removed(target, [], entries=False)
        if result.num_deleted_src:
            free_removed(source, [], entries=False)
    return result


def remove_named(place: JobLocation, paths: tuple[str, ...], *, one_file_system: bool = True) -> RmrResult:
    """Remove paths at the origin, and their objects in the node's tiers. See ``rmr.remove``."""
    named = relative_paths(place.url, paths)
    survey(place.url, named, place.settings, one_file_system=one_file_system)
    try:
        return remove(place.url, named, place.settings, one_file_system=one_file_system)
    finally:
        free_removed(place, named)


def sync_outcome(result: SyncResult) -> JobOutcome:
    """Convert the result of a sync."""
    counts = asdict(result)
    counts["failures"] = [failure["message"] for failure in counts["failures"][:_FAILURES_KEPT]]
    problem = ""
    if not result.is_complete:
        first = f", the first: {result.failures[0].message}" if result.failures else ""
        problem = result.full or f"{result.num_failed:,} of {result.num_listed:,} objects failed{first}"
    return JobOutcome(problem=problem, counts=counts, result=result)


def warm_outcome(result: WarmResult) -> JobOutcome:
    """Convert the result of a warm-up."""
    problem = f"{result.failed:,} of {result.objects:,} objects could not be fetched" if result.failed else ""
    return JobOutcome(problem=problem, counts=asdict(result), result=result)


def removal_outcome(result: RmrResult) -> JobOutcome:
    """Convert the result of a removal."""
    counts = {
        "removed": result.num_removed,
        "bytes": result.bytes_removed,
        "failures": result.failures[:_FAILURES_KEPT],
    }
    problem = (
        f"{len(result.failures):,} could not be removed, the first: {result.failures[0]}" if result.failures else ""
    )
    return JobOutcome(problem=problem, counts=counts, result=result)


# ---------------------------------------------------------------- recorded jobs


def apply_job(job: ResolvedJob, config: Config, events: JobEvents) -> JobRecord:
    """Run a job unless it has already succeeded; return its record.

    **Blocking**: until earlier jobs of the set and the job itself have ended. **Threads**: main thread only, because of SIGTERM.

    Raises:
        JobConflictError: The job is pending or running, or has succeeded with other options.
        TerminatedError: SIGTERM was received, which is also recorded.
    """
    records = JobRecords.of(job.set_name, config)
    before = _claim(job, records, events)
    return before if before is not None else _run_claimed(job, records, events)


def detach_job(job: ResolvedJob, config: Config, events: JobEvents) -> JobRecord:
    """Start a detached process that runs the job; return the record, which names the process.

    Raises:
        JobConflictError: As ``apply_job``.
        JobError: The process did not start the job.
    """
    reap_ended()
    records = JobRecords.of(job.set_name, config)
    before = _claim(job, records, events)
    if before is not None:
        return before
    with records.log_of(job.name).open("ab") as log:
        os.fchmod(log.fileno(), 0o600)
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed", "job", "work", job.name],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            env=server_environment(config, os.environ) | {"PREFEED_JOB_SET": job.set_name},
        )  # fmt: skip
    deadline = time.monotonic() + _CLAIM_SECONDS
    while time.monotonic() < deadline:
        record = records.read(job.name)
        if record is not None and (record.process.pid == process.pid or record.is_over):
            _children.append(process)
            return record
        if process.poll() is not None:
            raise JobError(f"the process of job {job.name} ended at once; see {records.log_of(job.name)}")
        select.select([], [], [], _LOOK_AGAIN_SECONDS / 10)
    raise JobError(f"the process of job {job.name} did not begin within {_CLAIM_SECONDS:g} s")


_children: list[subprocess.Popen[bytes]] = []
"""Processes of detached jobs that were started here and not yet reaped."""


def reap_ended() -> None:
    """Reap detached jobs of this process that have ended, so that they do not remain zombies."""
    _children[:] = [process for process in _children if process.poll() is None]


def work_detached(name: str, sample_set: str, config: Config, events: JobEvents) -> JobRecord:
    """Run a job in this process that another process recorded."""
    records = JobRecords.of(sample_set, config)
    with records.lock():
        record = records.read(name)
        if record is None or record.is_over:
            raise JobConflictError(f"job {name} is not waiting to run")
        record = replace(record, process=Process.of(os.getpid()))
        records.write(record)
    try:
        job = resolve_job(name, parse_spec(record.spec), record.spec, config)
    except PrefeedError as err:  # A set was deleted, or an environment variable is not set here.
        return records.update(name, phase=FAILED, message=str(err), finished=time.time())
    return _run_claimed(job, records, events)


def _run_claimed(job: ResolvedJob, records: JobRecords, events: JobEvents) -> JobRecord:
    """Wait for the turn of a job that this process recorded, and run it. Raises as ``apply_job``."""

    def wait(before: Sequence[str]) -> None:
        events.waiting(before)
        select.select([], [], [], _LOOK_AGAIN_SECONDS)

    holding = lock_job_sets(*job.places, sample_set=job.sample_set)
    try:
        with _raise_on_sigterm(), records.keep_alive(job.name), records.wait_turn(job.name, wait=wait), holding:
            done = do_job(job, events)
    except KeyboardInterrupt as err:
        # Re-raise, so that the process ends, for which ``terminate`` waits, and starts no other job of the same file.
        message = "terminated" if isinstance(err, TerminatedError) else "interrupted"
        records.update(job.name, phase=FAILED, message=message, finished=time.time())
        raise
    except PrefeedError as err:
        return records.update(job.name, phase=FAILED, message=str(err), finished=time.time())
    phase = SUCCEEDED if not done.problem else FAILED
    record = records.update(job.name, phase=phase, message=done.problem, finished=time.time(), result=dict(done.counts))
    if job.sample_set is not None and not done.problem:
        if job.fills_origin:
            record_progress(job.sample_set, sync_job=job.name, synced=time.time())
        elif job.type == WARMUP:
            record_progress(job.sample_set, warmup_job=job.name)
    return record


def copy_to_origin(
    found: SampleSet, settings: Config, *, copying: Callable[[int, int], None] | None = None
) -> None:  # fmt: skip
    """Copy a set's data from its source to its origin. Deletes nothing.

    The caller holds ``lock_set``. The copy is recorded as a job of the set, so that later jobs wait for it.

    Args:
        found: The set.
        settings: Settings of the set's node.
        copying: Called with the number of files and bytes copied so far.

    Raises:
        SampleSetError: Some objects could not be copied. The next attempt resumes.
        SourceError, JobError: As ``sync``.
    """

    def progress(so_far: SyncProgress) -> None:
        if copying is not None:
            copying(so_far.copying.num_copied, so_far.copying.bytes_copied)

    records = JobRecords(found.directory / "jobs")
    job = _record_start(found, records)
    try:
        with records.keep_alive(job.id):
            ends = locate_place(found.source_url, settings), locate_place(found.origin_url, settings)
            of_all = replace(settings, home=found.directory.parents[1])  # All syncs share one record of mounts.
            done = sync_outcome(sync_between(*ends, SyncOptions(), of_all, SyncEvents(progress=progress)))
    except PrefeedError as err:
        _record_end(records, job, JobOutcome(problem=str(err), counts={}, result=None))
        raise
    _record_end(records, job, done)
    if done.problem:
        raise SampleSetError(
            f"{done.problem}; apply again to resume the copy of {found.source_url} to {found.origin_url}"
        )


def _record_start(found: SampleSet, records: JobRecords) -> JobRecord:
    now = time.time()
    job = JobRecord(
        id=f"sync-{uuid4().hex[:8]}",
        type=SYNC,
        sample_set=found.name,
        spec={"type": "sync", "sampleSetRef": {"name": found.name}},
        phase=RUNNING,
        created=now,
        started=now,
        process=Process.of(os.getpid()),
    )
    with records.lock():
        records.write(job)
    record_progress(found, sync_job=job.id)
    return job


def _record_end(records: JobRecords, job: JobRecord, done: JobOutcome) -> None:
    phase = FAILED if done.problem else SUCCEEDED
    with records.lock():
        records.write(replace(job, phase=phase, message=done.problem, finished=time.time(), result=dict(done.counts)))


def terminate(records: JobRecords, record: JobRecord, *, within_seconds: float = TERMINATE_SECONDS) -> str:
    """End a job by SIGTERM, or SIGKILL if it does not end in time; return a sentence about it."""
    if record.is_over:
        return f"{record.id} has ended already: {record.phase}"
    if record.process.pid and not record.process.is_here:
        return (
            f"{record.id} is process {record.process.pid} of {record.process.place}, which cannot be ended from here: run "
            f"`prefeed job stop {record.id}` there"
        )
    try:
        descriptor = os.pidfd_open(record.process.pid)
    except OSError:
        descriptor = -1
    try:
        # A pidfd refers to one process even if its number is reused, so no other process can be signalled.
        if descriptor < 0 or not record.process.is_alive:
            return f"{record.id}: its process was gone already"
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        said = "ended"
        if not select.select([descriptor], [], [], within_seconds)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], within_seconds)
            said = f"killed, because it did not end within {within_seconds:g} s; its finished objects stay whole"
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    with records.lock():
        now = records.read(record.id)
        if now is not None and now.phase == FAILED:
            records.write(replace(now, message="terminated"))
    return f"{record.id}: {'queued' if record.phase == PENDING else 'running'} as process {record.process.pid}, {said}"


# ---------------------------------------------------------------- recording


def _claim(job: ResolvedJob, records: JobRecords, events: JobEvents) -> JobRecord | None:
    """Record the job as pending in this process; if it has succeeded already, return its record."""
    if job.terminate:
        for other in records.all():
            if not other.is_over:
                events.note(terminate(records, other))
    with records.lock():
        now = records.read(job.name)
        if now is not None and now.phase == SUCCEEDED:
            if _without_terminate(now.spec) == _without_terminate(job.document):
                return now
            raise JobConflictError(f"job {job.name} has succeeded and cannot be changed: give the new job another name")
        if now is not None and not now.is_over:
            raise JobConflictError(
                f"job {job.name} is {now.phase} as process {now.process.pid} of {now.process.place}; wait for it, or end it with "
                f"`prefeed job stop {job.name}`"
            )
        record = JobRecord(id=job.name, type=job.type, sample_set=job.set_name, spec=job.document)
        records.claim(replace(record, created=time.time(), process=Process.of(os.getpid())))
    return None


def _without_terminate(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "terminate"}


@contextlib.contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
