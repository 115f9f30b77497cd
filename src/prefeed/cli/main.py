"""The ``prefeed`` command. Imports the module of a command only when the command is run, so that ``--help`` is fast."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from importlib.metadata import version as installed_version
from typing import Any, Final, NamedTuple, cast

import click
from click.shell_completion import CompletionItem

from prefeed.cli import failure
from prefeed.cli.commands import Commands, add_common_options, set_verbosity
from prefeed.errors import PrefeedError

_WORDS: Final = "prefeed.words"

TRAIN, INSPECT, CACHE, DATA, SERVERS, DEMO = SECTIONS = (
    "Train", "Inspect", "Cache", "Data", "Servers and clusters", "Demo and benchmarks",
)  # fmt: skip
"""Sections of ``prefeed --help``."""


class CommandEntry(NamedTuple):
    """Location and help line of a command. A place without a colon is a module with an attribute ``command``."""

    place: str
    section: str
    line: str


COMMANDS: Final = {
    "clear": CommandEntry("prefeed.cli.warm:clear", CACHE, "Free the cached objects of a URL, or all objects."),
    "config": CommandEntry("prefeed.cli.settings", INSPECT, "Show the settings in force and the source of each."),
    "doctor": CommandEntry(
        "prefeed.cli.doctor", TRAIN, "Diagnose why a training program waits for data, and name remedies."
    ),
    "job": CommandEntry("prefeed.cli.job", DATA, "Run, list and stop the jobs in YAML files."),
    "kubernetes": CommandEntry(
        "prefeed.cli.kubernetes", SERVERS, "Print Kubernetes manifests, and add caches to their pods."
    ),
    "logs": CommandEntry("prefeed.cli.logs", INSPECT, "Show the log of the node server."),
    "mount": CommandEntry(
        "prefeed.cli.mount", SERVERS, "Mount an origin as a read-only directory, for programs in any language."
    ),
    "operator": CommandEntry(
        "prefeed.cli.operator", SERVERS, "Run the Kubernetes operator for sample sets and their jobs."
    ),
    "pack": CommandEntry("prefeed.cli.pack", DATA, "Pack many small files into few large ones."),
    "run": CommandEntry(
        "prefeed.cli.run", TRAIN, "Run a training program unchanged, with all its DataLoaders using the cache."
    ),
    "sampleset": CommandEntry(
        "prefeed.cli.sampleset", DATA, "Create, list and delete named data sets with their own caches."
    ),
    "server": CommandEntry("prefeed.cli.server", SERVERS, "Start, stop and inspect the node server."),
    "stage": CommandEntry("prefeed.cli.stage", CACHE, "Copy a data set into memory or onto a fast disk."),
    "stats": CommandEntry("prefeed.cli.stats", INSPECT, "Show hits, misses and the contents of the cache."),
    "sync": CommandEntry("prefeed.cli.sync", DATA, "Copy objects from one origin to another, and verify them."),
    "tune": CommandEntry("prefeed.cli.tune", TRAIN, "Find the fastest settings of a DataLoader by measurement."),
    "umount": CommandEntry(
        "prefeed.cli.mount:umount", SERVERS, "Unmount a directory that `prefeed mount` has mounted."
    ),
    "warm": CommandEntry("prefeed.cli.warm", CACHE, "Fill the cache from a URL before training starts."),
}
"""The commands of prefeed."""


FROM_BENCH: Final = {
    "bench": "Measure the same work with and without prefeed.",
    "demo": "Train on a slow object store, with and without prefeed.",
}
"""Help lines of the commands that the distribution prefeed-bench adds, by name."""

ENTRY_POINTS: Final = "prefeed.commands"
"""Group of entry points with which a distribution adds commands. Each is a ``click.Command``."""


class LazyGroup(Commands):
    """Group that lists names and help lines of its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *FROM_BENCH, *entry_points(group=ENTRY_POINTS).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = _command(cmd_name)
        return None if found is None else add_common_options(found, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and store them for error messages."""
        ctx.meta[_WORDS] = tuple(args)
        with failure.report_errors(ctx, args):
            return super().parse_args(ctx, list(args))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        lines = self._lines(ctx)
        for section in SECTIONS:
            rows = [(name, line) for name, line in lines.items() if _section(name) == section]
            with formatter.section(section):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options and names of commands, without importing the commands of prefeed."""
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
        """Run the command. Report an error as one line on stderr and an exit code."""
        with failure.report_errors(ctx, ctx.meta[_WORDS]):
            return super().invoke(ctx)


def _command(name: str) -> click.Command | None:
    if name in COMMANDS:
        module, _, attribute = COMMANDS[name].place.partition(":")
        return cast(click.Command, getattr(importlib.import_module(module), attribute or "command"))
    for point in entry_points(group=ENTRY_POINTS, name=name):
        return cast(click.Command, point.load())
    return _not_installed(name) if name in FROM_BENCH else None


def _section(name: str) -> str:
    return COMMANDS[name].section if name in COMMANDS else DEMO


def _not_installed(name: str) -> click.Command:
    """Create a command that accepts any arguments and raises an error with the package to install."""

    def fail() -> None:
        raise PrefeedError(f"`prefeed {name}` needs the package prefeed-bench: pip install prefeed-bench")

    takes_all = {"allow_extra_args": True, "ignore_unknown_options": True}
    return click.Command(name, callback=fail, add_help_option=False, context_settings=takes_all)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version("prefeed"), prog_name="prefeed", message="%(prog)s %(version)s")
@click.option("-v", "--verbose", count=True, help="Log each step; -vv adds details and tracebacks.")
@click.pass_context
def cli(ctx: click.Context, verbose: int) -> None:
    """Read training data ahead, in the order of your sampler, into one cache per machine.

    All training processes of the machine share the cache. Settings come from options, PREFEED_* in the environment,
    prefeed.toml and your config.toml, in that order.
    """
    set_verbosity(ctx, verbose)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    cli(prog_name="prefeed")


if __name__ == "__main__":
    main()
