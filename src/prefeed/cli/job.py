"""``prefeed job``: sync, warm-up, rmr and clear, at once or as recorded jobs, and what is printed of them."""

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
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from prefeed.cli import render, warm
from prefeed.cli.failure import EXIT_FAILED, EXIT_INTERRUPTED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import JsonObject, Row, format_bytes, format_count, format_duration
from prefeed.cli.text import printable
from prefeed.client.node import NodeClient
from prefeed.config import Config
from prefeed.errors import SpecError
from prefeed.jobs.clearing import clear as clear_entries
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress, SyncResult
from prefeed.jobs.places import held_sets, located
from prefeed.jobs.records import FAILED, JobRecord, all_jobs, find_job
from prefeed.jobs.rmr import Doomed, RmrResult, relative_paths, survey
from prefeed.jobs.running import (
    JobEvents,
    TerminatedError,
    apply_job,
    detach_job,
    remove_named,
    sync_and_renew,
    terminate,
    work_detached,
)
from prefeed.jobs.spec import RMR, Job, parse_job, resolve_job
from prefeed.jobs.warming import SEQUENCE, STRATEGIES, WarmEvents, WarmupOptions, warm_up
from prefeed.sampleset.yaml_files import load_documents
from prefeed.transfer.patterns import Rule

EXIT_TERMINATED: Final = 143
_RULES: Final = "prefeed.rules"
_FLAGS: Final = {"--exclude": True, "--include": False}
_MOST_FAILURES: Final = 5
_COLUMNS: Final = ("name", "type", "set", "phase", "age", "message")


@click.group(name="job")
def command() -> None:
    """Copy, warm, free and remove data sets.

    SRC, DST and URL are directories, s3://, gs://, az://, http(s):// or sampleset://NAME. Credentials come from
    credentials.json in the home or from the environment, never from a URL.
    """


# ---------------------------------------------------------------- at once


