"""The ``prefeed`` command. Loads a command's module only when the command is run: ``--help`` stays quick."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Any, Final, NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from prefeed.cli import failure
from prefeed.cli.commands import Commands, completed, set_verbosity
from prefeed.errors import PrefeedError

_WORDS: Final = "prefeed.words"

TRAIN, LOOK, CACHE, DATA, SERVE, TRY = "Train", "Look", "Cache", "Data", "Serve", "Try"
SECTIONS: Final = (TRAIN, LOOK, CACHE, DATA, SERVE, TRY)
"""Sections of ``prefeed --help``."""


class Entry(NamedTuple):
    """Where a command is, and how ``prefeed --help`` shows it; a place without a colon is a module with a ``command``."""

    place: str
    section: str
    line: str


COMMANDS: Final = {
    "clear": Entry("prefeed.cli.warm:clear", CACHE, "Free the cached objects of a URL, or all objects."),
    "config": Entry("prefeed.cli.settings", LOOK, "Show the settings in force, and where each comes from."),
    "doctor": Entry("prefeed.cli.doctor", TRAIN, "Measure whether a training program waits for data, and what helps."),
    "job": Entry("prefeed.cli.job", DATA, "Run jobs of YAML files, and show and stop them."),
    "kubernetes": Entry("prefeed.cli.kubernetes", SERVE, "Give pods a cache, and check documents, without a cluster."),
    "logs": Entry("prefeed.cli.logs", LOOK, "Show the log of the node server."),
    "mount": Entry(
        "prefeed.cli.mount", SERVE, "Show an origin as a read-only directory, for programs in any language."
    ),
    "operator": Entry("prefeed.cli.operator", SERVE, "Make what sample sets and their jobs ask for in a cluster."),
    "pack": Entry("prefeed.cli.pack", DATA, "Pack many small files into few large ones."),
    "run": Entry(
        "prefeed.cli.run", TRAIN, "Run a training program unchanged, with every DataLoader read through the cache."
    ),
    "sampleset": Entry("prefeed.cli.sampleset", DATA, "Give data sets names and caches, and show their state."),
    "server": Entry("prefeed.cli.server", SERVE, "Start, stop and inspect the node server."),
    "stage": Entry("prefeed.cli.stage", CACHE, "Copy a data set into memory or onto a fast disk."),
    "stats": Entry("prefeed.cli.stats", LOOK, "Show hits, misses and the contents of the cache."),
    "sync": Entry("prefeed.cli.sync", DATA, "Copy objects from one place to another, and verify them."),
    "tune": Entry("prefeed.cli.tune", TRAIN, "Find the fastest settings of a DataLoader, by trials."),
    "umount": Entry("prefeed.cli.mount:umount", SERVE, "End a mount of `prefeed mount`."),
    "warm": Entry("prefeed.cli.warm", CACHE, "Fill the cache from a URL before training starts."),
}
"""The commands of prefeed."""


FROM_BENCH: Final = {
    "bench": "Measure the same work with and without prefeed.",
    "demo": "Train on a slow object store, with and without prefeed.",
}
"""Name: one line for ``prefeed --help``; of the commands that another distribution, prefeed-bench, brings."""

ENTRY_POINTS: Final = "prefeed.commands"
"""Group of entry points by which a distribution brings commands: each names a ``click.Command``."""


class LazyGroup(Commands):
    """A group that knows its commands' names and first lines without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *FROM_BENCH, *entry_points(group=ENTRY_POINTS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _command(cmd_name)
        return None if found is None else completed(found, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and keep them for the messages about wrong ones."""
        ctx.meta[_WORDS] = tuple(args)
        with failure.reported(ctx, args):
            return super().parse_args(ctx, list(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = self._lines(ctx)
        for section in SECTIONS:
            rows = [(name, line) for name, line in lines.items() if _section(name) == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return names of commands, without importing those of prefeed, and options."""
        items = [
            CompletionItem(name, help=line) for name, line in self._lines(ctx).items() if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _lines(self, ctx: click.Context) -> dict[str, str]:
        lines = {name: entry.line for name, entry in COMMANDS.items()} | FROM_BENCH
        for name in self.list_commands(ctx):
            if name not in lines and (command := self.get_command(ctx, name)) is not None:
                lines[name] = command.get_short_help_str()
        return dict(sorted(lines.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error becomes one line on stderr and an exit code."""
        with failure.reported(ctx, ctx.meta[_WORDS]):
            return super().invoke(ctx)


def _command(name: str) -> click.Command | None:
    if name in COMMANDS:
        module, _, attribute = COMMANDS[name].place.partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute or "command"))
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return cast(click.Command, point.load())
    return _not_installed(name) if name in FROM_BENCH else None


def _section(name: str) -> str:
    return COMMANDS[name].section if name in COMMANDS else TRY


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
    set_verbosity(ctx, verbose)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    cli(prog_name="prefeed")


if __name__ == "__main__":
    main()
