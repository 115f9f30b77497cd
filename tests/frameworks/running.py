"""Unchanged programs of a framework, plain and under ``prefeed run``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import prefeed
from leaks import wait_until
from pages import ROOT, run_page

PROGRAMS = Path(__file__).parent / "programs"
NUM_FILES = 26
"""Not a multiple of any batch size used."""

NUM_PICTURES = 24
"""Of the recipes of the documentation."""


def make_files(root: Path) -> Path:
    """Write small files, long ago as it were."""
    root.mkdir()
    for number in range(NUM_FILES):
        path = root / f"{number:02}.bin"
        path.write_bytes(np.random.default_rng(number).bytes(2000))
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return root


def assert_the_node_reads_ahead(
    program: str, tmp_path: Path, *, answer: list[str], num_workers: int = 0, kind: str = ""
) -> None:
    """Check that a program prints the same with and without prefeed, and that its files were there before they were read.

    Args:
        program: Name of a script in ``programs``, which is given a directory of files and a number of workers.
        tmp_path: Of the test.
        answer: Names of its loaders in the run summary.
        num_workers: See ``program``.
        kind: Given to the program in the place of the number of workers.
    """
    facts = run_program(program, tmp_path, kind or str(num_workers))
    assert (set(facts["served"]), facts["not_served"]) == (set(answer), {})
    assert facts["bypassed"] == {}
    assert wait_until(lambda: prefeed.statistics().reads >= NUM_FILES, timeout_seconds=60)
    counts = prefeed.statistics()
    assert counts.origin_requests == NUM_FILES
    assert (counts.misses, counts.direct_reads) == (0, 0)


def run_program(program: str, tmp_path: Path, argument: str) -> Any:
    """Check that a program prints the same with and without prefeed; return its run summary."""
    root = make_files(tmp_path / "data")
    script = [str(PROGRAMS / program), str(root), argument]
    facts_file = tmp_path / "facts.json"
    plain = _run([sys.executable, *script])
    served = _run(
        [sys.executable, "-m", "prefeed", "run", "--explain", "--root", str(root), "--json", str(facts_file), *script]
    )
    assert served == plain
    return json.loads(facts_file.read_text())


def assert_recipe_is_served(name: str, tmp_path: Path) -> None:
    """Check that the recipe of the documentation's page of that name runs, and that the cache has its files."""
    run_page(ROOT / "docs" / "integrations" / f"{name}.md", tmp_path, with_torch=False, roots="data")
    assert wait_until(lambda: prefeed.statistics().reads >= NUM_PICTURES, timeout_seconds=60)


def _run(command: list[str]) -> str:
    """Return the last line of what a program prints; frameworks print warnings of their own."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]
