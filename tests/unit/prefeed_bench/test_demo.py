"""The demo's figures: comparison, table, chart."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image
from rich.console import Console

from prefeed_bench.demo import DemoOptions, DemoResult, compared, make_summary, make_table, write_chart, write_pages
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.training import EpochReport

PHOTOS = PhotoFolder(root=Path("/pictures"), num_photos=200, total_bytes=200 * 84_000)


def report(
    epoch: int, seconds: float, waiting: float, hit_ratio: float | None, loss: float = 1.5, digest: str = "aa"
) -> EpochReport:
    return EpochReport(
        epoch=epoch,
        images=200,
        seconds=seconds,
        waiting_seconds=waiting,
        origin_requests=200 if hit_ratio != 1.0 else 0,
        hit_ratio=hit_ratio,
        losses=[2.0, loss],
        batch_digests=[digest, "bb"],
    )


def epochs(**changed: object) -> dict[str, list[EpochReport]]:
    return {
        "plain": [report(0, 30.0, 21.0, None), report(1, 30.0, 21.0, None)],
        "prefeed": [report(0, 10.0, 0.5, 0.98, **changed), report(1, 10.0, 0.0, 1.0)],  # type: ignore[arg-type]
    }


@pytest.fixture
def result() -> DemoResult:
    return compared(DemoOptions(num_photos=200), PHOTOS, epochs())


def test_trainings_that_differ_are_an_error() -> None:
    with pytest.raises(BenchFailedError, match="same batches: False, same losses: True"):
        compared(DemoOptions(), PHOTOS, epochs(digest="cc"))
    with pytest.raises(BenchFailedError, match="same batches: True, same losses: False"):
        compared(DemoOptions(), PHOTOS, epochs(loss=1.5000001))


def test_table_has_a_row_an_epoch(result: DemoResult) -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(make_table(result))
    text = out.getvalue()

    assert "200 JPEGs of 84 KB, 20 ms per request" in text
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")
    ]  # heavy lines frame the head
    assert rows == [
        ["torch", "1", "30.0 s", "7", "70 %", "-", "200"],
        ["", "2", "30.0 s", "7", "70 %", "-", "200"],
        ["prefeed", "1", "10.0 s", "20", "5 %", "98 %", "200"],
        ["", "2", "10.0 s", "20", "0 %", "100 %", "0"],
    ]


def test_summary_says_how_much_faster(result: DemoResult) -> None:
    assert "3.0 times as fast: 20 s instead of 60 s" in make_summary(result)


@pytest.mark.leaks(reason="matplotlib keeps the fonts it has used open")
def test_chart_is_a_picture(result: DemoResult, tmp_path: Path) -> None:
    write_chart(result, tmp_path / "chart.png")

    with Image.open(tmp_path / "chart.png") as chart:
        assert chart.format == "PNG"
        assert chart.width > 1000


def test_json_has_every_epoch(result: DemoResult) -> None:
    found = json.loads(json.dumps(result.to_json()))

    assert (found["speedup"], found["same_batches"], found["same_losses"]) == (3.0, True, True)
    assert [epoch["waiting_ratio"] for epoch in found["epochs"]["plain"]] == [0.7, 0.7]
    assert [epoch["hit_ratio"] for epoch in found["epochs"]["prefeed"]] == [0.98, 1.0]
    assert found["host"]["cores"] >= 1


def test_pages_have_all_figures_and_load_nothing(result: DemoResult, tmp_path: Path) -> None:
    page, *pictures = write_pages(result.to_json(), tmp_path)
    text = page.read_text()

    assert [picture.name for picture in pictures] == ["prefeed-demo-light.svg", "prefeed-demo-dark.svg"]
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)
    assert "3.0 times as fast" in text
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th><td>(.*?)</td></tr>", text)
    assert [(name, cells.split("</td><td>")) for name, cells in rows] == [
        ("torch, epoch 1", ["30.0", "7", "70 %", "-", "200"]),
        ("torch, epoch 2", ["30.0", "7", "70 %", "-", "200"]),
        ("prefeed, epoch 1", ["10.0", "20", "5 %", "98 %", "200"]),
        ("prefeed, epoch 2", ["10.0", "20", "0 %", "100 %", "0"]),
    ]


def test_bars_are_as_long_as_their_seconds(result: DemoResult, tmp_path: Path) -> None:
    picture = ET.parse(write_pages(result.to_json(), tmp_path)[1])
    widths = [float(bar.attrib["width"]) for bar in picture.iter("{http://www.w3.org/2000/svg}rect")][2:]
    computing, waiting = widths[0::2], widths[1::2]

    assert len(computing) == len(waiting) == 4
    assert computing[0] + waiting[0] == pytest.approx(3 * (computing[2] + waiting[2]), abs=1)
    assert waiting[0] / (computing[0] + waiting[0]) == pytest.approx(0.7, abs=0.01)
    assert waiting[3] == 0
