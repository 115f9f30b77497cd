"""``prefeed server``: starts, stops and inspects the node server."""

from __future__ import annotations

import os
from typing import Final

import click

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.commands import Commands
from prefeed.cli.options import config_of, home_option, json_option, missing_server_exits, node_config_of, node_option
from prefeed.errors import ServerAlreadyRunningError, ServerBusyError, ServerUnavailableError

_ANSWER_SECONDS: Final = 5.0
"""Maximum wait for a reply, in seconds, after which the server is reported as busy or suspended."""


@click.group(name="server", cls=Commands)
def command() -> None:
    """Start, stop and inspect the node server.

    One server per user and node fills the cache for all training processes. The first loader starts the server; use these
    commands to start it earlier or in another home, and to stop it.
    """


@command.command()
@click.option("--foreground", is_flag=True, help="Stay in the foreground and log to stderr; Ctrl-C stops the server.")
@click.option("--memory", metavar="SIZE", help="Size limit of the memory tier, such as 8GiB (PREFEED_MEMORY).")
@home_option
@json_option
@click.pass_context
def start(ctx: click.Context, foreground: bool, memory: str | None, home: str | None, as_json: bool) -> None:
    """Start the node server and wait until it replies. A server that already runs keeps its settings."""
    config = config_of(memory=memory, home=home)
    backend = backend_of(ctx)
    if foreground:
        code = backend.run_foreground(config)
        if as_json:
            render.print_json({"pid": os.getpid(), "home": str(config.home), "exit_code": code})
        ctx.exit(code)
    try:
        pid, is_started = backend.start(config), True
    except ServerAlreadyRunningError:
        pid, is_started = 0, False
    with backend.connect(config, autostart=False) as client:
        status = client.status()
    pid, notices = pid or status.pid, status.notices
    render.show(
        as_json,
        {"pid": pid, "home": str(config.home), "started": is_started, "notices": notices},
        [f"server {pid} {'started for' if is_started else 'already runs for'} {config.home}"],
    )
    for notice in notices:
        click.echo(f"prefeed: {notice}", err=True)


@command.command()
@node_option
@json_option
@click.pass_context
def stop(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Stop the node server and wait until it has ended and its memory is free.

    If the server does not reply, because it is busy or suspended, it is resumed, sent SIGTERM, and killed after 10 seconds.
    Training continues, because readers then read the data from its origin. Succeeds if no server runs.
    """
    config = node_config_of(home)
    try:
        ended = backend_of(ctx).stop(config)
    except ServerBusyError:
        raise
    except ServerUnavailableError as err:
        render.show(as_json, {"pid": None, "stopped": False, "killed": False}, [str(err)])
        return
    if as_json:
        render.print_json({"pid": ended.pid, "stopped": True, "killed": ended.killed})
    elif ended.killed:
        render.print_lines(
            [f"server {ended.pid} killed, because it did not reply; the next server begins with an empty memory tier"]
        )
    else:
        render.print_lines([f"server {ended.pid} stopped"])


@command.command()
@node_option
@json_option
@click.pass_context
def status(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show whether the node server runs, since when, and which processes use it."""
    missing_server_exits(ctx)
    backend, config = backend_of(ctx), node_config_of(home)
    try:
        with backend.connect(config, autostart=False, answer_seconds=_ANSWER_SECONDS) as client:
            value = client.status()
    except ServerUnavailableError as err:
        silent = backend.silent_server(config)
        if silent is None:
            raise
        state = "suspended (SIGSTOP): resume it with SIGCONT" if silent.suspended else "busy: wait"
        raise ServerBusyError(
            f"server {silent.pid} runs for {config.home} and does not answer; it is {state}, or end it with "
            "`prefeed server stop`",
            pid=silent.pid,
            suspended=silent.suspended,
        ) from err
    if as_json:
        render.print_json(render.status_object(value))
    else:
        render.print_rows(*render.status_rows(value))
