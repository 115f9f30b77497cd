"""The benchmarks of prefetching: one runs at its smallest size, one says that it was not run."""

from __future__ import annotations

import pytest
import torch

from prefeed_bench.cases import background, run_case
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.harness import Options


@pytest.mark.usefixtures("sandbox")
def test_background_gives_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_original", lambda: iter)
    found = run_case("background", Options(runs=1, quick=True)).to_json()
    assert found["us_per_item"] > found["original_us_per_item"] > 0
    assert found["overlap"] > found["original_overlap"]


@pytest.mark.usefixtures("sandbox")
def test_without_the_original_its_figures_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_original", lambda: None)
    found = run_case("background", Options(runs=1, quick=True)).to_json()
    assert (found["original_us_per_item"], found["original_overlap"]) == (None, None)
    assert "pip install prefetch_generator" in found["notes"][-1]
    assert found["us_per_item"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_is_run() -> None:
    with pytest.raises(MissingRequirementError, match="not run: torch sees no CUDA device"):
        run_case("device", Options(runs=1, quick=True))
