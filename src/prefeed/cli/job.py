"""``prefeed job``: runs, lists and stops the jobs of YAML documents."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click
import yaml

from prefeed.cli import render
from prefeed.cli.commands import Commands
from prefeed.cli.failure import EXIT_FAILED, EXIT_TERMINATED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.render import JsonObject, Row, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.config import Config
from prefeed.errors import SpecError
from prefeed.jobs.options import SyncEvents
from prefeed.jobs.records import FAILED, JobRecord, all_jobs, find_job
from prefeed.jobs.rmr import RemovalPreview, relative_paths, survey
from prefeed.jobs.running import (
    JobEvents,
    TerminatedError,
    apply_job,
    detach_job,
    terminate,
    work_detached,
)
from prefeed.jobs.spec import RMR, ResolvedJob, parse_job, resolve_job
from prefeed.jobs.warming import WarmEvents
from prefeed.sampleset.yaml_files import errors_of, load_documents

_COLUMNS: Final = ("name", "type", "set", "phase", "age", "message")


@click.group(name="job", cls=Commands)
def command() -> None:
    """Run, list and stop the jobs in YAML files.

    A document of kind SampleJob, as for the Paddle operator, has one of the types sync, warmup, rmr and clear. The commands
    `prefeed sync`, `warm` and `clear` do the same without a file. A job of type rmr deletes data at its origin, after confirmation.
    """


@command.command()
@click.option(
    "-f", "--filename", "file", required=True, metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), help="File with YAML documents of kind SampleJob; - for stdin.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Run each job in the background.")
@click.option("--yes", is_flag=True, help="Delete data at its origin without confirmation.")
@home_option
@json_option
@click.pass_context
def apply(ctx: click.Context, file: Path, *, detach: bool, yes: bool, home: str | None, as_json: bool) -> None:
    """Run the jobs of a YAML file one after the other, and record them.

    A job that has succeeded is not repeated; a job that failed or was killed is. Exits with 1 if a job failed.
    """
    config = config_of(home=home)
    jobs = _read(file, config)
    for job in jobs:
        if job.type == RMR and not yes:
            _ask(job)
    begin = detach_job if detach else apply_job
    now = time.time()
    with _exit_on_sigterm(ctx):
        records = [begin(job, config, _events()) for job in jobs]
    if as_json:
        render.print_json({"jobs": [record_object(record) for record in records]})
    else:
        for record in records:
            was = (
                " earlier, and was not run again; give it another name to run it again"
                if 0 < record.finished < now
                else ""
            )
            click.echo(printable(f"{record.id}: {record.phase}{was}{f': {record.message}' if record.message else ''}"))
    if any(record.phase == FAILED for record in records):
        ctx.exit(EXIT_FAILED)


@command.command(name="list")
@home_option
@json_option
def list_jobs(home: str | None, as_json: bool) -> None:
    """List all jobs, oldest first."""
    found = [record for _, record in all_jobs(config_of(home=home))]
    render.show(as_json, {"jobs": [record_object(record) for record in found]}, table_lines(found, time.time()))


@command.command()
@click.argument("name")
@home_option
@json_option
def describe(name: str, home: str | None, as_json: bool) -> None:
    """Show the spec, state and result of a job."""
    _, record = find_job(name, config_of(home=home))
    if as_json:
        render.print_json(record_object(record))
    else:
        render.print_rows(*record_rows(record))


@command.command(name="stop")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@home_option
@json_option
def stop_jobs(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Stop queued or running jobs. Objects that they have copied are complete."""
    config = config_of(home=home)
    replies = {name: terminate(*find_job(name, config)) for name in names}
    render.show(as_json, replies, replies.values())


@command.command(hidden=True)
@click.argument("name")
@click.pass_context
def work(ctx: click.Context, name: str) -> None:
    """Run a job that `apply --detach` has recorded. PREFEED_JOB_SET is the name of its set."""
    with _exit_on_sigterm(ctx):
        record = work_detached(name, os.environ.get("PREFEED_JOB_SET", ""), config_of(), _events())
    click.echo(printable(f"{record.id}: {record.phase}{f': {record.message}' if record.message else ''}"))
    if record.phase == FAILED:
        ctx.exit(EXIT_FAILED)