class _InOrder(click.Command):
    """A command that knows in which order ``--exclude`` and ``--include`` were given: the first that matches counts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_RULES] = tuple(_rules_in(args))
        return super().parse_args(ctx, args)


def _rules_in(arguments: list[str]) -> Iterator[Rule]:
    for at, argument in enumerate(arguments):
        if argument == "--":
            return
        flag, equals, value = argument.partition("=")
        if flag in _FLAGS and equals:
            yield Rule(value, _FLAGS[flag])
        elif flag in _FLAGS and at + 1 < len(arguments):
            yield Rule(arguments[at + 1], _FLAGS[flag])


@command.command(cls=_InOrder)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--threads", type=click.IntRange(min=1), help="Maximum objects at a time. Default: adapts to SRC.")
@click.option("-u", "--update", is_flag=True, help="Replace an object in DST only when SRC has a newer one.")
@click.option("-f", "--force-update", is_flag=True, help="Copy every object, even if DST has it.")
@click.option("--check", is_flag=True, help="Read and compare objects that look the same.")
@click.option("--perms", is_flag=True, help="Keep modes and, as root, owners of files.")
@click.option("--dirs", is_flag=True, help="Create empty directories, too.")
@click.option("--dry", is_flag=True, help="Show what would be done.")
@click.option("--delete-src", is_flag=True, help="Remove objects from SRC once DST has the same bytes.")
@click.option("--delete-dst", is_flag=True, help="Remove objects from DST that SRC does not have.")
@click.option(
    "--exclude",
    metavar="PATTERN",
    multiple=True,
    expose_value=False,
    help="Exclude matching objects; the first match counts.",
)
@click.option(
    "--include",
    metavar="PATTERN",
    multiple=True,
    expose_value=False,
    help="Include matching objects; the first match counts.",
)
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=None,
    help="Do not enter mounts below SRC or delete in mounts below DST; or treat mounts as "
    "plain directories. Default: copy from mounts, delete in none.",
)  # fmt: skip
@click.option("-s", "--start", default="", metavar="KEY", help="First key.")
@click.option("-e", "--end", default="", metavar="KEY", help="Last key.")
@click.option(
    "--bwlimit",
    "bwlimit_mbit",
    type=click.IntRange(min=0),
    default=0,
    metavar="MBIT",
    help="Maximum Mbit/s; 0: no limit.",
)
@click.option("--no-https", is_flag=True, help="Connect to web servers without encryption.")
@home_option
@json_option
@click.pass_context
def sync(ctx: click.Context, /, source: str, target: str, home: str | None, as_json: bool, **given: Any) -> None:
    """Copy objects from SRC that DST lacks, and verify them; the same command resumes after an interruption.

    Patterns: * and ? stop at slashes, ** does not, dir/ is a directory, a leading slash is the root. Exits with 1 when
    something failed.
    """
    options = SyncOptions(**given, rules=ctx.meta[_RULES])
    config = config_of(home=home)

    def would(verb: str, where: str) -> None:
        if not as_json:
            click.echo(printable(f"{verb} {where}"))

    places = located(source, config), located(target, config)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(held_sets(*places))
            events = SyncEvents(would=would, note=render.say)
            if has_bar(config, as_json=as_json) and not options.dry:
                bar = SyncBar()
                stack.enter_context(bar.progress)
                events = SyncEvents(would=would, note=render.say, progress=bar.show)
            result = sync_and_renew(*places, options, config, events)
    except KeyboardInterrupt:
        render.say("interrupted; the copied objects stay, and the same command resumes")
        ctx.exit(EXIT_INTERRUPTED)
    if as_json:
        render.print_json(sync_object(result))
    else:
        for line in sync_lines(result, dry=options.dry):
            click.echo(printable(line))
    if not result.is_complete:
        ctx.exit(EXIT_FAILED)


@command.command()
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option(
    "--strategy", type=click.Choice(STRATEGIES), default=SEQUENCE, show_default=True, help="Order of the objects."
)
@click.option("--seed", type=int, default=0, help="Seed of the random order.")
@click.option("--partitions", type=click.IntRange(min=1), default=1, help="Number of nodes that share the work.")
@click.option("--partition", type=click.IntRange(min=0), default=0, help="Number of this node among them, from 0.")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with paths, one per line, in the wanted order.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Maximum objects at a time. Default: adapts to URL.")
@click.option(
    "--refresh", is_flag=True, help="List the origin now, even if PREFEED_LISTING_AGE allows an older listing."
)
@home_option
@json_option
@click.pass_context
def warmup(
    ctx: click.Context, /, url: str, paths: tuple[str, ...], home: str | None, as_json: bool, **given: Any
) -> None:
    """Fill the memory and disk tiers of the node, in the order given.

    PATH is an object or a directory below URL; without a PATH, everything below URL. Exits with 1 when an object could not be fetched.
    """
    config = config_of(home=home)
    options = WarmupOptions(paths=paths, **given)
    place = located(url, config)
    with held_sets(place):
        if has_bar(config, as_json=as_json):
            bar = warm.Bar()
            with bar.progress:
                events = WarmEvents(listing=bar.listing, progress=bar.warming, note=render.say)
                result = warm_up(place, options, events)
        else:
            result = warm_up(place, options, WarmEvents(note=render.say))
    warm.print_result(ctx, result, as_json=as_json)


@command.command()
@click.argument("url")
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option("--all", "everything", is_flag=True, help="Remove everything below URL, instead of PATH.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry", is_flag=True, help="Show what would be removed.")
@click.option(
    "-x/ ", "--one-file-system/--no-one-file-system", "one_file_system", default=True,
    help="Keep the contents of mounts below URL, or remove them too. Default: keep them.",
)  # fmt: skip
@home_option
@json_option
@click.pass_context
def rmr(  # noqa: PLR0913 - one parameter an option
    ctx: click.Context, url: str, paths: tuple[str, ...], *, everything: bool, yes: bool, dry: bool,
    one_file_system: bool, home: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Remove data AT ITS ORIGIN: each PATH below URL, with everything in it.

    Links are removed, not followed; mounts below a PATH stay. The cache frees its objects of the data. Exits with 1
    when something is left.
    """
    place = located(url, config_of(home=home))
    with held_sets(place):
        root = place.url
        named = relative_paths(root, paths, everything=everything)
        doomed = survey(root, named, place.settings, one_file_system=one_file_system)
        if dry and as_json:
            render.print_json(doomed_object(root, doomed))
            return
        if not as_json:
            for line in doomed_lines(root, doomed, dry=dry):
                click.echo(line, err=not dry)
        if dry:
            return
        _require_yes(yes=yes)
        result = remove_named(place, paths, everything=everything, one_file_system=one_file_system)
    render.show(as_json, rmr_object(result), rmr_lines(result))
    if result.failures:
        ctx.exit(EXIT_FAILED)


