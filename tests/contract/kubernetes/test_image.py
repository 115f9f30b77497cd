"""The Containerfile keeps hadolint's rules and ours; the pinned requirements are what ``pyproject.toml`` asks for."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
IMAGE = ROOT / "deploy" / "image"
CONTAINERFILE = IMAGE / "Containerfile"
EXTRAS = ("aws", "pool", "kubernetes")
"""Extras of prefeed that the image has: stores and pools of its server, and the operator."""


def stages() -> list[list[str]]:
    """Return the instructions of each stage, with continued lines joined."""
    text = re.sub(r"\\\n\s*", " ", CONTAINERFILE.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if line.startswith("FROM ")] + [len(lines)]
    return [lines[first:last] for first, last in itertools.pairwise(starts)]


def pinned(name: str) -> dict[str, tuple[str, int]]:
    """Return the version of each package of a file, and the number of its hashes."""
    entries = re.split(r"\n(?=\S)", (IMAGE / name).read_text())
    found = [(re.match(r"([a-z0-9-]+)==([^ ;]+)", each), each.count("--hash=sha256:")) for each in entries]
    assert all(match for match, _ in found), "a line pins no version"
    return {match[1]: (match[2], hashes) for match, hashes in found if match}


def test_hadolint_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    result = subprocess.run([linter, "--no-color", CONTAINERFILE], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, "")


def test_the_image_is_not_root_and_has_neither_sources_nor_tools() -> None:
    *_, last = stages()

    (user,) = [line.split()[1] for line in last if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", user)
    assert [line for line in last if line.startswith(("RUN ", "ADD "))] == []
    assert [line for line in last if line.startswith("COPY ")] == ["COPY --from=build /opt/prefeed /opt/prefeed"]


def test_every_package_is_installed_by_its_hash() -> None:
    first, *_ = stages()
    installs = [part for line in first if line.startswith("RUN ") for part in line.split(" && ") if "install" in part]

    assert len(installs) == 3
    assert [each for each in installs if not ("--require-hashes" in each or "--no-index" in each)] == []
    for name in ("requirements.txt", "build-requirements.txt"):
        assert [package for package, (_, hashes) in pinned(name).items() if hashes == 0] == []


def test_the_pins_are_those_that_the_project_asks_for() -> None:
    """After a change of dependencies: docs/guide/kubernetes.md has the command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"]]
    for extra in EXTRAS:
        wanted += project["project"]["optional-dependencies"][extra]
    there = pinned("requirements.txt")
    for text in wanted:
        asked = Requirement(text)
        assert asked.name in there, text
        assert asked.specifier.contains(there[asked.name][0]), text
    build = pinned("build-requirements.txt")
    assert {Requirement(each).name for each in project["build-system"]["requires"]} <= build.keys()
