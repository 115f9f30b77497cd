"""``prefeed server``: start, stop, status."""

from __future__ import annotations

import os

import click

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.options import config_of, home_option, json_option, missing_server_exits, node_config_of, node_option
from prefeed.errors import ServerUnavailableError


@click.group(name="server")
def command() -> None:
    """Start, stop and inspect the node server.

    One server a user a node fills the cache for every training process there. The first loader starts it by itself;
    these commands are for those who want it earlier, elsewhere or gone.
    """


@command.command()
@click.option("--foreground", is_flag=True, help="Stay attached, log to stderr, stop with Ctrl-C.")
@click.option("--memory", metavar="SIZE", help="Most bytes of the memory tier, such as 8GiB (PREFEED_MEMORY).")
@home_option
@json_option
@click.pass_context
def start(ctx: click.Context, foreground: bool, memory: str | None, home: str | None, as_json: bool) -> None:
    """Start the node server and wait until it answers."""
    config = config_of(memory=memory, home=home)
    backend = backend_of(ctx)
    if foreground:
        code = backend.run_foreground(config)
        if as_json:
            render.print_json({"pid": os.getpid(), "home": str(config.home), "exit_code": code})
        ctx.exit(code)
    pid = backend.start(config)
    with backend.connect(config, autostart=False) as client:
        notices = client.status().notices
    if as_json:
        render.print_json({"pid": pid, "home": str(config.home), "notices": notices})
    else:
        render.print_lines([f"server {pid} started for {config.home}"])
    for notice in notices:
        click.echo(f"prefeed: {notice}", err=True)


@command.command()
@node_option
@json_option
@click.pass_context
def stop(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Stop the node server and wait until it is gone and its memory is free.

    Training goes on: readers find the data at its origin.
    """
    missing_server_exits(ctx)
    config = node_config_of(home)
    try:
        connected = backend_of(ctx).connect(config, autostart=False)
    except ServerUnavailableError as err:
        if type(err) is not ServerUnavailableError or not err.details.get("is_absent"):
            raise
        raise ServerUnavailableError(f"no server runs for {config.home}: there is nothing to stop") from err
    with connected as client:
        pid = client.status().pid
        client.stop()
    if as_json:
        render.print_json({"pid": pid, "stopped": True})
    else:
        render.print_lines([f"server {pid} stopped"])


@command.command()
@node_option
@json_option
@click.pass_context
def status(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show whether the node server runs, since when, and for whom."""
    missing_server_exits(ctx)
    with backend_of(ctx).connect(node_config_of(home), autostart=False) as client:
        value = client.status()
    if as_json:
        render.print_json(render.status_object(value))
    else:
        render.print_rows(*render.status_rows(value))
