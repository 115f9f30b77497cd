"""How many examples the tests of properties try: a part of them, always the same, or with ``PREFEED_TESTS=all`` all.

Hypothesis has two profiles here. ``ci``, that of ``make test``, tries a quarter of the examples, and derives them from the test
alone: a test that fails does so the next time and on any machine, with no seed to be noted. ``all``, that of
``make test-all``, tries the full number, others each time; it prints what reproduces a failure, and remembers it in
``.hypothesis``. Both do without deadlines: a slow machine is no failure.
"""

from __future__ import annotations

import os
from typing import Final

from hypothesis import settings
from hypothesis.internal.conjecture import providers

VARIABLE: Final = "PREFEED_TESTS"
ARE_ALL: Final = os.environ.get(VARIABLE) == "all"
NAME: Final = "all" if ARE_ALL else "ci"

_LEFT_OUT: Final = 4
_FEWEST: Final = 5
_USUAL: Final = 100


def examples(number: int) -> int:
    """Return how many examples a test tries that tries ``number`` in the profile ``all``."""
    return number if ARE_ALL else max(min(number, _FEWEST), number // _LEFT_OUT)


def header() -> str:
    """Return a line for the head of pytest's report."""
    if ARE_ALL:
        return "hypothesis: profile all, every example, others each time"
    return f"hypothesis: profile ci, a quarter of the examples, always the same ({VARIABLE}=all: all, others each time)"


def load() -> None:
    """Let all tests use the profile that the environment asks for.

    Hypothesis tries constants of the modules that are loaded. In ``ci`` it does not: which ones are loaded depends on the tests
    that the process has run before. It has no setting for that. (6.170, 2026-11)
    """
    if not ARE_ALL:
        assert callable(providers.is_local_module_file)
        providers.is_local_module_file = lambda path: False
    settings.register_profile("ci", max_examples=examples(_USUAL), deadline=None, derandomize=True, database=None)
    settings.register_profile("all", max_examples=_USUAL, deadline=None, print_blob=True)
    settings.load_profile(NAME)


load()
