"""``prefeed session``: new, list, delete."""

from __future__ import annotations

import click

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.commands import Commands
from prefeed.cli.options import config_of, home_option, json_option, missing_server_exits
from prefeed.errors import ServerBusyError, ServerUnavailableError


@click.group(name="session", cls=Commands)
def command() -> None:
    """Make, list and delete sessions of stage caches.

    A session groups the caches of one or more pipelines: pipelines that name the same session share the samples of
    equal stages. Session 0 is the default one; it always exists, and gives way when others need the memory.
    """


@command.command()
@home_option
@json_option
@click.pass_context
def new(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Make a session and print its id, for DatasetCache(session_id)."""
    with backend_of(ctx).connect(config_of(home=home)) as client:
        session = client.new_session()
    render.show(as_json, {"session": session}, [str(session)])


@command.command(name="list")
@home_option
@json_option
@click.pass_context
def list_(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show all sessions with their caches: number of samples, their size, and how often they were found.

    Without a server there is none in memory, and the list is empty.
    """
    config = config_of(home=home)
    try:
        with backend_of(ctx).connect(config, autostart=False) as client:
            sessions = client.list_sessions()
    except ServerBusyError:
        raise
    except ServerUnavailableError:
        sessions = ()
        if config.disk.size_bytes:
            render.say("no server runs: sessions on disk are shown once one does (`prefeed server start`)")
    render.show(as_json, render.sessions_object(sessions), render.session_lines(sessions))


@command.command(name="delete")
@click.argument("sessions", metavar="SESSION...", type=click.IntRange(0, 2**32 - 1), nargs=-1, required=True)
@home_option
@json_option
@click.pass_context
def delete(ctx: click.Context, sessions: tuple[int, ...], home: str | None, as_json: bool) -> None:
    """Delete sessions and their caches, in memory and on disk.

    Training that uses them continues, and recomputes its samples. When one of the sessions does not exist, none is removed.
    """
    missing_server_exits(ctx)
    with backend_of(ctx).connect(config_of(home=home), autostart=False) as client:
        client.drop_sessions(sessions)
    render.show(as_json, {"deleted": list(sessions)}, [f"session {session} deleted" for session in sessions])
