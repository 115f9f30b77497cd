"""Jobs that are recorded: queued, run, ended, done again.

::

    (none) → Pending → Running → Succeeded        Succeeded is final.
                │          └───→ Failed           A failed one is run again when it is applied again.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

from prefeed.client.launch import server_environment
from prefeed.config import Config
from prefeed.errors import JobConflictError, JobError, PrefeedError
from prefeed.jobs.records import FAILED, PENDING, SUCCEEDED, JobRecord, Records
from prefeed.jobs.spec import JobSpec, parse_spec
from prefeed.jobs.work import Done, WorkEvents, do_job
from prefeed.sampleset.records import SampleSet, find, note_progress, working_at
from prefeed.sampleset.yaml_fields import Section
from prefeed.system.machine import Process

TERMINATE_SECONDS: Final = 10.0
_LOOK_AGAIN_SECONDS: Final = 0.1
_CLAIM_SECONDS: Final = 30.0


class TerminatedError(KeyboardInterrupt):
    """SIGTERM came; like Ctrl-C it is no error that anything below may swallow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvents:
    """Who is told, in the caller's thread."""

    work: WorkEvents
    waiting: Callable[[Sequence[str]], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None


def apply_job(spec: JobSpec, config: Config, events: JobEvents) -> JobRecord:
    """The job was done, now or before; return its record.

    **Blocking**: until it has ended, and before that for the jobs of the set that were there before. **Threads**: the
    main thread, which SIGTERM ends from here on.

    Raises:
        JobConflictError: It is under way, or has succeeded with other options.
        SampleSetNotFoundError: There is no such set.
        TerminatedError: SIGTERM came; that is recorded.
    """
    records = Records.of(spec.sample_set, config)
    before = _claimed(spec, config, records, events)
    return before if before is not None else run_claimed(spec, config, records, events)


def detach_job(spec: JobSpec, config: Config, events: JobEvents) -> JobRecord:
    """The job is run by a process of its own, which nothing here ends; return its record, which names that.

    Raises:
        JobConflictError: As ``apply_job``.
        JobError: The process did not begin.
    """
    collect_ended()
    records = Records.of(spec.sample_set, config)
    before = _claimed(spec, config, records, events)
    if before is not None:
        return before
    with records.log_of(spec.name).open("ab") as log:
        os.fchmod(log.fileno(), 0o600)
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed", "job", "work", spec.name],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/",
            env=server_environment(config, os.environ) | {"PREFEED_JOB_SET": spec.sample_set},
        )  # fmt: skip
    deadline = time.monotonic() + _CLAIM_SECONDS
    while time.monotonic() < deadline:
        record = records.read(spec.name)
        if record is not None and (record.process.pid == process.pid or record.is_over):
            _children.append(process)
            return record
        if process.poll() is not None:
            raise JobError(f"the process of job {spec.name} ended at once; see {records.log_of(spec.name)}")
        select.select([], [], [], _LOOK_AGAIN_SECONDS / 10)
    raise JobError(f"the process of job {spec.name} did not begin within {_CLAIM_SECONDS:g} s")


_children: list[subprocess.Popen[bytes]] = []
"""Detached jobs of this process that have not been seen to end."""


def collect_ended() -> None:
    """Ask after the detached jobs that this process began: those that have ended are no zombies from then on."""
    _children[:] = [process for process in _children if process.poll() is None]


def work_detached(name: str, sample_set: str, config: Config, events: JobEvents) -> JobRecord:
    """Do a job that another process has recorded, in this one."""
    records = Records.of(sample_set, config)
    with records.changing():
        record = records.read(name)
        if record is None or record.is_over:
            raise JobConflictError(f"job {name} is not waiting to be done")
        record = replace(record, process=Process.of(os.getpid()))
        records.write(record)
    spec = parse_spec(name, Section(dict(record.spec), "spec"))
    return run_claimed(spec, config, records, events)


