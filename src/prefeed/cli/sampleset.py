"""``prefeed sampleset``: applies, lists, describes and deletes sample sets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from prefeed.cli import render
from prefeed.cli.commands import Commands
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, has_bar, home_option, json_option
from prefeed.cli.render import JsonObject, Row, format_bytes, format_count, format_ratio
from prefeed.cli.text import printable
from prefeed.client.launch import server_environment
from prefeed.config import Config
from prefeed.errors import PrefeedError, SpecError
from prefeed.jobs.running import copy_to_origin
from prefeed.sampleset.applying import UNCHANGED, ApplyResult, apply_documents, find_secret
from prefeed.sampleset.provision import bring_up, delete
from prefeed.sampleset.records import Progress as SetProgress
from prefeed.sampleset.records import SampleSet, find, names
from prefeed.sampleset.status import PARTIAL_READY, READY, FieldMeaning, SampleSetState, explain, observe
from prefeed.sampleset.yaml_files import errors_of, load_documents

STDIN: Final = "-"
_COLUMNS: Final = ("NAME", "TOTAL SIZE", "CACHED SIZE", "AVAIL SPACE", "RUNTIME", "PHASE", "AGE")

ObservedSet = tuple[SampleSet, SampleSetState]


@click.group(name="sampleset", cls=Commands)
def command() -> None:
    """Create, list and delete named data sets with their own caches.

    A sample set is a YAML document of kind SampleSet, as for the Paddle operator. It defines the location of the data and the
    tiers of its cache. Programs open sampleset://NAME/PATH, and share the node server of the set.
    """


@command.command()
@click.option("-f", "--filename", "file", required=True, metavar="FILE", help="File with YAML documents; - for stdin.")
@click.option("--wait", is_flag=True, help="Wait until the sets are ready or have failed.")
@home_option
@json_option
@click.pass_context
def apply(ctx: click.Context, file: str, wait: bool, home: str | None, as_json: bool) -> None:
    """Create or update the sample sets of a YAML file.

    FILE contains documents of kind SampleSet, and of kind Secret for sets that need one. Without --wait, a background process
    lists and copies; `prefeed sampleset list` shows its progress. Applying a set again resumes an interrupted copy. With
    --wait, exits with 1 if a set does not become ready.
    """
    config = config_of(home=home)
    name = "stdin" if file == STDIN else file
    with errors_of(name):
        applied = apply_documents(load_documents(_text_of(file), name), config)
    if not as_json:
        render.print_lines(applied_lines(applied))
    sets = [(each.sample_set, each) for each in applied if each.sample_set is not None]
    for found, each in sets:
        if each.action != UNCHANGED and not as_json:
            _report_ignored_fields(found, config)
    if wait:
        results = [_bring_up(found, config, is_changed=_is_changed(each), as_json=as_json) for found, each in sets]
    else:
        results = []
        for found, each in sets:
            _bring_up_detached(found, config, is_changed=_is_changed(each))
    seen = [(found, observe(found, config)) for found, _ in sets]
    if as_json:
        render.print_json(applied_object(applied, seen))
    elif wait:
        render.print_lines(sets_lines(seen, now=time.time()))
    for (found, _), progress in zip(sets, results, strict=False):
        if progress.error:
            render.say(f"sample set {found.name}: {progress.error}")
    if wait and any(status.phase not in (READY, PARTIAL_READY) for _, status in seen):
        ctx.exit(EXIT_FAILED)


@command.command(name="list")
@click.argument("name", required=False)
@home_option
@json_option
def list_(name: str | None, home: str | None, as_json: bool) -> None:
    """List all sample sets, or one, with cached size, limits and phase."""
    config = config_of(home=home)
    sets = [find(name, config)] if name else [found for found in _all(config) if found is not None]
    seen = [(found, observe(found, config)) for found in sets]
    render.show(as_json, sets_object(seen), sets_lines(seen, now=time.time()))


@command.command()
@click.argument("name")
@home_option
@json_option
def describe(name: str, home: str | None, as_json: bool) -> None:
    """Show the state of a sample set, and the effect of each field of its document."""
    config = config_of(home=home)
    found = find(name, config)
    status, explained = observe(found, config), _explain(found, config)
    if as_json:
        render.print_json(described_object(found, status, explained))
        return
    render.print_rows(found.name, described_rows(found, status, now=time.time()))
    render.print_lines(["  its document", *explained_lines(explained)])


@command.command(name="delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete the set even if jobs or programs use it.")
@home_option
@json_option
def delete_(name: str, force: bool, home: str | None, as_json: bool) -> None:
    """Delete a sample set: its server, cache and records. Source data and copies are kept."""
    config = config_of(home=home)
    delete(find(name, config), config, force=force)
    render.show(as_json, {"deleted": name}, [f"sampleset {name} deleted"])


@command.command(name="bring-up", hidden=True)
@click.argument("name")
@click.option("--changed", is_flag=True)
@click.option("--no-start", is_flag=True)
@home_option
@click.pass_context
def bring_up_(ctx: click.Context, name: str, changed: bool, no_start: bool, home: str | None) -> None:
    """Finish the work of `apply` in the background. The output of this process is the log of the set."""
    config = config_of(home=home)
    progress = bring_up(find(name, config), config, copy_to_origin, is_changed=changed, starts=not no_start)
    if progress.error:
        render.say(f"{progress.error}")
        ctx.exit(EXIT_FAILED)


def _all(config: Config) -> list[SampleSet | None]:
    return [_try_find(name, config) for name in names(config)]


def _try_find(name: str, config: Config) -> SampleSet | None:
    try:
        return find(name, config)
    except PrefeedError as err:  # Still list the other sets if one is damaged or was just deleted.
        render.say(f"{err}")
        return None


def _text_of(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as err:
        raise SpecError(f"{file} cannot be read: {err.strerror}") from err


def _is_changed(applied: ApplyResult) -> bool:
    return applied.action != UNCHANGED


def _explain(found: SampleSet, config: Config) -> Sequence[FieldMeaning]:
    if not found.spec.secret:
        return explain(found, config)
    secret = find_secret(found.spec.secret, config)
    return explain(found, config, has_metaurl=secret.has_metaurl, is_redis=secret.is_redis)


def _report_ignored_fields(found: SampleSet, config: Config) -> None:
    for each in _explain(found, config):
        if not each.has_effect:
            render.say(f"{each.field}: {each.meaning}")


# ---------------------------------------------------------------- bringing up


def _bring_up(found: SampleSet, config: Config, *, is_changed: bool, as_json: bool) -> SetProgress:
    if not has_bar(as_json=as_json):
        return bring_up(found, config, copy_to_origin, is_changed=is_changed)
    bar = SampleSetBar(found.name)

    def sync(found: SampleSet, settings: Config) -> None:
        copy_to_origin(found, settings, copying=bar.copying)

    with bar.progress:
        return bring_up(found, config, sync, is_changed=is_changed, listing=bar.listing)


def _bring_up_detached(found: SampleSet, config: Config, *, is_changed: bool) -> None:
    """Start a process that outlives this one and finishes the work."""
    words = [sys.executable, "-m", "prefeed", "sampleset", "bring-up", found.name]
    log = os.open(found.directory / "bring-up.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        subprocess.Popen(
            [*words, "--changed"] if is_changed else words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
            env=server_environment(config, os.environ),
        )
    finally:
        os.close(log)


# ---------------------------------------------------------------- what is printed


def applied_lines(applied: Sequence[ApplyResult]) -> list[str]:
    return [f"{each.kind.lower()} {each.name} {each.action}" for each in applied]


def applied_object(applied: Sequence[ApplyResult], seen: Sequence[ObservedSet]) -> JsonObject:
    return {
        "applied": [{"kind": each.kind, "name": each.name, "action": each.action} for each in applied],
        "samplesets": [_set_object(*each) for each in seen],
    }


def sets_lines(seen: Sequence[ObservedSet], *, now: float) -> list[str]:
    """Return a table, or a hint if there are no sample sets."""
    if not seen:
        return ["no sample sets; create one with `prefeed sampleset apply -f FILE`"]
    rows = [_COLUMNS, *(_row(found, status, now) for found, status in seen)]
    return render.table(rows, gap="   ")


def _row(found: SampleSet, status: SampleSetState, now: float) -> tuple[str, ...]:
    return (
        found.name,
        _size(status.total_bytes),
        _size(status.cached_bytes),
        _size(status.free_bytes if status.tiers else None),
        f"{status.num_ready}/{status.partitions}",
        status.phase,
        format_age(now - found.created),
    )


def sets_object(seen: Sequence[ObservedSet]) -> JsonObject:
    return {"samplesets": [_set_object(*each) for each in seen]}


def _set_object(found: SampleSet, status: SampleSetState) -> JsonObject:
    """Return the status in the fields of the Paddle operator, with sizes in bytes, and fields of our own."""
    return {
        "name": found.name,
        "namespace": found.namespace,
        "created": datetime.fromtimestamp(found.created, UTC).isoformat(timespec="seconds"),
        "source": found.source_url,
        "origin": found.read_url,
        "home": str(found.home),
        "status": {
            "phase": status.phase,
            "cacheStatus": {
                "totalSize": status.total_bytes,
                "totalFiles": status.total_files,
                "cachedSize": status.cached_bytes,
                "cachedFiles": status.cached_files,
                "diskSize": status.disk_bytes,
                "diskUsed": status.used_bytes,
                "diskAvail": status.free_bytes,
                "diskUsageRate": status.used_bytes / status.disk_bytes if status.disk_bytes else None,
                "errorMessage": status.error,
            },
            "runtimeStatus": {
                "runtimeReady": f"{status.num_ready}/{status.partitions}",
                "specReplicas": status.partitions,
                "readyReplicas": status.num_ready,
            },
            "jobsName": {"syncJobName": status.sync_job, "warmupJobName": status.warmup_job},
        },
        "tiers": [asdict(tier) for tier in status.tiers],
        "pid": status.pid,
    }


def described_object(found: SampleSet, status: SampleSetState, explained: Sequence[FieldMeaning]) -> JsonObject:
    return {
        **_set_object(found, status),
        "spec": found.document,
        "fields": [asdict(each) for each in explained],
    }


def described_rows(found: SampleSet, status: SampleSetState, *, now: float) -> list[Row]:
    """Return the rows of `prefeed sampleset describe`."""
    rows = [
        ("phase", status.phase),
        *((("error", printable(status.error)),) if status.error else ()),
        ("namespace", found.namespace),
        ("age", format_age(now - found.created)),
        ("source", printable(found.source_url)),
        ("read at", printable(found.read_url)),
        ("total", _total(status)),
        ("cached", _cached(status)),
        ("nodes", f"{status.num_ready} of {status.partitions} known to this node"),
        ("server", f"process {status.pid}" if status.pid else "not running; the first reader starts it"),
        ("home", str(found.home)),
    ]
    for tier in status.tiers:
        used = f"{format_bytes(tier.used_bytes)} of {format_bytes(tier.budget_bytes)}, {format_bytes(tier.free_bytes)} free"
        rows.append((f"{tier.kind} tier", f"{used}, {tier.path}"))
    rows += [("sync job", status.sync_job)] if status.sync_job else []
    rows += [("warm-up job", status.warmup_job)] if status.warmup_job else []
    return rows


def explained_lines(explained: Sequence[FieldMeaning]) -> list[str]:
    return [printable(f"  {each.field}: {each.value}\n      {each.meaning}") for each in explained]


def _total(status: SampleSetState) -> str:
    if status.total_bytes is None or status.total_files is None:
        return "not known yet"
    unknown = ", without files of unknown size" if status.has_unknown_sizes else ""
    return f"{format_count(status.total_files, 'file')}, {format_bytes(status.total_bytes)}{unknown}"


def _cached(status: SampleSetState) -> str:
    share = status.cached_files / status.total_files if status.total_files else None
    files = format_count(status.cached_files, "file")
    return f"{files}, {format_bytes(status.cached_bytes)} ({format_ratio(share)} of the files)"


def _size(number: int | None) -> str:
    return "-" if number is None else format_bytes(number)


def format_age(seconds: float) -> str:
    """Format an age as kubectl does: ``12s``, ``5m``, ``3h``, ``8d``."""
    whole = max(0, int(seconds))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size * (2 if unit == "m" else 1):
            return f"{whole // size}{unit}"
    return f"{whole}s"


class SampleSetBar:
    """Progress of one set on stderr: objects listed, then files copied."""

    def __init__(self, name: str) -> None:
        columns = (TextColumn("{task.description}"), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
        self.progress = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self.progress.add_task(f"{name}: starting", total=None, note="")

    def listing(self, objects: int, num_bytes: int) -> None:
        self._show("listing", f"{format_count(objects, 'object')}, {format_bytes(num_bytes)}")

    def copying(self, files: int, num_bytes: int) -> None:
        self._show("copying", f"{format_count(files, 'file')}, {format_bytes(num_bytes)}")

    def _show(self, step: str, note: str) -> None:
        self.progress.update(self._task, description=step, note=note)
