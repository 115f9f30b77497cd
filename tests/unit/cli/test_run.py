"""What ``prefeed run`` starts, and in which environment; nothing is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefeed.cli.run import AUTOSTART
from prefeed.errors import ServerError


class Started(Exception):
    """Stands for the end of this process."""


@pytest.fixture
def start(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[str], dict[str, str]]]:
    """Return what ``prefeed run`` with these arguments would become: (command line, what is new in the environment)."""

    def start(*arguments: str) -> tuple[list[str], dict[str, str]]:
        before, seen = dict(os.environ), []

        def execve(path: str, line: list[str], environment: dict[str, str]) -> None:
            assert path == line[0]
            seen.append((line, environment))
            raise Started

        monkeypatch.setattr(os, "execve", execve)
        with pytest.raises(Started):
            run(None, "run", *arguments)
        assert os.environ == before
        ((line, environment),) = seen
        return line, {name: value for name, value in environment.items() if before.get(name) != value}

    def has_no_runtime_dir(_: Any) -> Path:
        raise ServerError("/tmp is full")  # then nothing is counted

    monkeypatch.setattr("prefeed.cli.run.make_runtime_dir", has_no_runtime_dir)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr("subprocess._args_from_interpreter_flags", list)
    return start


ALWAYS = {"PREFEED_AUTO": "1", "PYTHONPATH": str(AUTOSTART)}


def test_script(start) -> None:
    assert start("train.py") == ([sys.executable, "train.py"], ALWAYS)


def test_what_follows_the_program_is_its_own(start) -> None:
    arguments = ["--memory", "x", "-m", "--", "--help", "-v"]
    assert start("train.py", *arguments)[0] == [sys.executable, "train.py", *arguments]
    assert start("-m", "pkg.train", *arguments) == ([sys.executable, "-m", "pkg.train", *arguments], ALWAYS)
    assert start("--", "train.py", "--", "x")[0] == [sys.executable, "train.py", "--", "x"]


def test_code_and_standard_input(start) -> None:
    code = "import sys; print(sys.argv)"
    arguments = ["--memory", "x", "-m", "-c", "--", "--help"]
    assert start("-c", code, *arguments) == ([sys.executable, "-c", code, *arguments], ALWAYS)
    assert start("--memory", "1GiB", "-c", code) == (
        [sys.executable, "-c", code],
        {"PREFEED_MEMORY": str(2**30), **ALWAYS},
    )
    assert start("-", "a")[0] == [sys.executable, "-", "a"]


@pytest.mark.parametrize(
    "line",
    [
        "-I",
        "-E x.py",
        "-S -c pass",
        "-uI -m package",
        "-W error -X dev -bIs x.py",
        "--check-hash-based-pycs default -IX dev",
    ],
)
@pytest.mark.parametrize("python", ["python", "python3.11", sys.executable, "nice -n 5 python3"])
def test_a_python_that_would_not_find_prefeed_is_refused(run, python: str, line: str) -> None:
    refused = run(None, "run", *python.split(), *line.split())
    assert refused.exit_code == 2
    assert "disables prefeed: leave out -E, -I and -S" in refused.stderr


@pytest.mark.parametrize(
    "line",
    [
        "python -u x.py -I",
        "python -m package -E",
        "python -c pass -S",
        "python -W ISE -XISE - -I",
        "env x.py python -I",
    ],
)
def test_options_of_the_program_are_no_options_of_python(start, line: str) -> None:
    assert start(*line.split())[0][1:] == line.split()[1:]


def test_settings(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "--memory",
        "1GiB",
        "--root",
        "a",
        "--root",
        "/b",
        "--home",
        "h",
        "--read-once",
        "--report-interval",
        "5",
    ]
    _, new = start(*options, "train.py")

    assert new == {
        **ALWAYS,
        "PREFEED_MEMORY": str(1 << 30),
        "PREFEED_ROOTS": f"{tmp_path}/a:/b",
        "PREFEED_HOME": f"{tmp_path}/h",
        "PREFEED_READ_ONCE": "1",
        "PREFEED_REPORT_INTERVAL": "5.0",
    }


def test_where_it_counts(start, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.cli.run.make_runtime_dir", lambda _: tmp_path)
    monkeypatch.chdir(tmp_path)
    counting, json_file = (
        ALWAYS | {"PREFEED_RUN": f"{os.getpid()}:{tmp_path}"},
        {"PREFEED_RUN_JSON": f"{tmp_path}/o.json"},
    )
    quiet = {"PREFEED_QUIET": "1"}
    assert start("train.py")[1] == counting
    assert start("--json", "o.json", "train.py")[1] == counting | json_file
    assert start("--quiet", "--json", "o.json", "train.py")[1] == counting | json_file | quiet
    assert start("--quiet", "train.py")[1] == ALWAYS | quiet
    roots = {"PREFEED_ROOTS": f"{tmp_path}/d", "PREFEED_RUN_EXPLAIN": f"{tmp_path}/d"}
    assert start("--explain", "--root", "d", "train.py")[1] == counting | roots


@pytest.mark.usefixtures("sandbox")
def test_counters_of_killed_programs_are_removed(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.cli.run.make_runtime_dir", lambda _: tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        (tmp_path / f"run-{pid}-1").mkdir()
        (tmp_path / f"run-{pid}-1" / "counts-0").touch()
    start("train.py")
    assert os.listdir(tmp_path) == [f"run-{os.getpid()}-1"]


def test_part_of_another_counts_for_that(start, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_RUN", "1:/run/x")
    assert start("train.py")[1] == ALWAYS
    assert "give --json and --explain to that one" in run(None, "run", "--json", "o.json", "train.py").stderr


def test_users_python_path_comes_after(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/one:/two")
    assert start("train.py")[1]["PYTHONPATH"] == f"{AUTOSTART}:/one:/two"


def test_interpreters_flags_go_with_it(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess._args_from_interpreter_flags", lambda: ["-O", "-Werror"])
    assert start("-m", "x")[0] == [sys.executable, "-O", "-Werror", "-m", "x"]


def test_command_that_starts_python(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = tmp_path / "launcher"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir("/")
    assert start("launcher", "--n", "2")[0] == [str(launcher), "--n", "2"]
    launcher.write_text("print()\n")
    monkeypatch.chdir(tmp_path)
    assert start("launcher")[0] == [sys.executable, "launcher"], "a file of that name comes first, as with python"


@pytest.mark.parametrize(
    ("first", "mode", "is_command"),
    [
        (b"\x7fELF\x02\x01\x00", 0o755, True),
        (b"#!/bin/sh\n", 0o755, True),
        (b"#!/usr/bin/env bash\n", 0o700, True),
        (b"#!/bin/sh\n", 0o644, False),
        (b"#!/usr/bin/env python3\n", 0o755, False),
        (b"#!/somewhere/bin/python3.12 -u\n", 0o755, False),
        (b"PK\x03\x04", 0o755, False),
        (b"", 0o755, False),
    ],
)
def test_path_of_a_command(
    start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bytes, mode: int, is_command: bool
) -> None:
    """Such as ``.venv/bin/python``, which is a binary, or ``./launch.sh``: Python could only say that it cannot read them."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "program"
    program.write_bytes(first)
    program.chmod(mode)
    python = [] if is_command else [sys.executable]
    assert start(str(program), "x")[0] == [*python, str(program), "x"]
    monkeypatch.chdir(tmp_path)
    assert start("bin/program")[0] == [*python, "bin/program"]
    monkeypatch.chdir(tmp_path / "bin")
    assert start("program")[0] == [*python, "./program" if is_command else "program"]
    assert start("..")[0] == [sys.executable, ".."], "a directory is Python's"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "missing argument 'PROGRAM'"),
        (["--memory", "much", "x.py"], "'much' is not a size"),
        (["--report-interval", "x", "x.py"], "'x' is not a number"),
        (["--nonsense", "x.py"], "no such option"),
        (["no-such-command", "x.py"], "no such file or command: 'no-such-command'\n"),
        (["sh x.py"], "no such file or command: 'sh x.py'; pass its arguments as separate words"),
        (["./no-such-command"], "no such file or command: './no-such-command'"),
        (["--root", "/a:/b", "x.py"], "cannot be named"),
        (["--json", "/tmp", "x.py"], "cannot write /tmp: name a file"),
    ],
)
def test_refused(run, arguments: list[str], words: str) -> None:
    result = run(None, "run", *arguments)

    assert result.exit_code != 0
    assert words in result.stderr


def test_isolated_python_is_refused(run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Flags:
        ignore_environment = 1
        no_site = 0

    monkeypatch.setattr(sys, "flags", Flags)
    assert "-E, -I or -S" in run(None, "run", "x.py").stderr