@command.command()
@click.argument("url", required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--all", "everything", is_flag=True, help="Free everything that this home holds, instead of URL.")
@home_option
@json_option
def clear(url: str | None, paths: tuple[str, ...], *, everything: bool, home: str | None, as_json: bool) -> None:
    """Free the objects of URL, or of each PATH below it, in the memory and disk tiers.

    The data at the origin is never touched.
    """
    if (url is None) != everything:
        raise click.UsageError("give either URL or --all")
    config = config_of(home=home)
    if url is None:
        with NodeClient.connect(config) as client:
            result = client.clear(None)
    else:
        result = clear_entries(located(url, config), paths)
    render.show(as_json, render.clear_object(result), render.clear_lines(result))


# ---------------------------------------------------------------- recorded


@command.command()
@click.option(
    "-f", "--filename", "file", required=True, metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path), help="YAML documents of kind SampleJob; - is stdin.",
)  # fmt: skip
@click.option("--detach", is_flag=True, help="Run each job in its own process, and do not wait for it.")
@click.option("--yes", is_flag=True, help="Do not ask before data is removed at its origin.")
@home_option
@json_option
@click.pass_context
def apply(ctx: click.Context, file: Path, *, detach: bool, yes: bool, home: str | None, as_json: bool) -> None:
    """Run the jobs of a YAML file one after the other, and record them.

    A job that has succeeded is not run again; one that failed or was killed is. Exits with 1 when a job failed.
    """
    config = config_of(home=home)
    jobs = _read(file, config)
    for job in jobs:
        if job.type == RMR and not yes:
            _ask(job)
    begin = detach_job if detach else apply_job
    now = time.time()
    with _ended_when_terminated(ctx):
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
    """Show all jobs, oldest first."""
    found = [record for _, record in all_jobs(config_of(home=home))]
    render.show(as_json, {"jobs": [record_object(record) for record in found]}, table_lines(found, time.time()))


@command.command()
@click.argument("name")
@home_option
@json_option
def describe(name: str, home: str | None, as_json: bool) -> None:
    """Show everything that is known about a job."""
    _, record = find_job(name, config_of(home=home))
    if as_json:
        render.print_json(record_object(record))
    else:
        render.print_rows(*record_rows(record))


@command.command(name="terminate")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@home_option
@json_option
def terminate_jobs(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """End queued or running jobs; every object that they copied is complete."""
    config = config_of(home=home)
    said = {name: terminate(*find_job(name, config)) for name in names}
    render.show(as_json, said, said.values())


@command.command(hidden=True)
@click.argument("name")
@click.pass_context
def work(ctx: click.Context, name: str) -> None:
    """Run a job that `apply --detach` has recorded; the environment names its set."""
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
        render.say("terminated; finished objects stay whole, and the remaining jobs of the file were not started")
        ctx.exit(EXIT_TERMINATED)


def _read(file: Path, config: Config) -> list[Job]:
    text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    documents = list(load_documents(text, str(file)))
    if not documents:
        raise SpecError(f"{file} contains no document")
    asked = [parse_job(document) for document in documents]
    for note in (note for one in asked for note in one.spec.notes):
        render.say(note)
    return [
        resolve_job(one.metadata.name, one.spec, document["spec"], config)
        for one, document in zip(asked, documents, strict=True)
    ]


def _ask(job: Job) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"nothing was done: {job.name} removes data at its origin; use --yes without a terminal")
    (place,) = job.places
    named = relative_paths(place.url, job.paths)
    doomed = survey(place.url, named, place.settings, one_file_system=job.one_file_system)
    for line in doomed_lines(place.url, doomed):
        click.echo(line, err=True)
    click.confirm("Remove it?", abort=True, err=True)


def _events() -> JobEvents:
    told: set[tuple[str, ...]] = set()

    def waiting(before: Sequence[str]) -> None:
        if tuple(before) not in told:
            told.add(tuple(before))
            render.say(f"waiting for {', '.join(before)}" if before else "waiting for the job that runs")

    return JobEvents(
        sync=SyncEvents(note=render.say), warm=WarmEvents(note=render.say), waiting=waiting, note=render.say
    )


