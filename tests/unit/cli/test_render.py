from __future__ import annotations

from dataclasses import replace

import pytest

from fake_backend import STATISTICS, STATUS, WARM
from prefeed.cli import render
from prefeed.types import ClearResult, EpochWait, OriginReads, SessionCounts, Statistics


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (8 * 1024**3, "8.0 GiB"),
        (3 * 1024**4, "3.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_format_bytes(number: int, text: str) -> None:
    assert render.format_bytes(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (7325, "2 h 2 min"),
        (7201, "2 h"),
        (90000, "1 d 1 h"),
    ],
)
def test_format_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert render.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "object", "1 object"), (0, "object", "0 objects"), (1234, "entry", "1,234 entries")],
)
def test_format_count(number: int, noun: str, text: str) -> None:
    assert render.format_count(number, noun) == text


def test_status_rows() -> None:
    title, rows = render.status_rows(STATUS)

    assert title == "server 4321, prefeed 0.1.0, up 2 h 2 min"
    assert dict(rows)["memory directory"] == "/dev/shm/prefeed-1000/ab12cd34 (tmpfs)"
    assert dict(rows)["origin requests"] == "12 in flight, 64 allowed"


def test_status_before_the_first_origin_names_no_limit() -> None:
    _, rows = render.status_rows(replace(STATUS, in_flight=0, max_in_flight=0))

    assert dict(rows)["origin requests"] == "0 in flight"


def test_status_names_fetch_processes() -> None:
    assert "fetch processes" not in dict(render.status_rows(STATUS)[1])
    _, rows = render.status_rows(replace(STATUS, fetch_processes=(12, 13)))
    assert dict(rows)["fetch processes"] == "12, 13"


def test_status_says_when_the_directory_is_not_in_memory() -> None:
    _, rows = render.status_rows(replace(STATUS, on_tmpfs=False))

    assert "on disk" in dict(rows)["memory directory"]


def test_statistics_rows_show_the_bound_beside_the_ratio() -> None:
    title, rows = render.statistics_rows(STATISTICS)
    by_label = dict(rows)

    assert title == "1,000 reads"
    assert by_label["hit ratio"] == "90.0 %   best possible 95.0 %"
    assert by_label["memory tier"] == "100.0 MiB of 200.0 MiB (50.0 %)"
    assert by_label["  transient"] == "1 object, 20.0 MiB"
    assert by_label["error source-throttled"] == "3"


def test_statistics_before_the_first_read() -> None:
    title, rows = render.statistics_rows(Statistics())

    assert title == "0 reads"
    assert dict(rows)["hit ratio"] == "-"
    assert dict(rows)["memory tier"] == "0 B of 0 B (-)"


def test_statistics_object_has_the_derived_values() -> None:
    printed = render.statistics_object(Statistics())

    assert (printed["reads"], printed["hit_ratio"], printed["best_hit_ratio"]) == (0, None, None)


def test_warm_lines_when_all_fits() -> None:
    assert render.warm_lines(WARM) == [
        "1,000 objects, 80.1 MiB: all in the cache; 800 fetched now in 4.0 s (200 objects/s)"
    ]


def test_warm_lines_say_what_did_not_fit_and_what_to_change() -> None:
    lines = render.warm_lines(replace(WARM, resident=600, failed=1))

    assert "600 in the cache (60.0 %)" in lines[0]
    assert lines[1] == "399 objects did not fit; a larger PREFEED_MEMORY holds more"


def test_warm_lines_of_nothing_new() -> None:
    assert "0 fetched now in 0.0 s" in render.warm_lines(replace(WARM, fetched=0, seconds=0.0))[0]


def test_clear_lines() -> None:
    assert render.clear_lines(ClearResult(entries=1, bytes=10)) == ["1 entry freed, 10 B"]
    assert render.clear_lines(ClearResult(entries=0, bytes=0)) == ["nothing to free: no object of it is cached"]


def test_print_rows_keeps_a_long_path_on_one_line_and_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    path = "/scratch/" + "d" * 90 + "/[red]"

    render.print_rows("title [bold]", [("home", path)])

    title, row = capsys.readouterr().out.splitlines()
    assert title == "title [bold]"
    assert row == f"  home  {path}"


def test_stage_caches_have_one_row_where_there_are_any() -> None:
    counts = SessionCounts(sessions=2, caches=1, memory_bytes=5 * 1024**2, disk_bytes=1024**3)
    assert "stage caches" not in dict(render.status_rows(STATUS)[1])
    rows = dict(render.status_rows(replace(STATUS, sessions=counts))[1])
    assert rows["stage caches"] == "2 sessions, 1 cache, 5.0 MiB in memory, 1.0 GiB on disk"
    assert "stage caches" not in dict(render.statistics_rows(STATISTICS)[1])
    assert "stage caches" in dict(render.statistics_rows(replace(STATISTICS, sessions=counts))[1])


def test_last_epoch_of_each_rank_is_shown() -> None:
    def epoch(number: int, rank: int, waited: float) -> EpochWait:
        name = f"Photos (rank {rank})"
        return EpochWait(loader=name, rank=rank, epoch=number, batches=10, seconds=8.0, waited_seconds=waited)

    statistics = replace(STATISTICS, epochs=(epoch(1, 0, 4.0), epoch(1, 1, 2.0), epoch(2, 0, 1.0)))
    rows = [value for name, value in render.statistics_rows(statistics)[1] if name == "epoch"]
    assert rows == [
        "2 of Photos (rank 0): 12.5 % of 8.0 s spent waiting for data",
        "1 of Photos (rank 1): 25.0 % of 8.0 s spent waiting for data",
    ]


def test_how_an_origin_is_read_has_a_row() -> None:
    quick = OriginReads(
        origin="/data", in_place=True, why="storage is quick", open_seconds=4e-7, round_trip_seconds=2.5e-4, samples=1000, files=2000,
        bytes=3 * 1024**2,
    )  # fmt: skip
    slow = OriginReads(origin="/mnt", in_place=False, why="storage is slow", open_seconds=0.005, samples=1, files=1)
    statistics = replace(STATISTICS, origins=(quick, slow, OriginReads(origin="s3://bucket/a", in_place=False)))
    assert [value for name, value in render.statistics_rows(statistics)[1] if name == "reads"] == [
        (
            "/data: direct reads, storage is quick (open 0.4 µs, server round trip 0.25 ms); direct reads so far: 1,000 samples, "
            "about 2,000 files, 3.0 MiB"
        ),
        "/mnt: through the cache, storage is slow (open 5.00 ms); direct reads so far: 1 sample, about 1 file",
        "s3://bucket/a: through the cache",
    ]
    found = render.statistics_object(statistics)["origins"]
    assert isinstance(found, tuple)
    assert found[0] == {
        "origin": "/data", "in_place": True, "why": "storage is quick", "open_seconds": 4e-7, "round_trip_seconds": 2.5e-4,
        "samples": 1000, "files": 2000, "bytes": 3 * 1024**2,
    }  # fmt: skip
