"""What starting the command costs, and what it knows without importing commands."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys

import click
import pytest

from prefeed.cli.main import COMMANDS, cli

pytestmark = pytest.mark.usefixtures("sandbox")


def test_version(run) -> None:
    assert run(None, "--version").stdout == f"prefeed {importlib.metadata.version('prefeed')}\n"


def test_help_lists_every_command(run) -> None:
    shown = run(None, "--help").stdout

    assert all(f"  {name} " in shown for name in COMMANDS)


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


def test_console_script_ends_with_the_exit_code() -> None:
    code = "from prefeed.cli.main import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, "stats", "--nonsense"], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 2
    assert "Usage: prefeed stats" in ran.stderr