def _require_yes(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was removed: use --yes without a terminal")
    click.confirm("Remove it?", abort=True, err=True)


# ---------------------------------------------------------------- what is printed


def sync_object(result: SyncResult) -> JsonObject:
    return {**asdict(result), "objects_per_s": result.num_copied / result.seconds if result.seconds else 0.0}


def sync_lines(result: SyncResult, *, dry: bool) -> list[str]:
    """Return the summary, and what did not go well."""
    seconds = max(result.seconds, 1e-9)
    verb = "would be copied" if dry else "copied"
    rate = f" ({result.num_copied / seconds:,.0f} objects/s, {format_bytes(result.bytes_copied / seconds)}/s)"
    copied = f"{format_count(result.num_copied, 'object')}, {format_bytes(result.bytes_copied)} {verb}"
    parts = [
        copied if dry else f"{copied} in {format_duration(result.seconds)}{rate}",
        f"{result.num_skipped:,} already there",
    ]
    for count, where in ((result.num_deleted_dst, "destination"), (result.num_deleted_src, "source")):
        if count:
            parts.append(f"{count:,} {'would be ' if dry else ''}deleted at the {where}")
    lines = ["; ".join(parts)]
    if result.full:
        lines.append(f"no room for more: {result.full}")
    lines += [failure.message for failure in result.failures[:_MOST_FAILURES]]
    if result.num_failed:
        lines.append(f"{format_count(result.num_failed, 'object')} failed; the same command tries again")
    return lines


def doomed_lines(root: str, doomed: Sequence[Doomed], *, dry: bool = False) -> list[str]:
    """Return what would be removed, one line a path."""
    lines = [
        f"{printable(root.rstrip('/'))}/{printable(one.path)}: {format_count(one.num_files, 'file')}, {format_bytes(one.bytes)}"
        for one in doomed
    ]
    lines += [
        f"{printable(root.rstrip('/'))}/{printable(mount)} is a mount, and stays"
        for one in doomed for mount in one.mounts
    ]  # fmt: skip
    total = format_count(sum(one.num_files for one in doomed), "file")
    will = "would" if dry else "will"
    return [
        *lines,
        f"{total}, {format_bytes(sum(one.bytes for one in doomed))} {will} be removed at the origin permanently",
    ]


def doomed_object(root: str, doomed: Sequence[Doomed]) -> JsonObject:
    return {"root": root, "would_remove": [asdict(one) for one in doomed]}


def rmr_object(result: RmrResult) -> JsonObject:
    return {"removed": result.num_removed, "bytes": result.bytes_removed, "failures": result.failures}


def rmr_lines(result: RmrResult) -> list[str]:
    lines = [f"{format_count(result.num_removed, 'file')}, {format_bytes(result.bytes_removed)} removed"]
    lines += [printable(failure) for failure in result.failures[:_MOST_FAILURES]]
    if len(result.failures) > _MOST_FAILURES:
        lines.append(f"and {len(result.failures) - _MOST_FAILURES:,} more could not be removed")
    return lines


def record_object(record: JobRecord) -> JsonObject:
    return asdict(record)


def table_lines(records: Iterable[JobRecord], now: float) -> list[str]:
    """Return a table, one line a job."""
    rows = [_COLUMNS, *(_row(record, now) for record in records)]
    if len(rows) == 1:
        return ["no jobs"]
    return render.table(rows)


def _row(record: JobRecord, now: float) -> tuple[str, ...]:
    age = format_duration(max(0.0, now - record.created))
    return (record.id, record.type, record.sample_set or "-", record.phase, age, printable(record.message))


def record_rows(record: JobRecord) -> tuple[str, list[Row]]:
    """Return title and rows of all that is known of a job."""
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


class SyncBar:
    """A progress bar on stderr: the total grows while the listings run."""

    def __init__(self) -> None:
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            TransferSpeedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task("copying", total=None, note="")

    def show(self, so_far: SyncProgress) -> None:
        note = f"{so_far.copying.num_copied:,} of {so_far.num_to_copy:,} copied, {so_far.num_listed:,} listed"
        self.progress.update(
            self._task, total=so_far.bytes_to_copy or None, completed=so_far.copying.bytes_copied, note=note
        )
