"""What starting the command costs, and what it knows without importing commands."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import cast

import click
import pytest

from fake_backend import FakeBackend
from prefeed.cli import main
from prefeed.cli.examples import EXAMPLES
from prefeed.cli.main import COMMANDS, ENTRY_POINTS, FROM_BENCH, cli
from prefeed.cli.stage import COPY
from prefeed.cli.text import mask_secrets
from prefeed.errors import AccessDeniedError

pytestmark = pytest.mark.usefixtures("sandbox")


def test_version(run) -> None:
    assert run(None, "--version").stdout == f"prefeed {importlib.metadata.version('prefeed')}\n"


def test_help_lists_every_command(run) -> None:
    shown = run(None, "--help").stdout

    assert all(f"  {name} " in shown for name in (*COMMANDS, *FROM_BENCH))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_loads_and_documents_itself(name: str) -> None:
    line = COMMANDS[name].line
    command = cli.get_command(click.Context(cli), name)

    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
    assert line.endswith(".")


@pytest.mark.parametrize("name", ["clear", "config", "job", "logs", "server", "stage", "stats", "warm"])
def test_first_line_of_help_is_the_line_in_the_list(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)

    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name].line


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
    assert not imported & {entry.place.partition(":")[0] for entry in COMMANDS.values()}
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
    assert ended.stderr == f"prefeed: `prefeed {name}` needs the package prefeed-bench: pip install prefeed-bench\n"


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


# ---------------------------------------------------------------- what all commands have


def commands() -> dict[str, click.Command]:
    """Return all commands but hidden ones, by the words that call them."""
    found: dict[str, click.Command] = {}
    with click.Context(cli) as ctx:
        for name in cli.list_commands(ctx):
            command = cli.get_command(ctx, name)
            assert command is not None
            inner = {} if not isinstance(command, click.Group) else {
                f"{name} {each}": command.get_command(ctx, each) for each in command.list_commands(ctx)
            }  # fmt: skip
            found |= {path: each for path, each in (inner or {name: command}).items() if each and not each.hidden}
    return found


def test_each_command_has_examples_and_takes_v() -> None:
    assert set(commands()) == set(EXAMPLES)
    for path, command in commands().items():
        assert f"  {EXAMPLES[path][0]}" in command.get_help(click.Context(command)), path
        assert [param.opts for param in command.params].count(["-v", "--verbose"]) == 1, path


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_understood(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed to its end: command, options and their values."""
    monkeypatch.chdir(tmp_path)
    for name in ("sync.yaml", "nightly.yaml", "order.txt"):
        Path(name).touch()
    for example in EXAMPLES[path]:
        words = shlex.split(re.split(r"[|>]", example)[0])
        assert words[0] == "prefeed"
        command, rest, named = cast(click.Command, cli), words[1:], []
        with contextlib.ExitStack() as stack:
            ctx = stack.enter_context(click.Context(cli))
            while isinstance(command, click.Group):
                name = rest[0] if rest[0] in command.list_commands(ctx) else COPY
                rest = rest[1:] if name == rest[0] else rest
                found = command.get_command(ctx, name)
                assert found is not None
                named.append(name)
                command = found
            stack.enter_context(command.make_context(" ".join(named), rest))
        assert " ".join(named) == path


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(["statu"], "'stats'"), (["server", "sto"], "'stop'"), (["stats", "--jsn"], "'--json'"), (["frobnicate"], "")],
    ids=str,
)
def test_a_name_that_is_almost_one_is_answered_with_it(run, arguments: list[str], meant: str) -> None:
    result = run(FakeBackend(), *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    first, usage, more = result.stderr.splitlines()
    assert first.startswith("prefeed: ")
    assert meant in first
    assert ("did you mean" in first.lower()) == bool(meant)
    assert (usage[:7], more[:4]) == ("Usage: ", "Try ")


@pytest.mark.parametrize("arguments", [["statu"], ["--nonsense"], ["stats", "--jsn"], ["warm"]], ids=" ".join)
def test_wrong_usage_is_json_too(run, arguments: list[str]) -> None:
    result = run(FakeBackend(), *arguments, "--json")

    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "wrong-usage"


@pytest.mark.parametrize(
    "arguments",
    [
        ["s3://me:secret@b/x"],
        ["stats", "s3://me:sec/secret@b/x"],
        ["stats", "--https://me:secret@h"],
        ["warm", "--file", "https://me:secret@h", "a"],
        ["server", "start", "--memory", "https://secret@h"],
        ["https://h/x?X-Amz-Signature=secret"],
    ],
    ids=" ".join,
)
def test_keys_of_a_mistyped_url_are_masked(run, arguments: list[str]) -> None:
    result = run(FakeBackend(running=False), *arguments, "--json")

    assert result.exit_code in (1, 2)
    assert "***" in result.stderr
    assert "secret" not in result.stdout + result.stderr
    assert "***" in json.loads(result.stdout)["error"]["message"] or result.stdout == ""


@pytest.mark.parametrize(
    "text",
    [
        "no connection to http://127.0.0.1:9/a@b.jpg",
        "s3://bucket/a b@c: refused",
        "write s3://name/path; known are s3://, gs://, and me@host",
        "no server runs for /home/u@h/.cache",
    ],
)
def test_texts_without_keys_are_left_as_they_are(text: str) -> None:
    assert mask_secrets(text) == text


def test_the_json_file_of_a_program_is_no_json_of_the_command(run) -> None:
    assert run(FakeBackend(), "run", "--json", "out.json", "--nonsense", "x.py").stdout == ""


@pytest.mark.parametrize(
    "arguments", [["-vv", "warm", "s3://b"], ["warm", "-vv", "s3://b"], ["-v", "warm", "s3://b", "-v"]], ids=" ".join
)
def test_v_stands_before_or_behind_the_command(run, arguments: list[str]) -> None:
    backend = FakeBackend(error=AccessDeniedError("s3://b refused the credentials"))

    with pytest.raises(AccessDeniedError):
        run(backend, *arguments)


def test_completion_names_commands_without_importing_them() -> None:
    shown = cli.shell_complete(click.Context(cli), "s")

    assert [item.value for item in shown] == ["sampleset", "server", "stage", "stats", "sync"]
