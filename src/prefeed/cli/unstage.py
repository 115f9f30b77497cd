"""``prefeed unstage``."""

from __future__ import annotations

import click

from prefeed.cli import render, stage_view
from prefeed.cli.options import config_of, home_option, json_option
from prefeed.copying.copies import find_copies, list_copies, unstage
from prefeed.jobs.places import refuse_credentials


@click.command(name="unstage")
@click.argument("what", metavar="SRC|PATH", required=False)
@click.option("--all", "everything", is_flag=True, help="Remove every copy.")
@home_option
@json_option
@click.pass_context
def command(ctx: click.Context, what: str | None, everything: bool, home: str | None, as_json: bool) -> None:
    """Remove what `prefeed stage` copied.

    SRC is the origin, PATH what `prefeed stage` printed. All that lies below PATH goes, also what other programs have put
    there. The data at the origin is never touched, nor is anything outside of the copy.
    """
    if (what is None) != everything:
        raise click.UsageError("give either SRC, a PATH or --all")
    if what is not None:
        refuse_credentials(what)
    config = config_of(home=home)
    copies = list_copies(config) if what is None else find_copies(what, config)
    for copy in copies:
        unstage(copy, config)
    if as_json:
        render.print_json({"removed": stage_view.copies_object(copies)["copies"]})
    else:
        render.print_lines(stage_view.removed_lines(copies))