def run_claimed(spec: JobSpec, config: Config, records: Records, events: JobEvents) -> JobRecord:
    """Do a job that this process has recorded as its own, when it is its turn; raises as ``apply_job``."""

    def wait(before: Sequence[str]) -> None:
        events.waiting(before)
        select.select([], [], [], _LOOK_AGAIN_SECONDS)

    try:
        with (
            _ended_by_sigterm(), records.beating(spec.name), records.turn_of(spec.name, wait=wait), _holding(spec, config)
        ):  # fmt: skip
            done = do_job(spec, config, events.work)
    except KeyboardInterrupt as err:
        # Whoever terminates waits for the process: it ends, and begins no other job of the same file.
        message = "terminated" if isinstance(err, TerminatedError) else "interrupted"
        records.note(spec.name, phase=FAILED, message=message, finished=time.time())
        raise
    except PrefeedError as err:
        return records.note(spec.name, phase=FAILED, message=str(err), finished=time.time())
    phase = SUCCEEDED if not done.problem else FAILED
    record = records.note(spec.name, phase=phase, message=done.problem, finished=time.time(), result=dict(done.counts))
    _tell_set(spec, config, done)
    return record


def terminate(records: Records, record: JobRecord, *, within_seconds: float = TERMINATE_SECONDS) -> str:
    """The job does not run any more; return a sentence that says what was done."""
    if record.is_over:
        return f"{record.id} has ended already: {record.phase}"
    if record.process.pid and not record.process.is_here:
        return (
            f"{record.id} is process {record.process.pid} of {record.process.place}, which cannot be ended from here: run "
            f"`prefeed job terminate {record.id}` there"
        )
    try:
        descriptor = os.pidfd_open(record.process.pid)
    except OSError:
        descriptor = -1
    try:
        # The descriptor stays the process's own: when that is still the job's, nobody else can be hit any more.
        if descriptor < 0 or not record.process.is_alive:
            return f"{record.id}: its process was gone already"
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        said = "ended"
        if not select.select([descriptor], [], [], within_seconds)[0]:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], within_seconds)
            said = f"killed, because it did not end within {within_seconds:g} s; what it did stays whole"
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    with records.changing():
        now = records.read(record.id)
        if now is not None and now.phase == FAILED:
            records.write(replace(now, message="terminated"))
    return f"{record.id}: {'queued' if record.phase == PENDING else 'running'} as process {record.process.pid}, {said}"


# ---------------------------------------------------------------- recording


def _claimed(spec: JobSpec, config: Config, records: Records, events: JobEvents) -> JobRecord | None:
    """Record the job as waiting, in this process; return its record instead when it has succeeded already."""
    if spec.sample_set:
        find(spec.sample_set, config)
    if spec.terminate:
        for job in records.all():
            if not job.is_over:
                events.note(terminate(records, job))
    with records.changing():
        now = records.read(spec.name)
        if now is not None and now.phase == SUCCEEDED:
            if _without_terminate(now.spec) == _without_terminate(spec.document):
                return now
            raise JobConflictError(
                f"job {spec.name} has succeeded, and cannot be changed after that: give the new one another name"
            )
        if now is not None and not now.is_over:
            raise JobConflictError(
                f"job {spec.name} is {now.phase} as process {now.process.pid} of {now.process.place}; wait for it, or end it with "
                f"`prefeed job terminate {spec.name}`"
            )
        own = Process.of(os.getpid())
        record = JobRecord(id=spec.name, type=spec.type, sample_set=spec.sample_set, spec=dict(spec.document))
        records.claim(replace(record, created=time.time(), process=own))
    return None


def _without_terminate(document: Any) -> dict[str, Any]:
    return {name: value for name, value in dict(document).items() if name != "terminate"}


def _tell_set(spec: JobSpec, config: Config, done: Done) -> None:
    if not spec.sample_set or done.problem:
        return
    found = find(spec.sample_set, config)
    if spec.type == "sync" and done.filled_origin:
        note_progress(found, sync_job=spec.name, synced=time.time())
    elif spec.type == "warmup":
        note_progress(found, warmup_job=spec.name)


@contextlib.contextmanager
def _holding(spec: JobSpec, config: Config) -> Iterator[SampleSet | None]:
    """The set is not deleted, nor brought up by another process, meanwhile."""
    if not spec.sample_set:
        yield None
        return
    found = find(spec.sample_set, config)
    with working_at(found):
        yield found


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    def end(_signal: int, _frame: FrameType | None) -> None:
        raise TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
