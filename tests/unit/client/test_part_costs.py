"""When files of which parts are read are better read where they lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefeed.client.lending import CostMeter, Lent
from prefeed.client.part_costs import PartCosts

US, MS, MB = 1e-6, 1e-3, 1e6
PARTS = PartCosts(
    opens=100, opened_bytes=6000 * MB, read_bytes=0.4 * MB, opening_seconds=100 * 40 * US, probes=10, reading_seconds=10 * 10 * US
)  # fmt: skip
"""50 us a file."""


def with_origin(seconds: float, costs: PartCosts = PARTS, **changes: float) -> PartCosts:
    return replace(costs, origin_seconds=costs.probes * seconds, **changes)


def test_a_page_cache_is_quicker_and_slow_storage_is_not() -> None:
    assert with_origin(5 * US).why_slower(is_lasting=False) == (
        "its samples read parts of large files, 3.9 KiB of 57.2 MiB on average: a part took 50 us through the cache "
        "and takes 5 us from the file"
    )
    assert with_origin(49 * US).why_slower(is_lasting=False)
    assert not with_origin(51 * US).why_slower(is_lasting=True)


def test_what_was_waited_for_in_one_epoch_may_help_in_the_next() -> None:
    """Whole files that are fetched again and again, for a part each, do not."""
    fetching = with_origin(20 * MS, opening_seconds=100 * 600 * MS, waited_seconds=100 * 599 * MS)
    assert fetching.is_slower
    assert not fetching.why_slower(is_lasting=False)
    assert "took 600.0 ms through the cache and takes 20.0 ms" in fetching.why_slower(is_lasting=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"read_bytes": 1000 * MB},  # files that are read whole, or nearly
        {"others": 10},  # and small ones beside
        {"opens": 63},  # too few to tell
        {"probes": 3, "reading_seconds": 30 * US},
        {"probes": 0, "reading_seconds": 0},
    ],
    ids=str,
)
def test_other_files_and_too_few_are_left_as_they_are(changes: dict[str, float]) -> None:
    assert not with_origin(1 * US, replace(PARTS, **changes)).why_slower(is_lasting=True)


class Value:
    """Stands for a value of the tier."""

    key = b""

    def __init__(self, data: bytes, clock: Clock | None = None) -> None:
        self.data = data
        self.clock = clock

    def __len__(self) -> int:
        return len(self.data)

    def read(self, start: int, size: int) -> bytes:
        if self.clock is not None:
            self.clock.now += 5 * US
        return self.data[start : start + size]

    def read_into(self, start: int, target: memoryview) -> int:
        part = self.read(start, len(target))
        target[: len(part)] = part
        return len(part)


class Clock:
    """Goes on by what is told to take time."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("prefeed.client.lending.time", clock)
    return clock


def lent(
    tmp_path: Path, *, reads: bool = True, clock: Clock | None = None, opening: float = 0.0, waited: float = 0.0
) -> Lent:
    path = tmp_path / "large"
    if not path.exists():
        path.write_bytes(bytes(10_000))
    value: Any = Value(bytes(10_000), clock)
    made = Lent(value, str(path))
    made.opening_seconds, made.waited_seconds = opening, waited
    if reads:
        assert made.read(4000, 500) == bytes(500)
        assert made.read_into(9_900, memoryview(bytearray(500))) == 100
    return made


def test_what_was_read_is_added_up(tmp_path: Path) -> None:
    meter = CostMeter()
    for _ in range(3):
        meter.was_read(lent(tmp_path, opening=2.0, waited=1.0))
    meter.gave_copy()
    meter.noted(0.5)
    assert meter.take() == PartCosts(
        opens=3, others=1, opened_bytes=30_000, read_bytes=1800, opening_seconds=6.5, waited_seconds=3.0
    )
    assert meter.take() == PartCosts()


def test_the_origin_is_measured_seldom_and_where_it_is_slow_hardly_ever(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    took = 20 * US

    def opens(path: str, flags: int) -> int:
        opened.append(path)
        clock.now += took
        return 99

    monkeypatch.setattr("prefeed.client.lending.os.open", opens)
    monkeypatch.setattr("prefeed.client.lending.os.pread", lambda *_: b"")
    monkeypatch.setattr("prefeed.client.lending.os.close", lambda _: None)

    def epoch(meter: CostMeter, files: int, pause: float = 100 * US) -> int:
        opened.clear()
        for _ in range(files):
            clock.now += pause
            meter.was_read(lent(tmp_path, clock=clock))
        return len(opened)

    meter = CostMeter()
    assert epoch(meter, 64) == 0  # who has but a few files pays nothing
    assert epoch(meter, 3200) == 100
    assert meter.take().origin_seconds == pytest.approx(100 * took)
    meter, took = CostMeter(), 20 * MS
    assert epoch(meter, 5_000) == 1  # in a second: a hundredth of the time would be less
    assert epoch(meter, 1_000, pause=1.0) == 3  # then it is clear enough


def test_storage_on_the_network_is_measured_where_it_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each open of it is one that the cache is there to spare."""
    monkeypatch.setattr("prefeed.client.lending.is_local", lambda _: False)
    meter = CostMeter()
    for _ in range(1000):
        meter.was_read(lent(tmp_path))
    assert meter.take().probes == 0
    meter.was_read(lent(tmp_path, opening=1.0, waited=1.0))
    for _ in range(100):
        meter.was_read(lent(tmp_path))
    assert meter.take().probes > 0


def test_a_file_that_is_gone_or_not_read_is_not_measured(tmp_path: Path) -> None:
    meter = CostMeter()
    for _ in range(200):
        meter.was_read(lent(tmp_path, reads=False))
    gone = lent(tmp_path)
    (tmp_path / "large").unlink()
    for _ in range(200):
        meter.was_read(gone)
    assert (meter.take().probes, meter.take().opens) == (0, 0)
