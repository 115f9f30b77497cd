"""Options and help that all commands share: examples, ``-v``, and suggestions for mistyped names."""

from __future__ import annotations

import logging

import click

from prefeed.cli.examples import EXAMPLES
from prefeed.places import near

_handler = logging.StreamHandler()


class Commands(click.Group):
    """Group of commands with ``-v`` and with examples in their help."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        return None if found is None else add_common_options(found, f"{self.name} {cmd_name}")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or raise a usage error that suggests the most similar name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing and not name.startswith("-"):
            meant = near(name, self.list_commands(ctx))
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise click.UsageError(f"no such command: {name!r}{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)


def add_common_options(command: click.Command, path: str) -> click.Command:
    """Add ``-v`` and examples to a command, unless it has them already.

    Args:
        command: Any command, also of another distribution.
        path: Words after ``prefeed`` that call the command.
    """
    if not any(param.name == "verbose" for param in command.params):
        command.params.append(
            click.Option(
                ["-v", "--verbose"], count=True, expose_value=False, callback=_raise_verbosity,
                help="Log each step; -vv adds details and tracebacks.",
            )
        )  # fmt: skip
        shown = "\n".join(["\b", "Examples:", *(f"  {example}" for example in EXAMPLES.get(path, ()))])
        command.epilog = "\n\n".join([*([shown] if path in EXAMPLES else []), *filter(None, [command.epilog])])
    return command


def _raise_verbosity(ctx: click.Context, _param: click.Parameter, value: int) -> int:
    if value and not ctx.resilient_parsing:
        set_verbosity(ctx, ctx.meta.get("prefeed.verbose", 0) + value)
    return value


def set_verbosity(ctx: click.Context, verbose: int) -> None:
    """Log to stderr at the level of that many ``-v``, unless the program has configured logging."""
    ctx.meta["prefeed.verbose"] = verbose
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_handler)
    if root.handlers == [_handler]:
        root.setLevel({0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG))
