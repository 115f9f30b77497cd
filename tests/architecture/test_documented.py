"""Every setting is documented, and nothing else is; every command is as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefeed.cli.failure import EXIT_CODES
from prefeed.cli.main import COMMANDS, DEMO, FROM_BENCH, SECTIONS
from prefeed.config import SETTINGS, resolve
from prefeed.sources.store_access import BEARER_TOKENS
from prefeed_bench.cases.stage_hit import VARIABLE as INTERPRETER

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<variable>PREFEED_\w+)` \| (?P<default>.+?) \| (?P<meaning>.+) \|$", re.M)


def documented() -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in ROW.finditer(PAGE.read_text())}


FIRST = ["memory", "roots", "disk", "pool"]
"""The settings that people set; the others are on the page under "Advanced"."""


def test_every_setting_has_its_row_and_every_row_its_setting() -> None:
    assert list(documented()) == [*FIRST, *(name for name in SETTINGS if name not in FIRST)]


def test_variables_are_named_after_their_settings() -> None:
    assert {row["variable"] for row in documented().values()} == {f"PREFEED_{name.upper()}" for name in SETTINGS}


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "home"])
def test_documented_default_is_the_default(name: str) -> None:
    text = documented()[name]["default"].strip("`")
    nowhere = Path("/nonexistent/prefeed.toml")

    assert getattr(resolve({name: text}, environ={}, toml_path=nowhere), name) == (
        getattr(resolve(environ={}, toml_path=nowhere), name)
    )


def test_variables_anywhere_in_the_docs_exist() -> None:
    root = PAGE.parents[1]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"\bPREFEED_[A-Z_]+[A-Z]\b", page.read_text())}

    assert named <= {f"PREFEED_{name.upper()}" for name in SETTINGS} | {
        INTERPRETER,
        BEARER_TOKENS,
        *(name for name in named if name.startswith("PREFEED_TEST_")),  # of `make test-cluster`
    }


# ---------------------------------------------------------------- commands

COMMANDS_PAGE = PAGE.parent / "reference" / "commands.md"


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    section = COMMANDS_PAGE.read_text().partition(f"## {heading}\n")[2]
    lines = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_of_commands_has_each_exit_code() -> None:
    assert {int(code.strip("`")): meaning for code, meaning in rows_of("Errors and exit codes")} == EXIT_CODES


def test_the_page_of_commands_has_the_line_of_each_command_in_its_section() -> None:
    found = {(section, name.strip("`")): line for section in SECTIONS for name, line in rows_of(section)}
    entries = {(entry.section, name): entry.line for name, entry in COMMANDS.items()}

    assert found == entries | {(DEMO, name): line for name, line in FROM_BENCH.items()}
