"""What became of each job: one file a job, in the set's directory or, without a set, in the home.

::

    <home>/samplesets/<set>/jobs/        or <home>/jobs/
        <id>.json                        what it is to do, how far it is, whose process it is
        <id>.log                         what a detached one says
        .records  .queue                 held by who changes records; held by the job that runs

A process that is killed lets go of ``.queue`` by that, and its record says of which process it was: nothing has to be put
right before the next job can run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from prefeed.config import Config
from prefeed.errors import JobNotFoundError
from prefeed.sampleset.records import directory_of, names
from prefeed.sampleset.strict import require_name
from prefeed.sources.credentials import write_private

FORMAT: Final = 1
PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
_JOBS: Final = "jobs"
_START_FIELD: Final = 19
"""Of what ``/proc/<pid>/stat`` says behind the name: when the process began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process, told apart from others that get its number later."""

    pid: int = 0
    started: int = 0
    boot: str = ""

    @classmethod
    def of(cls, pid: int) -> Process:
        """Return the process that has this number now; one that is nobody's if there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        except OSError:
            return cls()
        return cls() if stat[0] in ("Z", "X") else cls(pid=pid, started=int(stat[_START_FIELD]), boot=boot)

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return bool(self.pid) and Process.of(self.pid) == self


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
    spec: Mapping[str, Any] = field(default_factory=dict)
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
        return _settled(_read(self.directory / f"{name}.json"))

    def all(self) -> list[JobRecord]:
        """Return all jobs as they are now, oldest first."""
        found = [_settled(_read(file)) for file in self.directory.glob("*.json")]
        return sorted((job for job in found if job is not None), key=lambda job: (job.created, job.id))

    def write(self, record: JobRecord) -> None:
        """The job is recorded so, whole or not at all."""
        text = json.dumps({"format": FORMAT, **asdict(record)}, indent=1, default=str)
        write_private(self.directory / f"{record.id}.json", text.encode())

    def log_of(self, name: str) -> Path:
        """Return the file that a detached job writes to."""
        return self.directory / f"{name}.log"

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Nobody else changes records meanwhile; what is done inside is short."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.directory / ".records", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    @contextlib.contextmanager
    def turn_of(self, name: str, *, wait: Any) -> Iterator[None]:
        """It is this job's turn: none that was there before it runs or waits. The lock goes with the process.

        Args:
            name: Of a job that is recorded as pending.
            wait: Called with the jobs before it while there are any; blocks for a moment.
        """
        file = os.open(self.directory / ".queue", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not self._try_turn(file, name):
                wait([job.id for job in self._before(name)])
            yield
        finally:
            os.close(file)

    def _try_turn(self, file: int, name: str) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if self._before(name):
            fcntl.flock(file, fcntl.LOCK_UN)
            return False
        return True

    def _before(self, name: str) -> list[JobRecord]:
        waiting = [job for job in self.all() if not job.is_over]
        at = next((index for index, job in enumerate(waiting) if job.id == name), len(waiting))
        return waiting[:at]


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


def _settled(record: JobRecord | None) -> JobRecord | None:
    if record is None or record.is_over or record.process.is_alive:
        return record
    message = f"its process {record.process.pid} ended before it was done: run it again with `prefeed job apply`"
    return replace(record, phase=FAILED, message=message, finished=record.finished or time.time())


def _read(file: Path) -> JobRecord | None:
    try:
        values = json.loads(file.read_bytes())
        if values.pop("format") != FORMAT:
            return None
        known = {one.name for one in fields(JobRecord)}
        record = JobRecord(**{name: value for name, value in values.items() if name in known})
        return replace(record, process=Process(**values["process"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
