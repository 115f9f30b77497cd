"""The recipes of these libraries work as they stand on their pages, and the cache serves them: ``make test-programs``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import prefeed
from leaks import wait_until
from pages import ROOT, run_page
from programs.running import offline

if importlib.util.find_spec("timm") is None:
    pytest.skip("the libraries are not installed: make test-programs", allow_module_level=True)


@pytest.mark.parametrize("name", ["huggingface", "monai", "timm", "ultralytics"])
def test_recipe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in offline(tmp_path).items():
        monkeypatch.setenv(variable, value)
    run_page(ROOT / "docs" / "integrations" / f"{name}.md", tmp_path, roots="data")

    assert wait_until(lambda: prefeed.statistics().reads >= 16, timeout_seconds=60)
