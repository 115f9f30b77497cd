"""``prefeed config``: the settings in force and the source of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from prefeed.cli import render
from prefeed.cli.options import home_option, json_option
from prefeed.cli.text import printable
from prefeed.config import SETTINGS, Config, DiskBudget, as_text, resolve_with_places
from prefeed.places import require_known

_COLUMNS: Final = ("setting", "value", "from")


@click.command(name="config")
@click.argument("names", nargs=-1, metavar="[SETTING]...")
@home_option
@json_option
def command(names: tuple[str, ...], home: str | None, as_json: bool) -> None:
    """Show the settings in force and the source of each.

    Without SETTING, show all of them. A running node server keeps the settings of its start: `prefeed server status` shows its state.
    """
    require_known(names, SETTINGS)
    config, places = resolve_with_places({"home": home})
    if home is not None:
        places["home"] = "--home"
    shown = names or tuple(SETTINGS)
    value = {name: {"value": _plain(getattr(config, name)), "from": places[name]} for name in shown}
    render.show(as_json, {"settings": value}, render.table([_COLUMNS, *(_row(name, config, places) for name in shown)]))


def _row(name: str, config: Config, places: Mapping[str, str]) -> tuple[str, str, str]:
    return name, printable(as_text(name, getattr(config, name)) or "none"), printable(places[name])


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    return str(value) if isinstance(value, DiskBudget) else value
