"""Records of jobs: one file per job, in the directory of the set or, without a set, in the home.

::

    <home>/samplesets/<set>/jobs/        or <home>/jobs/
        <id>.json                        spec, phase, process and node of the job; touched while the job runs
        <id>.log                         output of a detached job
        .records  .queue                 locked to change records; locked by the running job

If a process is killed, the kernel releases ``.queue``, and the next reader of the record sees that the process is dead, so no repair is
necessary. Processes of other nodes and containers are not visible here. They count as alive while they touch their record.

On file systems whose locks do not reach other nodes, the locks exclude only the processes of one node. Two further rules then apply:
only one process can create a record of a given name, and a job that finds another running job returns to the queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from prefeed.config import Config
from prefeed.errors import JobConflictError, JobError, JobNotFoundError
from prefeed.sampleset.documents import Document, require_name
from prefeed.sampleset.records import directory_of, names
from prefeed.system.clock import call_periodically
from prefeed.system.files import publish_private, write_private
from prefeed.system.locks import file_lock, try_flock
from prefeed.system.machine import Process, process_mark

FORMAT: Final = 1
PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
_JOBS: Final = "jobs"
_LOCK_SECONDS: Final = 60.0
_HEARTBEAT_SECONDS: Final = 20.0
"""Interval at which a job touches its record, so that other nodes know that it is alive."""

_STALE_SECONDS: Final = 600.0
"""Age of the record from which a job of another node counts as failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """Record of one job. Times are in seconds since 1970, 0.0 for not yet.

    Attributes:
        id: Name of the job.
        type: ``sync``, ``warmup``, ``rmr`` or ``clear``.
        sample_set: Name of the set, or empty.
        spec: The ``spec`` of the document, which cannot contain credentials.
        phase: ``Pending``, ``Running``, ``Succeeded`` or ``Failed``.
        message: Reason of the failure, or empty.
        created: Time of the record's creation. Jobs of a set run in this order.
        started: Time when the job started.
        finished: Time when the job ended.
        process: Process that runs the job.
        result: Counts by name.
    """

    id: str
    type: str
    sample_set: str = ""
    spec: Document = field(default_factory=dict)
    phase: str = PENDING
    message: str = ""
    created: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    process: Process = field(default_factory=Process)
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """True if the job succeeded or failed."""
        return self.phase in (SUCCEEDED, FAILED)


