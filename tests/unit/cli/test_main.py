"""What starting the command costs, and what it knows without importing commands."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints

import click
import pytest

from prefeed.cli import main
from prefeed.cli.main import COMMANDS, ENTRY_POINTS, FROM_BENCH, cli

pytestmark = pytest.mark.usefixtures("sandbox")


def test_version(run) -> None:
    assert run(None, "--version").stdout == f"prefeed {importlib.metadata.version('prefeed')}\n"


def test_help_lists_every_command(run) -> None:
    shown = run(None, "--help").stdout

    assert all(f"  {name} " in shown for name in (*COMMANDS, *FROM_BENCH))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_loads_and_documents_itself(name: str) -> None:
    line = COMMANDS[name][1]
    command = cli.get_command(click.Context(cli), name)

    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    assert line.endswith(".")


@pytest.mark.parametrize("name", ["clear", "server", "stats", "warm"])
def test_first_line_of_help_is_the_line_in_the_list(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = (
        "import json, sys\n"
        "from prefeed.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = set(json.loads(ran.stderr))

    assert not imported & {"torch", "torchvision", "numpy", "obstore", "lmdb", "rich", "msgspec"}
    assert not imported & {place.partition(":")[0] for place, _ in COMMANDS.values()}
    assert not [name for name in imported if name.startswith("prefeed_bench")]


@pytest.mark.parametrize("name", FROM_BENCH)
def test_the_line_in_the_list_begins_the_help_of_a_command_of_the_benchmarks(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").startswith(FROM_BENCH[name].removesuffix("."))


# ---------------------------------------------------------------- commands of other distributions


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """Return the entry points of commands that the environment has: none, until some are added."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(main, "entry_points", lambda **which: EntryPoints(points).select(**which))
    return points


@click.command(name="greet")
def greet() -> None:
    """Say hello. And nothing more."""
    click.echo("hello")


@pytest.mark.parametrize("arguments", [[], ["hit", "--runs", "3"], ["--help"], ["-h"]])
@pytest.mark.parametrize("name", FROM_BENCH)
def test_a_command_of_the_benchmarks_says_what_to_install(brought, run, name: str, arguments: list[str]) -> None:
    ended = run(None, name, *arguments)

    assert ended.exit_code == 1
    assert ended.stdout == ""
    assert ended.stderr == f"prefeed: `prefeed {name}` comes with another package: pip install prefeed-bench\n"


def test_a_command_of_another_distribution_is_run_and_listed(brought, run) -> None:
    brought.append(EntryPoint("greet", f"{__name__}:greet", ENTRY_POINTS))
    brought.append(EntryPoint("greet", "elsewhere:greet", "other.commands"))

    assert run(None, "greet").stdout == "hello\n"
    assert re.search(r"^  greet +Say hello\.$", run(None, "--help").stdout, re.MULTILINE)


def test_commands_of_prefeed_itself_cannot_be_replaced(brought, run) -> None:
    brought.append(EntryPoint("stats", f"{__name__}:greet", ENTRY_POINTS))

    command = cli.get_command(click.Context(cli), "stats")
    assert command is not None
    assert command.name == "stats"


def test_an_unknown_command_is_wrong_usage(brought, run) -> None:
    assert run(None, "greet").exit_code == 2


def test_console_script_ends_with_the_exit_code() -> None:
    code = "from prefeed.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "stats", "--nonsense"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 2
    assert "Usage: prefeed stats" in ran.stderr
