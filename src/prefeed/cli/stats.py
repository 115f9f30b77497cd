"""``prefeed stats``."""

from __future__ import annotations

import click

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.options import json_option, missing_server_exits, node_config_of, node_option


@click.command(name="stats")
@node_option
@json_option
@click.pass_context
def command(ctx: click.Context, home: str | None, as_json: bool) -> None:
    """Show hits, misses and what the cache holds.

    Counts are since the server started. Beside the measured hit ratio stands the most that any policy could reach
    with this much memory.
    """
    missing_server_exits(ctx)
    with backend_of(ctx).connect(node_config_of(home), autostart=False) as client:
        value = client.statistics()
    if as_json:
        render.print_json(render.statistics_object(value))
    else:
        render.print_rows(*render.statistics_rows(value))
