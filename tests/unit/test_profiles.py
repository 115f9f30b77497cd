"""Properties try the same examples in each run."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import profiles


def examples_tried() -> list[int]:
    tried: list[int] = []

    @settings(max_examples=200)
    @given(st.integers())
    def a_property(number: int) -> None:
        tried.append(number)

    a_property()
    return tried


@pytest.mark.skipif(profiles.ARE_ALL, reason="the profile of all examples tries others each time")
def test_examples_do_not_depend_on_the_modules_that_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = examples_tried()
    numbers = random.Random(1).sample(range(10**6, 10**9), 100)
    path = tmp_path / "constants.py"
    path.write_text(f"NUMBERS = {numbers}\n")
    spec = importlib.util.spec_from_file_location("constants", path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "constants", module)

    assert examples_tried() == before
