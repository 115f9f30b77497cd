"""The copying of a sample set's data to where it is read: a recorded sync of ``prefeed.jobs``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

from prefeed.config import Config
from prefeed.errors import PrefeedError, SampleSetError
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress
from prefeed.jobs.records import FAILED, RUNNING, SUCCEEDED, JobRecord, Records
from prefeed.jobs.sync import sync
from prefeed.jobs.work import Done, synced
from prefeed.sampleset.records import SampleSet, note_progress
from prefeed.system.machine import Process


def copy_to_origin(
    found: SampleSet, settings: Config, *, copying: Callable[[int, int], None] | None = None
) -> None:  # fmt: skip
    """The origin has all that the source has. Nothing is deleted at either.

    Called while the set is held by ``working_at``, as each of its jobs does: this one is recorded among them, so that those
    which come later wait for it.

    Args:
        found: The set.
        settings: Of its node: its credentials are below their home.
        copying: Told how many files and bytes were copied so far.

    Raises:
        SampleSetError: Not all could be copied; what was stays, and the next try goes on.
        SourceError, JobError: As ``jobs.sync``.
    """

    def progress(so_far: SyncProgress) -> None:
        if copying is not None:
            copying(so_far.copying.num_copied, so_far.copying.bytes_copied)

    records = Records(found.directory / "jobs")
    job = _begun(found, records)
    try:
        with records.beating(job.id):
            done = synced(
                sync(found.source_url, found.origin_url, SyncOptions(), settings, SyncEvents(progress=progress))
            )
    except PrefeedError as err:
        _end(records, job, Done(problem=str(err), counts={}, result=None))
        raise
    _end(records, job, done)
    if done.problem:
        raise SampleSetError(f"{done.problem}; apply again to go on with {found.source_url} to {found.origin_url}")


def _begun(found: SampleSet, records: Records) -> JobRecord:
    now = time.time()
    job = JobRecord(
        id=f"sync-{uuid4().hex[:8]}",
        type="sync",
        sample_set=found.name,
        spec={"type": "sync", "sampleSetRef": {"name": found.name}},
        phase=RUNNING,
        created=now,
        started=now,
        process=Process.of(os.getpid()),
    )
    with records.changing():
        records.write(job)
    note_progress(found, sync_job=job.id)
    return job


def _end(records: Records, job: JobRecord, done: Done) -> None:
    phase = FAILED if done.problem else SUCCEEDED
    with records.changing():
        records.write(replace(job, phase=phase, message=done.problem, finished=time.time(), result=dict(done.counts)))
