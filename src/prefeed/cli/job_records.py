"""``prefeed job apply|list|describe|terminate``: jobs that are recorded."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from prefeed.cli import job_view, render
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.text import printable
from prefeed.config import Config
from prefeed.errors import SpecError
from prefeed.jobs.options import SyncEvents
from prefeed.jobs.places import located
from prefeed.jobs.records import FAILED, all_jobs, find_job
from prefeed.jobs.rmr import relative_paths, survey
from prefeed.jobs.running import JobEvents, TerminatedError, apply_job, detach_job, terminate, work_detached
from prefeed.jobs.spec import RMR, JobSpec, parse_job
from prefeed.jobs.warming import WarmEvents
from prefeed.jobs.work import WorkEvents
from prefeed.sampleset.yaml_fields import load_documents

EXIT_TERMINATED: Final = 143


@click.command()
@click.option(
    "-f", "--filename", "file", required=True, metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), help="YAML documents of kind SampleJob; - is stdin.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Run each job in a process of its own, and do not wait for it.")
@click.option("--yes", is_flag=True, help="Do not ask before data is removed at its origin.")
@home_option
@json_option
@click.pass_context
def apply(ctx: click.Context, file: Path, *, detach: bool, yes: bool, home: str | None, as_json: bool) -> None:
    """Run the jobs of a YAML file one after the other, and record them.

    A job that has succeeded is not run again; one that failed or was killed is. Exits with 1 when a job failed.
    """
    config = config_of(home=home)
    specs = _read(file)
    for spec in specs:
        for note in spec.notes:
            _say(note)
        if spec.type == RMR and not yes:
            _ask(spec, config)
    begin = detach_job if detach else apply_job
    now = time.time()
    with _ended_when_terminated(ctx):
        records = [begin(spec, config, _events()) for spec in specs]
    if as_json:
        render.print_json({"jobs": [job_view.record_object(record) for record in records]})
    else:
        for record in records:
            was = " before, and not done again: give it another name for that" if 0 < record.finished < now else ""
            click.echo(printable(f"{record.id}: {record.phase}{was}{f': {record.message}' if record.message else ''}"))
    if any(record.phase == FAILED for record in records):
        ctx.exit(EXIT_FAILED)


@click.command(name="list")
@home_option
@json_option
def list_jobs(home: str | None, as_json: bool) -> None:
    """Show all jobs, oldest first."""
    found = [record for _, record in all_jobs(config_of(home=home))]
    if as_json:
        render.print_json({"jobs": [job_view.record_object(record) for record in found]})
    else:
        render.print_lines(job_view.table_lines(found, time.time()))


@click.command()
@click.argument("name")
@home_option
@json_option
def describe(name: str, home: str | None, as_json: bool) -> None:
    """Show everything that is known about a job."""
    _, record = find_job(name, config_of(home=home))
    if as_json:
        render.print_json(job_view.record_object(record))
    else:
        render.print_rows(*job_view.record_rows(record))


@click.command(name="terminate")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@home_option
@json_option
def terminate_jobs(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """End queued or running jobs; every object that they copied is complete."""
    config = config_of(home=home)
    said = {name: terminate(*find_job(name, config)) for name in names}
    if as_json:
        render.print_json(said)
    else:
        render.print_lines(said.values())


@click.command(hidden=True)
@click.argument("name")
@click.pass_context
def work(ctx: click.Context, name: str) -> None:
    """Do a job that `apply --detach` has recorded; its set is named by the environment."""
    with _ended_when_terminated(ctx):
        record = work_detached(name, os.environ.get("PREFEED_JOB_SET", ""), config_of(), _events())
    click.echo(printable(f"{record.id}: {record.phase}{f': {record.message}' if record.message else ''}"))
    if record.phase == FAILED:
        ctx.exit(EXIT_FAILED)


@contextlib.contextmanager
def _ended_when_terminated(ctx: click.Context) -> Iterator[None]:
    try:
        yield
    except TerminatedError:
        _say("terminated; what was done stays whole, and the jobs that are left of the file were not begun")
        ctx.exit(EXIT_TERMINATED)


def _read(file: Path) -> list[JobSpec]:
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    specs = [parse_job(document) for document in load_documents(text, str(file))]
    if not specs:
        raise SpecError(f"{file} has no document in it")
    return specs


def _ask(spec: JobSpec, config: Config) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(
            f"nothing was done: {spec.name} removes data at its origin; say --yes where nobody can be asked"
        )
    root, settings = located(spec.place, config)
    named = relative_paths(root, spec.paths)
    for line in job_view.doomed_lines(root, survey(root, named, settings, one_file_system=spec.one_file_system)):
        click.echo(line, err=True)
    click.confirm("Remove it?", abort=True, err=True)


def _events() -> JobEvents:
    told: set[tuple[str, ...]] = set()

    def waiting(before: Sequence[str]) -> None:
        if tuple(before) not in told:
            told.add(tuple(before))
            _say(f"waiting for {', '.join(before)}" if before else "waiting for the job that runs")

    work_events = WorkEvents(sync=SyncEvents(note=_say), warm=WarmEvents(note=_say))
    return JobEvents(work=work_events, waiting=waiting, note=_say)


def _say(line: str) -> None:
    click.echo(printable(f"prefeed: {line}"), err=True)
