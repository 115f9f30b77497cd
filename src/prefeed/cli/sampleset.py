"""``prefeed sampleset``: apply, get, describe, delete."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from prefeed.cli import render, sampleset_view
from prefeed.cli.failure import EXIT_FAILED
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.sampleset_sync import copy_to_origin
from prefeed.cli.text import printable
from prefeed.client.launch import server_environment
from prefeed.config import Config
from prefeed.errors import PrefeedError, SpecError
from prefeed.sampleset.applying import UNCHANGED, Applied, apply_documents
from prefeed.sampleset.explaining import Explained, explain
from prefeed.sampleset.phases import PARTIAL_READY, READY
from prefeed.sampleset.provision import bring_up, delete
from prefeed.sampleset.records import Progress, SampleSet, find, names
from prefeed.sampleset.secrets import find_secret
from prefeed.sampleset.status import observe
from prefeed.sampleset.yaml_fields import load_documents

STDIN: Final = "-"


@click.group(name="sampleset")
def command() -> None:
    """Give data sets a name and a cache of their own, and show their state.

    A sample set is a YAML document of kind SampleSet, as the Paddle operator has them: where the data is, and the levels
    of its cache. Programs name it as sampleset://NAME/PATH, and all of them use its node server.
    """


@command.command()
@click.option("-f", "--filename", "file", required=True, metavar="FILE", help="YAML documents; - is stdin.")
@click.option("--wait", is_flag=True, help="Wait until the sets are ready or have failed.")
@home_option
@json_option
@click.pass_context
def apply(ctx: click.Context, file: str, wait: bool, home: str | None, as_json: bool) -> None:
    """Record what FILE asks for, and set it up.

    FILE holds documents of kind SampleSet, and of kind Secret for those who need one. Without --wait a process in the
    background lists and copies; `prefeed sampleset get` says how far it is. Exits with 1 when, with --wait, a set has not
    become ready. Applied again, a set goes on from where it is.
    """
    config = config_of(home=home)
    applied = apply_documents(load_documents(_text_of(file), "stdin" if file == STDIN else file), config)
    if not as_json:
        render.print_lines(sampleset_view.applied_lines(applied))
    sets = [(each.sample_set, each) for each in applied if each.sample_set is not None]
    for found, each in sets:
        if each.action != UNCHANGED and not as_json:
            _say_without_effect(found, config)
    if wait:
        results = [_bring_up(found, config, is_changed=_is_changed(each), as_json=as_json) for found, each in sets]
    else:
        results = []
        for found, each in sets:
            _bring_up_detached(found, config, is_changed=_is_changed(each))
    seen = [(found, observe(found, config)) for found, _ in sets]
    if as_json:
        render.print_json(sampleset_view.applied_object(applied, seen))
    elif wait:
        render.print_lines(sampleset_view.sets_lines(seen, now=time.time()))
    for (found, _), progress in zip(sets, results, strict=False):
        if progress.error:
            click.echo(printable(f"prefeed: sample set {found.name}: {progress.error}"), err=True)
    if wait and any(status.phase not in (READY, PARTIAL_READY) for _, status in seen):
        ctx.exit(EXIT_FAILED)


@command.command()
@click.argument("name", required=False)
@home_option
@json_option
def get(name: str | None, home: str | None, as_json: bool) -> None:
    """Show all sample sets, or one: how much of it is cached, what it may take, and its phase."""
    config = config_of(home=home)
    sets = [find(name, config)] if name else [found for found in _all(config) if found is not None]
    seen = [(found, observe(found, config)) for found in sets]
    if as_json:
        render.print_json(sampleset_view.sets_object(seen))
    else:
        render.print_lines(sampleset_view.sets_lines(seen, now=time.time()))


@command.command()
@click.argument("name")
@home_option
@json_option
def describe(name: str, home: str | None, as_json: bool) -> None:
    """Show everything that is known about a sample set, and what each field of its document was mapped to."""
    config = config_of(home=home)
    found = find(name, config)
    status, explained = observe(found, config), _explained(found, config)
    if as_json:
        render.print_json(sampleset_view.described_object(found, status, explained))
        return
    render.print_rows(found.name, sampleset_view.described_rows(found, status, now=time.time()))
    render.print_lines(["  what its document says", *sampleset_view.explained_lines(explained)])


@command.command(name="delete")
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it even while jobs or programs use it.")
@home_option
@json_option
def delete_(name: str, force: bool, home: str | None, as_json: bool) -> None:
    """Remove a sample set: its server, its cache and its records. Its data stays, at its source and where it was copied."""
    config = config_of(home=home)
    delete(find(name, config), config, force=force)
    if as_json:
        render.print_json({"deleted": name})
    else:
        render.print_lines([f"sampleset {name} deleted"])


@command.command(name="bring-up", hidden=True)
@click.argument("name")
@click.option("--changed", is_flag=True)
@home_option
@click.pass_context
def bring_up_(ctx: click.Context, name: str, changed: bool, home: str | None) -> None:
    """Do what `apply` began: in a process of its own, whose output is the set's log."""
    config = config_of(home=home)
    progress = bring_up(find(name, config), config, copy_to_origin, is_changed=changed)
    if progress.error:
        click.echo(printable(f"prefeed: {progress.error}"), err=True)
        ctx.exit(EXIT_FAILED)


def _all(config: Config) -> list[SampleSet | None]:
    return [_try_find(name, config) for name in names(config)]


def _try_find(name: str, config: Config) -> SampleSet | None:
    try:
        return find(name, config)
    except PrefeedError as err:  # one that is damaged, or deleted meanwhile, does not hide the others
        click.echo(printable(f"prefeed: {err}"), err=True)
        return None


def _text_of(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STDIN else Path(file).read_bytes()
    except OSError as err:
        raise SpecError(f"{file} cannot be read: {err.strerror}") from err


def _is_changed(applied: Applied) -> bool:
    return applied.action != UNCHANGED


def _explained(found: SampleSet, config: Config) -> Sequence[Explained]:
    has_metaurl = bool(found.spec.secret) and find_secret(found.spec.secret, config).has_metaurl
    return explain(found, config, has_metaurl=has_metaurl)


def _say_without_effect(found: SampleSet, config: Config) -> None:
    for each in _explained(found, config):
        if not each.has_effect:
            click.echo(printable(f"prefeed: {each.field}: {each.meaning}"), err=True)


# ---------------------------------------------------------------- bringing up


def _bring_up(found: SampleSet, config: Config, *, is_changed: bool, as_json: bool) -> Progress:
    if as_json or not config.progress or not sys.stderr.isatty():
        return bring_up(found, config, copy_to_origin, is_changed=is_changed)
    bar = sampleset_view.Bar(found.name)

    def sync(found: SampleSet, settings: Config) -> None:
        copy_to_origin(found, settings, copying=bar.copying)

    with bar.progress:
        return bring_up(found, config, sync, is_changed=is_changed, listing=bar.listing)


def _bring_up_detached(found: SampleSet, config: Config, *, is_changed: bool) -> None:
    """A process that outlives this one does the rest."""
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