class JobRecords:
    """Records of the jobs of one set, or of the jobs without a set. **Processes**: any number at once.

    Args:
        directory: Directory of the records, created with the first one.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def of(cls, sample_set: str, config: Config) -> JobRecords:
        """Return the records of a set; an empty name gives those without a set."""
        return cls((directory_of(sample_set, config) if sample_set else config.home) / _JOBS)

    def read(self, name: str) -> JobRecord | None:
        """Return the current record of a job, or None. A job whose process is dead counts as failed."""
        require_name(name, "the name of a job")
        return _read(self.directory / f"{name}.json")

    def all(self) -> list[JobRecord]:
        """Return the current records of all jobs, oldest first."""
        found = [_read(file) for file in self.directory.glob("*.json")]
        return sorted((job for job in found if job is not None), key=lambda job: (job.created, job.id))

    def write(self, record: JobRecord) -> None:
        """Write a record atomically."""
        write_private(self.directory / f"{record.id}.json", _encode(record))

    def claim(self, record: JobRecord) -> None:
        """Create a record, and replace an ended job of the same name. Only one of several processes succeeds.

        Raises:
            JobConflictError: Another process created the record, or the file is not a record.
        """
        file = self.directory / f"{record.id}.json"
        if file.exists() and _read(file) is None:
            raise JobConflictError(f"{file} is not the record of a job: move it away, or give the job another name")
        with contextlib.suppress(FileNotFoundError):
            over = file.with_name(f".{file.name}.{process_mark()}.over")
            file.rename(over)
            over.unlink()
        if not publish_private(file, _encode(record)):
            raise JobConflictError(f"job {record.id} was just begun by another process; see `prefeed job list`")

    def update(self, name: str, **changes: Any) -> JobRecord:
        """Change fields of the record of a job of this process; return the record.

        Raises:
            JobError: The record was deleted, or names another process.
        """
        with self.lock():
            now = self.read(name)
            if now is None:
                raise JobError(f"the record of job {name} was deleted, perhaps with its sample set")
            if now.process != Process.of(os.getpid()):
                raise JobError(
                    f"job {name} is process {now.process.pid}'s of {now.process.place} now: this process sent no sign of life "
                    "for too long"
                )
            now = replace(now, **changes)
            self.write(now)
        return now

    @contextlib.contextmanager
    def keep_alive(self, name: str) -> Iterator[None]:
        """Touch the record regularly, so that other nodes count the job as alive."""
        file = self.directory / f"{name}.json"
        with call_periodically(lambda: os.utime(file), every_seconds=_HEARTBEAT_SECONDS, name="prefeed-job"):
            yield

    def log_of(self, name: str) -> Path:
        """Return the path of a detached job's log."""
        return self.directory / f"{name}.log"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock for changing records, for a short block. After 60 seconds of waiting, continue without it."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self.directory / ".records", within_seconds=_LOCK_SECONDS):
            yield

    @contextlib.contextmanager
    def wait_turn(self, name: str, *, wait: Any) -> Iterator[None]:
        """Wait until no earlier job is pending or running, then record the job as running.

        Args:
            name: Name of a pending job of this process.
            wait: Function that sleeps for a moment. Called repeatedly with the ids of the earlier jobs.
        """
        file = os.open(self.directory / ".queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not self._try_turn(file, name):
                wait([job.id for job in self._jobs_before(name)])
            yield
        finally:
            os.close(file)

    def _try_turn(self, file: int, name: str) -> bool:
        if not try_flock(file):
            return False
        if not self._jobs_before(name):
            self.update(name, phase=RUNNING, started=time.time())
            if not self._jobs_before(name):
                return True
            self.update(name, phase=PENDING, started=0.0)  # A node that the lock does not reach started a job.
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        return False

    def _jobs_before(self, name: str) -> list[JobRecord]:
        """Return the jobs that run, or are pending and older."""
        waiting = [job for job in self.all() if not job.is_over]
        at = next((index for index, job in enumerate(waiting) if job.id == name), len(waiting))
        return waiting[:at] + [job for job in waiting[at + 1 :] if job.phase == RUNNING]


def all_jobs(config: Config) -> list[tuple[JobRecords, JobRecord]]:
    """Return the jobs of all sets and those without a set, oldest first."""
    places = [JobRecords.of(name, config) for name in ("", *names(config))]
    found = [(place, job) for place in places for job in place.all()]
    return sorted(found, key=lambda pair: (pair[1].created, pair[1].id))


def find_job(name: str, config: Config) -> tuple[JobRecords, JobRecord]:
    """Return a job by its name. If several sets have one, return the newest.

    Raises:
        JobNotFoundError: No job has this name. The message lists the existing names.
    """
    require_name(name, "the name of a job")
    found = [pair for pair in all_jobs(config) if pair[1].id == name]
    if not found:
        there = ", ".join(sorted({job.id for _, job in all_jobs(config)})) or "none"
        raise JobNotFoundError(f"there is no job {name!r} in {config.home} (there: {there})", name=name)
    return found[-1]


def _fail_if_dead(record: JobRecord, touched: float) -> JobRecord:
    process = record.process
    if record.is_over or process.is_alive:
        return record
    message = f"its process {process.pid} ended before it was done"
    if process.pid and not process.is_here:
        if time.time() - touched < _STALE_SECONDS:
            return record
        message = f"its process {process.pid} on {process.place} has given no sign of life for {_STALE_SECONDS / 60:.0f} minutes"
    message += ": run it again with `prefeed job apply`"
    return replace(record, phase=FAILED, message=message, finished=record.finished or time.time())


def _encode(record: JobRecord) -> bytes:
    return json.dumps({"format": FORMAT, **asdict(record)}, indent=1, default=str).encode()


def _read(path: Path) -> JobRecord | None:
    try:
        with path.open("rb") as file:
            touched, values = os.fstat(file.fileno()).st_mtime, json.load(file)
        if values["format"] != FORMAT:
            return None
        return _fail_if_dead(msgspec.convert(values, JobRecord), touched)
    except (OSError, ValueError, TypeError, KeyError, msgspec.ValidationError):
        return None
