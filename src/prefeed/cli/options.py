"""Options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from prefeed.cli.failure import EXIT_NO_SERVER
from prefeed.config import Config, resolve
from prefeed.errors import PrefeedError, ServerUnavailableError
from prefeed.sampleset.names import find_named, is_named
from prefeed.sampleset.records import names

Command = TypeVar("Command", bound=Callable[..., Any])


def _remember_json(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
    ctx.meta["prefeed.json"] = value
    return value


def json_option(command: Command) -> Command:
    """Add ``--json``, with which stdout is one JSON object, also after an error."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json, help="Print one JSON object."
    )(command)


def home_option(command: Command) -> Command:
    """Add ``--home``."""
    return click.option("--home", metavar="DIR", help="Directory of the node cache (PREFEED_HOME).")(command)


def node_option(command: Command) -> Command:
    """Add ``--home`` to a command for one node. It also accepts sample sets, because each has a home of its own."""
    text = "Directory of the node cache (PREFEED_HOME), or sampleset://NAME for the node of a sample set."
    return click.option("--home", metavar="DIR", help=text)(command)


def node_config_of(home: str | None) -> Config:
    """Return the settings of the node that ``--home`` of ``node_option`` names.

    Raises:
        SampleSetNotFoundError: The set does not exist.
    """
    if home is None or not is_named(home):
        config = config_of(home=home)
        if sets := ", ".join(sorted(names(config))):
            hint = f"each sample set has its own server; use --home sampleset://NAME (sample sets: {sets})"
            click.get_current_context().meta["prefeed.no_server_hint"] = hint
        return config
    config = config_of()
    found, _ = find_named(home, config)
    return found.settings(config)


def config_of(**overrides: Any) -> Config:
    """Resolve the settings with these options. None means that an option was not given."""
    return resolve(overrides)


def has_bar(*, as_json: bool) -> bool:
    """Return whether a command may draw a progress bar on stderr."""
    return not as_json and sys.stderr.isatty()


def missing_server_exits(ctx: click.Context, code: int = EXIT_NO_SERVER) -> None:
    """Set the exit code of this command for the case that no server runs."""
    codes: dict[type[PrefeedError], int] = {ServerUnavailableError: code}
    ctx.meta["prefeed.exit_codes"] = codes
