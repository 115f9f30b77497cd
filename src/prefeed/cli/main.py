"""The ``prefeed`` command. Loads a command's module only when the command is run: ``--help`` stays quick."""

from __future__ import annotations

import importlib
import logging
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Any, Final, cast

import click

from prefeed.cli import failure
from prefeed.errors import PrefeedError

COMMANDS: Final = {
    "clear": ("prefeed.cli.warm:clear", "Free the cached objects of a URL, or all objects."),
    "doctor": ("prefeed.cli.doctor", "Show whether a training program waits for data, and what helps."),
    "job": ("prefeed.cli.job", "Copy, warm, free and remove data sets."),
    "kubernetes": ("prefeed.cli.kubernetes", "Give pods a cache, and check documents, without a cluster."),
    "mount": ("prefeed.cli.mount", "Show an origin as a read-only directory, for programs in any language."),
    "operator": ("prefeed.cli.operator", "Make what sample sets and their jobs ask for in a cluster."),
    "pack": ("prefeed.cli.pack", "Pack many small files into few large ones."),
    "run": ("prefeed.cli.run", "Run a training program unchanged, with every DataLoader read through the cache."),
    "sampleset": ("prefeed.cli.sampleset", "Give data sets names and caches, and show their state."),
    "server": ("prefeed.cli.server", "Start, stop and inspect the node server."),
    "session": ("prefeed.cli.session", "Make, list and drop sessions of stage caches."),
    "stage": ("prefeed.cli.stage", "Copy a data set into memory or onto a fast disk."),
    "stats": ("prefeed.cli.server:stats", "Show hits, misses and the contents of the cache."),
    "top": ("prefeed.cli.top", "Watch tiers, plans, rates and waits live."),
    "tune": ("prefeed.cli.tune", "Find the fastest settings of a DataLoader, by trials."),
    "umount": ("prefeed.cli.mount:umount", "End a mount of `prefeed mount`."),
    "unstage": ("prefeed.cli.stage:unstage_command", "Remove copies that `prefeed stage` made."),
    "warm": ("prefeed.cli.warm", "Fill the cache from a URL before training starts."),
}
"""Name: (module, with a ``command`` or what is named behind it, one line for ``prefeed --help``)."""


FROM_BENCH: Final = {
    "bench": "Measure the same work with and without prefeed.",
    "demo": "Train on a slow object store, with and without prefeed.",
}
"""Name: one line for ``prefeed --help``; of the commands that another distribution, prefeed-bench, brings."""

ENTRY_POINTS: Final = "prefeed.commands"
"""Group of entry points by which a distribution brings commands: each names a ``click.Command``."""


class LazyGroup(click.Group):
    """A group that knows its commands' names and first lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *FROM_BENCH, *entry_points(group=ENTRY_POINTS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, name = COMMANDS[cmd_name][0].partition(":")
            return cast(click.Command, getattr(importlib.import_module(module), name or "command"))
        for point in entry_points(group=ENTRY_POINTS, name=cmd_name):
            return cast(click.Command, point.load())
        return _not_installed(cmd_name) if cmd_name in FROM_BENCH else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = {name: line for name, (_, line) in COMMANDS.items()} | FROM_BENCH
        for name in self.list_commands(ctx):
            if name not in lines and (command := self.get_command(ctx, name)) is not None:
                lines[name] = command.get_short_help_str()
        with formatter.section("Commands"):
            formatter.write_dl(sorted(lines.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a PrefeedError becomes one line on stderr and an exit code."""
        with failure.reported(ctx):
            return super().invoke(ctx)


def _not_installed(name: str) -> click.Command:
    """Return a command that takes any arguments and says what to install."""

    def say() -> None:
        raise PrefeedError(f"`prefeed {name}` comes with another package: pip install prefeed-bench")

    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True}
    return click.Command(name, callback=say, add_help_option=False, context_settings=takes_all)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version("prefeed"), prog_name="prefeed", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log each step; -vv adds details and tracebacks.")
@click.pass_context
def cli(ctx: click.Context, verbose: int) -> None:
    """A read-ahead cache that all training processes of a machine share: it asks your sampler which files come next, and loads them before the workers need them.

    Settings come from options, PREFEED_* in the environment, prefeed.toml and your config.toml, in that order.
    """
    ctx.meta["prefeed.verbose"] = verbose
    level = {0: logging.WARNING, 1: logging.INFO}.get(verbose, logging.DEBUG)
    logging.basicConfig(level=level, format="%(message)s")


def main() -> None:
    """Run the command line and end the process with its exit code."""
    cli(prog_name="prefeed")


if __name__ == "__main__":
    main()
