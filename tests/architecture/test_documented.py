"""Every setting is documented, and nothing else is; every command is as well."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from prefeed.config import SETTINGS, resolve
from prefeed_bench.cases.stage_hit import VARIABLE as INTERPRETER

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ROW = re.compile(r"^\| `(?P<name>\w+)` \| `(?P<variable>PREFEED_\w+)` \| (?P<default>.+?) \| (?P<meaning>.+) \|$", re.M)


def documented() -> dict[str, re.Match[str]]:
    return {row["name"]: row for row in ROW.finditer(PAGE.read_text())}


def test_every_setting_has_its_row_and_every_row_its_setting() -> None:
    assert list(documented()) == list(SETTINGS)


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

    assert named <= {f"PREFEED_{name.upper()}" for name in SETTINGS} | {INTERPRETER}
