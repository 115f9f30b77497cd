"""``prefeed clear``."""

from __future__ import annotations

import click

from prefeed.cli import render
from prefeed.cli.backend import backend_of
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.cli.url import located


@click.command(name="clear")
@click.argument("url", required=False)
@click.option("--all", "everything", is_flag=True, help="Free all objects of this home.")
@home_option
@json_option
@click.pass_context
def command(ctx: click.Context, url: str | None, everything: bool, home: str | None, as_json: bool) -> None:
    """Free what the cache holds of a URL, or all of it.

    URL may be the name of a sample set, sampleset://NAME/PATH. The data at the origin is never touched. Stage caches stay too: `prefeed session drop` removes those.
    Objects in a pool stay as well: other nodes use them, and they are never out of date.
    """
    if (url is None) != everything:
        raise click.UsageError("give either a URL or --all")
    where, config = (None, config_of(home=home)) if url is None else located(url, config_of(home=home))
    with backend_of(ctx).connect(config) as client:
        result = client.clear(where)
    if as_json:
        render.print_json(render.clear_object(result))
    else:
        render.print_lines(render.clear_lines(result))
