"""The frame of ``prefeed top`` as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefeed.cli.top_view import History, Look, Sample, bar, frame, header, short_count, sparkline, tail
from prefeed.types import DiskCounts, PoolCounts, Statistics
from top_looks import HOME, NO_SERVER, SAMPLE, looks


def history_of(*shown: Look) -> History:
    history = History()
    for look in shown:
        history.add(look)
    return history


def lines_of(*shown: Look, width: int = 100) -> list[str]:
    return [line.plain for line in frame(history_of(*shown), home=HOME, width=width)]


def line_with(lines: list[str], start: str) -> str:
    return next(line for line in lines if line.startswith(start))


@pytest.mark.parametrize("width", [60, 80, 100, 240])
def test_lines_fit(width: int) -> None:
    notice = SAMPLE.status.notices[0]
    too_wide = [line for line in lines_of(*looks(), width=width) if len(line) > width and line != notice]

    assert too_wide == []


def test_all_that_the_server_says_is_there() -> None:
    lines = lines_of(*looks(3), width=110)

    assert "pid 4321, up 2 h 2 min, 9 clients" in lines[0]
    assert "98.4 %  31.5 GiB of 32.0 GiB  314k objects, 4,000 transient" in line_with(lines, "memory")
    assert "90.0 GiB of 200.0 GiB  900k objects" in line_with(lines, "disk")
    assert "3 of 4 servers up  210k reads, 13.0 % found" in line_with(lines, "pool")
    assert "3,300/s" in line_with(lines, "hits")
    assert "314.7 MiB/s" in lines[lines.index(line_with(lines, "hits")) + 1]
    assert "80 req/s" in line_with(lines, "origin")
    assert "290.6 GiB by 2.91M hits, 150.0 GiB by 1.40M requests to origins" in line_with(lines, "in all")
    assert line_with(lines, "Rates").startswith("Rates (58 of 64 requests in flight)")
    assert "418k/641k" in line_with(lines, "ImageFolder r0")
    assert "93.0%" in line_with(lines, "ImageFolder r0")
    assert any("6.5 % of 7 min 11 s  epoch 2 of ImageFolder r1" in line for line in lines)
    assert "Syncing" in line_with(lines, "openimages")
    assert "       12 source-throttled" in lines
    assert SAMPLE.status.notices[0] in lines


def test_what_a_node_has_not_takes_no_room() -> None:
    idle = Sample(status=replace(SAMPLE.status, notices=(), max_in_flight=0, in_flight=0), statistics=Statistics())
    text = "\n".join(lines_of(Look(sample=idle)))

    for name in ("disk", "pool", "Plans", "Waiting", "Sample sets", "Errors"):
        assert name not in text
    assert "Rates (0 requests in flight)" in text


def test_without_a_server_the_frame_says_why() -> None:
    lines = lines_of(NO_SERVER)

    assert lines[0].endswith("no server")
    assert lines[1:] == [NO_SERVER.trouble, "trying again"]


def test_a_pool_with_all_servers_up_is_green_and_damage_is_said() -> None:
    statistics = replace(
        SAMPLE.statistics, disk=DiskCounts(objects=1, bytes=1, budget_bytes=2, corrupt=3), pool=PoolCounts(servers=2)
    )
    lines = lines_of(Look(sample=replace(SAMPLE, statistics=statistics)))

    assert "3 damaged" in line_with(lines, "disk")
    assert "2 of 2 servers up  0 reads, - found" in line_with(lines, "pool")


def test_a_long_home_gives_way() -> None:
    line = header(history_of(*looks(1)), home="/a" * 200, width=80)

    assert len(line.plain) == 80
    assert line.plain.endswith("9 clients")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "····"), (0.5, "██··"), (1.0, "████"), (7.0, "████"), (-1.0, "····"), (0.28, "█▏··"), (0.001, "····")],
)
def test_bars(share: float, text: str) -> None:
    assert bar(share, 4).plain == text


@pytest.mark.parametrize(
    ("series", "text"),
    [((), ""), ((0.0, 0.0), "▁▁"), ((1.0, 2.0, 8.0), "▂▃█"), (tuple(map(float, range(9))), "▅▅▆▇█")],
)
def test_charts_show_the_last_numbers(series: tuple[float, ...], text: str) -> None:
    assert sparkline(series, 5) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (12_345, "12.3k"),
        (640_583, "641k"),
        (1_281_167, "1.28M"),
        (10**9, "1.00G"),
    ],
)
def test_short_counts(number: int, text: str) -> None:
    assert short_count(number) == text


@pytest.mark.parametrize(("width", "text"), [(9, "/mnt/data"), (5, "…data"), (1, "…"), (0, ""), (-3, "")])
def test_the_end_of_a_path_stays(width: int, text: str) -> None:
    assert tail("/mnt/data", width) == text
