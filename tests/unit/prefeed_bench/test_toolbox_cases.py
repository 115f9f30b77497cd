"""The benchmarks of the toolbox, small: what they say, and that their charts are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from prefeed_bench.cases import run_case
from prefeed_bench.cases.loader import write_charts
from prefeed_bench.harness import BenchResult, Options

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_PHOTOS = 20
VARIANTS = ("background", "device", "both", "prefeed", "all_together", "disk", "tmpfs")


def small(tmp_path: Path) -> Options:
    return Options(
        runs=1, num_photos=NUM_PHOTOS, quick=True, data_dir=tmp_path / "photos", charts_dir=tmp_path / "charts"
    )


def test_loader(tmp_path: Path) -> None:
    result = run_case("loader", small(tmp_path))
    assert set(result.fields) == {*VARIANTS, "lean", "original_seconds", "disk_seconds"}
    for epochs in result.runs.values():
        assert [epoch["images"] for epoch in epochs[0]] == [NUM_PHOTOS, NUM_PHOTOS]
    charts = sorted(path.name for path in (tmp_path / "charts").iterdir())
    assert charts == ["loader-helpers.png", "loader-preprocessing.png", "loader-storage.png"]


@pytest.mark.whole
def test_doctor(tmp_path: Path) -> None:
    result = run_case("doctor", small(tmp_path))
    for job in ("origin", "decode", "compute"):
        for figure in ("predicted", "measured", "error", "waiting"):
            assert f"{job}_{figure}" in result.fields
    assert [found["job"] for found in result.runs["jobs"]] == ["origin", "decode", "compute"]
    assert all(found["text"].startswith("This job waits") for found in result.runs["jobs"])


def test_charts_show_every_variant(tmp_path: Path) -> None:
    fields = dict.fromkeys((*VARIANTS, "lean"), 0.5)
    spread = dict.fromkeys(fields, (0.4, 0.6))
    result = BenchResult(name="loader", fields=fields, spread=spread, runs={})
    paths = write_charts(result, tmp_path / "new" / "charts")
    heights = []
    for path in paths:
        with Image.open(path) as chart:
            heights.append(chart.size[1])
    assert heights == sorted(heights, reverse=True)  # six bars, four, two
