"""What became of each job: one file a job, in the set's directory or, without a set, in the home.

::

    <home>/samplesets/<set>/jobs/        or <home>/jobs/
        <id>.json                        what it is to do, how far it is, whose process it is, on which node; touched meanwhile
        <id>.log                         what a detached one says
        .records  .queue                 held by who changes records; held by the job that runs

A process that is killed lets go of ``.queue`` by that, and its record says of which process it was: nothing has to be put
right before the next job can run. Whether a process of another node, or of another container, is alive cannot be seen
here: it touches its record while it is.

Where locks do not reach the other nodes, ``.records`` and ``.queue`` exclude those of this one, and the rest is done by the
records themselves: each is made under its name by one process only, and a job that finds another one running beside it
goes back into the queue.
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
"""How often a job says that it is under way, to those who cannot see its process."""

_STALE_SECONDS: Final = 600.0
"""A job of another node that has not said so for that long has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What is known of one job.

    Attributes:
        id: Its name.
        type: ``sync``, ``warmup``, ``rmr`` or ``clear``.
        sample_set: The set that it is done for; empty: none.
        spec: What it is to do, as the document has it; no credentials can be in it.
        phase: ``Pending``, ``Running``, ``Succeeded`` or ``Failed``.
        message: Why it failed, or what it waits for.
        created: Seconds since 1970; jobs of a set run in this order.
        started: When it began to run; 0.0: not yet.
        finished: When it ended; 0.0: not yet.
        process: Who does it.
        result: Counts.
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
        """Whether it has ended, well or not."""
        return self.phase in (SUCCEEDED, FAILED)


class Records:
    """The records of the jobs of one set, or of those without a set. **Processes**: any number at once.

    Args:
        directory: Made when the first job is written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @classmethod
    def of(cls, sample_set: str, config: Config) -> Records:
        """Return those of a set; of the home when the name is empty."""
        return cls((directory_of(sample_set, config) if sample_set else config.home) / _JOBS)

    def read(self, name: str) -> JobRecord | None:
        """Return a job as it is now: one whose process is gone has failed."""
        require_name(name, "the name of a job")
        return _read(self.directory / f"{name}.json")

    def all(self) -> list[JobRecord]:
        """Return all jobs as they are now, oldest first."""
        found = [_read(file) for file in self.directory.glob("*.json")]
        return sorted((job for job in found if job is not None), key=lambda job: (job.created, job.id))

    def write(self, record: JobRecord) -> None:
        """The job is recorded so, whole or not at all."""
        write_private(self.directory / f"{record.id}.json", _encode(record))

    def claim(self, record: JobRecord) -> None:
        """The job is recorded so in the place of one that is over, if there is one; of all who claim it, one has it.

        Raises:
            JobConflictError: Another process has it.
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
        """Change what is recorded of a job of this process; return the record.

        Raises:
            JobError: It is gone, or another process's.
        """
        with self.lock():
            now = self.read(name)
            if now is None:
                raise JobError(f"the record of job {name} is gone: perhaps its sample set was deleted")
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
        """Other nodes see meanwhile that the job is under way."""
        file = self.directory / f"{name}.json"
        with call_periodically(lambda: os.utime(file), every_seconds=_HEARTBEAT_SECONDS, name="prefeed-job"):
            yield

    def log_of(self, name: str) -> Path:
        """Return the file that a detached job writes to."""
        return self.directory / f"{name}.log"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """No other process changes records meanwhile; what is done inside is short. A lock that is never freed is not waited for."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(self.directory / ".records", within_seconds=_LOCK_SECONDS):
            yield

    @contextlib.contextmanager
    def wait_turn(self, name: str, *, wait: Any) -> Iterator[None]:
        """It is this job's turn, and it is recorded as running: none that was there before it runs or waits.

        Args:
            name: Of a job that is recorded as pending, of this process.
            wait: Called with the jobs before it while there are any; blocks for a moment.
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
            self.update(
                name, phase=PENDING, started=0.0
            )  # the lock does not reach another node: each has seen the other
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)
        return False

    def _jobs_before(self, name: str) -> list[JobRecord]:
        """Return the jobs that are under way, or were there first and wait."""
        waiting = [job for job in self.all() if not job.is_over]
        at = next((index for index, job in enumerate(waiting) if job.id == name), len(waiting))
        return waiting[:at] + [job for job in waiting[at + 1 :] if job.phase == RUNNING]


def all_jobs(config: Config) -> list[tuple[Records, JobRecord]]:
    """Return the jobs of all sets and of none, oldest first."""
    places = [Records.of(name, config) for name in ("", *names(config))]
    found = [(place, job) for place in places for job in place.all()]
    return sorted(found, key=lambda pair: (pair[1].created, pair[1].id))


def find_job(name: str, config: Config) -> tuple[Records, JobRecord]:
    """Return a job by its name; of several sets' the newest.

    Raises:
        JobNotFoundError: There is none; the message says which there are.
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
