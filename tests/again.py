"""Runs the tests that failed in the last run again, alone: `python tests/again.py`, from the root of the checkout.

A test of ten thousand that fails once beside others says little about the change that is checked. A defect fails again,
mostly. So CI runs each failed test three times more, one at a time, and passes only if all of these runs pass. It prints
the names: such a test is unstable, and is mended like any other defect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MAX_FAILED = 5
NUM_RUNS = 3


def failed_tests(of_last_run: Iterable[str]) -> list[str]:
    """The ids of tests that failed, as pytest takes them: without the name of the group that xdist runs them in."""
    return sorted(name.rpartition("@")[0] if "@" in name.rpartition("]")[2] else name for name in of_last_run)


def why_not_again(tests: list[str]) -> str | None:
    """Why these failures stand as they are, or None if their tests may run again."""
    if not tests:
        return "no test failed, yet the run did"
    if len(tests) > MAX_FAILED:
        return f"{len(tests)} tests failed; at most {MAX_FAILED} run again"
    if broken := [test for test in tests if "::" not in test]:
        return f"{broken[0]} could not be imported"
    return None


def main() -> str | None:
    """Run the failed tests again. Returns what to print if they do not pass each time."""
    tests = failed_tests(json.loads(FAILED.read_text()) if FAILED.exists() else ())
    if reason := why_not_again(tests):
        return f"again: {reason}"
    for number in range(1, NUM_RUNS + 1):
        print(f"again: run {number} of {NUM_RUNS} of {len(tests)} failed tests, alone", flush=True)
        if subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *tests]
        ).returncode:
            return f"again: failed again in run {number}"
    print("again: unstable, failed beside others and passed alone:", *tests, sep="\n  ", flush=True)
    return None


if __name__ == "__main__":
    sys.exit(main())
