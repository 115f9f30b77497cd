"""What all commands have: examples, ``-v``, and a suggestion for a name that is almost one of theirs."""

from __future__ import annotations

import logging

import click

from prefeed.cli.examples import EXAMPLES
from prefeed.places import near

_handler = logging.StreamHandler()


class Commands(click.Group):
    """A group of commands; each has examples in its help, and takes ``-v``."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else completed(found, f"{self.name} {cmd_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is not known is wrong usage, and the message names the one that is meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            meant = near(name, self.list_commands(ctx))
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise click.UsageError(f"there is no command {name!r}{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)


def completed(command: click.Command, path: str) -> click.Command:
    """Return a command with ``-v`` and its examples; a second call changes nothing.

    Args:
        command: Any command, also one of another distribution.
        path: The words by which it is called, behind ``prefeed``.
    """
    if not any(param.name == "verbose" for param in command.params):
        command.params.append(
            click.Option(
                ["-v", "--verbose"], count=True, expose_value=False, callback=_speak_up,
                help="Log each step; -vv adds details and tracebacks.",
            )
        )  # fmt: skip
        shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in EXAMPLES.get(path, ()))])
        command.epilog = "\n\n".join([*([shown] if path in EXAMPLES else []), *filter(None, [command.epilog])])
    return command


def _speak_up(ctx: click.Context, _param: click.Parameter, value: int) -> int:
    if value and not ctx.resilient_parsing:
        set_verbosity(ctx, ctx.meta.get("prefeed.verbose", 0) + value)
    return value


def set_verbosity(ctx: click.Context, verbose: int) -> None:
    """Log to stderr what ``-v``, given so many times, asks for; a program that has configured logging keeps its own way."""
    ctx.meta["prefeed.verbose"] = verbose
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_handler)
    if root.handlers == [_handler]:
        root.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
