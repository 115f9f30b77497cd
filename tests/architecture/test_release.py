"""What a release needs beside code: one version, metadata that hold elsewhere, licences, files that others look for."""

from __future__ import annotations

import re
import runpy
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import prefeed

ROOT = Path(__file__).parents[2]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def test_the_citation_is_of_this_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == prefeed.__version__
    assert citation["license"] == metadata("prefeed")["License-Expression"]
    assert {"cff-version", "title", "authors", "message"} <= set(citation)


def test_metadata_name_no_place_of_this_machine() -> None:
    urls = [line.rpartition(", ")[2] for line in metadata("prefeed").get_all("Project-URL", [])]

    assert all(re.match(r"https://(?!localhost|127\.)", url) for url in urls)
    assert metadata("prefeed")["Requires-Python"] == ">=3.11"


def test_the_page_of_licences_names_each_package_that_is_asked_for() -> None:
    names_of: Any = runpy.run_path(str(ROOT / ".ci" / "licences.py"))["names_of"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {name: lines for name, lines in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", (ROOT / "docs/reference/licences.md").read_text(), re.M)
    shown = {name: use for name, use, _ in rows if name != "package"}

    assert {name for name, use in shown.items() if use == "prefeed"} >= set(names_of(project["dependencies"]))
    assert {name for lines in extras.values() for name in names_of(lines)} <= set(shown)


@pytest.mark.parametrize("template", [path for path in TEMPLATES if path.stem != "config"], ids=lambda path: path.stem)
def test_templates_of_issues_ask_for_what_prefeed_can_tell(template: Path) -> None:
    form = yaml.safe_load(template.read_text())
    ids = [field["id"] for field in form["body"]]

    assert {"name", "description", "body"} <= set(form)
    assert len(ids) == len(set(ids))
