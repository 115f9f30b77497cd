"""The commit-msg hook accepts ``area: imperative`` and refuses other subjects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("sandbox")

HOOK = Path(__file__).parents[2] / ".ci" / "commit-subject"


def check(subject: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text(f"{subject}\n\nA body of any length.\n")
    return subprocess.run([sys.executable, HOOK, message], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "subject",
    [
        "server: batch completion messages in groups of 32",
        "torch/order, core: pass windows by value",
        "docs: bring the first page below 100 lines",
        "Merge branch 'main'",
    ],
)
def test_accepted(subject: str, tmp_path: Path) -> None:
    assert check(subject, tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("fix the server", "not of the form"),
        ("server: fixed a leak", "'fixed' is not an imperative"),
        ("server: fixes a leak", "'fixes' is not an imperative"),
        ("server: fixing a leak", "'fixing' is not an imperative"),
        ("server: stop idle processes.", "not of the form"),
        ("server: " + "stop processes " * 4, "at most 60"),
    ],
)
def test_refused(subject: str, fault: str, tmp_path: Path) -> None:
    refused = check(subject, tmp_path)

    assert refused.returncode == 1
    assert fault in refused.stderr
