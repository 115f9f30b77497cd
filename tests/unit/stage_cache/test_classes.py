"""Classes are found again by their path, and a module that breaks meanwhile is no more than a class that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.stage_cache.named_types import class_at, is_importable


def test_a_class_is_found_by_its_path() -> None:
    assert class_at("pathlib", "Path") is Path
    assert is_importable(Path)
    with pytest.raises(ValueError, match="not there any more"):
        class_at("pathlib", "Nowhere")


@pytest.mark.parametrize("text", ["def f(:", "raise SystemExit(3)", "{}['a']", "assert False", "import nowhere_at_all"])
def test_a_module_that_is_broken_has_no_classes(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="broken_module cannot be imported"):
        class_at("broken_module", "Thing")
