"""The two distributions of this repository: released together, with the commands of one registered as those of the other."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import click
import pytest

import prefeed
from prefeed.cli.main import ENTRY_POINTS, FROM_BENCH

ROOT = Path(__file__).parents[2]


def project(folder: Path) -> dict[str, Any]:
    return dict(tomllib.loads((folder / "pyproject.toml").read_text())["project"])


OWN, BENCH = project(ROOT), project(ROOT / "bench")


def test_they_have_one_version_and_one_licence() -> None:
    assert BENCH["version"] == version("prefeed") == prefeed.__version__
    assert OWN["dynamic"] == ["version"], "it stands in prefeed/__init__.py"
    assert (OWN["license"], OWN["requires-python"]) == (BENCH["license"], BENCH["requires-python"])
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "bench" / "LICENSE").read_bytes()


def test_the_benchmarks_need_the_version_that_they_measure() -> None:
    (needed,) = [line for line in BENCH["dependencies"] if line.startswith("prefeed")]
    name, _, pinned = needed.partition("==")
    extras = name.removeprefix("prefeed[").removesuffix("]").split(",")

    assert pinned == prefeed.__version__
    assert set(extras) <= set(OWN["optional-dependencies"])


def test_the_names_of_the_commands_are_those_that_prefeed_knows() -> None:
    assert set(BENCH["entry-points"][ENTRY_POINTS]) == set(FROM_BENCH)


@pytest.mark.parametrize("name", FROM_BENCH)
def test_the_environment_has_each_command(name: str) -> None:
    (point,) = entry_points(group=ENTRY_POINTS, name=name)
    command = point.load()

    assert point.value == BENCH["entry-points"][ENTRY_POINTS][name]
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help