@contextlib.contextmanager
def _exit_on_sigterm(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except TerminatedError:
        render.say("terminated; copied objects are complete, and the remaining jobs of the file were not started")
        ctx.exit(EXIT_TERMINATED)


def _read(file: Path, config: Config) -> list[ResolvedJob]:
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    with errors_of(str(file)):
        documents = list(load_documents(text, str(file)))
        if not documents:
            raise SpecError(f"{file} contains no YAML document")
        asked = [parse_job(document) for document in documents]
    for note in (note for one in asked for note in one.spec.notes):
        render.say(note)
    return [
        resolve_job(one.metadata.name, one.spec, document["spec"], config)
        for one, document in zip(asked, documents, strict=True)
    ]


def _ask(job: ResolvedJob) -> None:
    (place,) = job.places
    named = relative_paths(place.url, job.paths)
    doomed = survey(place.url, named, place.settings, one_file_system=job.one_file_system)
    for line in doomed_lines(place.url, doomed):
        click.echo(line, err=True)
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"{job.name} deletes data at its origin, and there is no terminal to confirm it; add --yes"
        )
    click.confirm("Delete it?", abort=True, err=True)


def _events() -> JobEvents:
    reported: set[tuple[str, ...]] = set()

    def waiting(before: Sequence[str]) -> None:
        if tuple(before) not in reported:
            reported.add(tuple(before))
            render.say(f"waiting for {', '.join(before)}" if before else "waiting for the running job")

    return JobEvents(
        sync=SyncEvents(note=render.say), warm=WarmEvents(note=render.say), waiting=waiting, note=render.say
    )


# ---------------------------------------------------------------- what is printed


def doomed_lines(root: str, doomed: Sequence[RemovalPreview]) -> list[str]:
    """Return a line per path to delete, a line per mount that is left out, and the total."""
    at = printable(root.rstrip("/"))
    total = format_count(sum(one.num_files for one in doomed), "file")
    return [
        *(
            f"{at}/{printable(one.path)}: {format_count(one.num_files, 'file')}, {format_bytes(one.bytes)}"
            for one in doomed
        ),
        *(f"{at}/{printable(mount)} is a mount and is not deleted" for one in doomed for mount in one.mounts),
        f"{total}, {format_bytes(sum(one.bytes for one in doomed))} will be deleted permanently at the origin",
    ]


def record_object(record: JobRecord) -> JsonObject:
    return asdict(record)


def table_lines(records: Iterable[JobRecord], now: float) -> list[str]:
    """Return a table with one line per job."""
    rows = [_COLUMNS, *(_row(record, now) for record in records)]
    if len(rows) == 1:
        return ["no jobs"]
    return render.table(rows)


def _row(record: JobRecord, now: float) -> tuple[str, ...]:
    age = format_duration(max(0.0, now - record.created))
    return (record.id, record.type, record.sample_set or "-", record.phase, age, printable(record.message))


def record_rows(record: JobRecord) -> tuple[str, list[Row]]:
    """Return the title and the rows of `prefeed job describe`."""
    rows: list[Row] = [
        ("type", record.type),
        ("sample set", record.sample_set or "-"),
        ("phase", record.phase),
        ("message", printable(record.message) or "-"),
        ("created", _when(record.created)),
        ("started", _when(record.started)),
        ("finished", _when(record.finished)),
        (
            "process",
            f"{record.process.pid} of {record.process.place}" if record.process.host else str(record.process.pid),
        ),
    ]
    rows += [(name, _counted(name, value)) for name, value in record.result.items() if value not in ("", [], None)]
    rows += [("spec" if not at else "", line) for at, line in enumerate(_yaml_lines(record.spec))]
    return record.id, rows


def _counted(name: str, value: Any) -> str:
    if name == "seconds":
        return format_duration(value)
    return format_bytes(value) if "bytes" in name else printable(value)


def _yaml_lines(spec: Any) -> list[str]:
    return printable(yaml.safe_dump(dict(spec), sort_keys=False)).splitlines()


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S") if seconds else "-"
