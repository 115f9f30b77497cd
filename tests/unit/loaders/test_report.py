"""The lines of the log about one loader, with a clock that the test turns and counts that it makes up."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from counting import counting
from prefeed.loaders.report import WaitReporter, rates
from prefeed.types import EpochWait, ReadCounts


class Loop:
    """A training loop, its clock, and the node's counts."""

    def __init__(self, caplog: pytest.LogCaptureFixture, *, interval_seconds: float = 10.0) -> None:
        self.now = 1000.0
        self.counts: ReadCounts | None = ReadCounts()
        self.num_asked = 0
        self._caplog = caplog
        self.epochs: list[EpochWait] = []
        self.report = WaitReporter(
            "Photos",
            self._read,
            self.epochs.append,
            rank=2,
            interval_seconds=interval_seconds,
            clock=lambda: self.now,
        )

    def step(self, *, waits: float, works: float = 0.0) -> None:
        self.report.asked()
        self.now += waits
        self.report.answered()
        self.now += works

    def epoch(self, *, steps: int, waits: float, works: float) -> None:
        self.report.epoch_begins()
        for _ in range(steps):
            self.step(waits=waits, works=works)
        self.report.epoch_ends()

    def lines(self) -> list[str]:
        """Return what was said since the last call."""
        said = [record.getMessage() for record in self._caplog.records]
        self._caplog.clear()
        return said

    def _read(self) -> ReadCounts | None:
        self.num_asked += 1
        return self.counts


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, logger="prefeed"):
        yield


@pytest.fixture
def loop(caplog: pytest.LogCaptureFixture) -> Loop:
    return Loop(caplog)


def test_a_program_counts_as_it_goes(loop: Loop, tmp_path: Path) -> None:
    with counting(tmp_path / "counts") as sums:
        loop.report.epoch_begins()
        loop.now += 0.5
        loop.report.has_begun()
        loop.step(waits=0.25, works=1.0)
        loop.step(waits=0.25)
        assert sums() == {"loop_ns": 2_000_000_000, "waited_ns": 1_000_000_000}, "of an epoch that goes on"
        loop.report.epoch_begins()  # it was broken off
        loop.step(waits=1.0, works=2.0)
        loop.report.epoch_ends()
        loop.now += 7.0
        loop.step(waits=0.5)  # of nobody's epoch
        assert sums() == {"loop_ns": 5_000_000_000, "waited_ns": 2_000_000_000}


def test_each_epoch_is_published(loop: Loop) -> None:
    loop.report.epoch_begins(2)
    loop.now += 0.5
    loop.report.has_begun()  # the start of workers is waiting, too
    loop.step(waits=0.25, works=0.75)
    loop.step(waits=0.25, works=0.25)
    loop.report.asked()
    loop.report.answered(is_batch=False)
    loop.report.epoch_ends()
    loop.epoch(steps=1, waits=0.0, works=1.0)

    first, second = loop.epochs
    assert first == EpochWait(loader="Photos", rank=2, epoch=1, batches=2, seconds=2.0, waited_seconds=1.0)
    assert first.waited_share == 0.5
    assert (second.epoch, second.batches, second.waited_share) == (2, 1, 0.0)


def test_end_of_an_epoch(loop: Loop) -> None:
    loop.counts = ReadCounts(hits=6, late=2, misses=1, direct_reads=1, best_hit_ratio=0.75)
    loop.epoch(steps=4, waits=0.25, works=0.75)
    (line,) = loop.lines()
    assert line == (
        "prefeed: epoch 1 of Photos (rank 2): 25.0 % of 4.0 s spent waiting for data; "
        "hit ratio 0.600 of 10 reads, best possible without reading ahead 0.750"
    )


def test_each_epoch_is_counted_by_itself(loop: Loop) -> None:
    loop.counts = ReadCounts(misses=10, best_hit_ratio=1.0)
    loop.epoch(steps=1, waits=1.0, works=0.0)
    loop.now += 5.0  # evaluation, a checkpoint: nobody's epoch
    loop.counts = ReadCounts(misses=10, hits=10, best_hit_ratio=1.0)
    loop.epoch(steps=2, waits=0.5, works=1.5)
    first, second = loop.lines()
    best = "of 10 reads, best possible without reading ahead 1.000"
    assert first.endswith(f"100.0 % of 1.0 s spent waiting for data; hit ratio 0.000 {best}")
    assert second.endswith(f"25.0 % of 4.0 s spent waiting for data; hit ratio 1.000 {best}")


def test_start_of_workers_is_the_epochs_time_and_no_waiting_for_data(loop: Loop) -> None:
    loop.report.epoch_begins()
    loop.now += 3.0
    loop.step(waits=1.0)
    loop.report.epoch_ends()
    assert loop.lines()[0].startswith("prefeed: epoch 1 of Photos (rank 2): 25.0 % of 4.0 s ")


@pytest.mark.parametrize("told", [True, False])
def test_a_look_has_no_line_and_leaves_nothing_to_the_next(loop: Loop, told: bool) -> None:
    loop.report.epoch_begins()
    loop.step(waits=5.0)
    loop.counts = ReadCounts(misses=7) if told else None
    loop.report.epoch_begins()
    loop.step(waits=0.0, works=2.0)
    loop.counts = ReadCounts(misses=7, hits=3)
    loop.report.epoch_ends()
    ratio = "1.000 of 3" if told else "0.300 of 10"  # a node that did not tell then says it all now
    assert loop.lines() == [
        f"prefeed: epoch 1 of Photos (rank 2): 0.0 % of 2.0 s spent waiting for data; hit ratio {ratio} reads"
    ]


@pytest.mark.parametrize(("length", "of_all"), [(10, " of 10"), (None, "")])
def test_an_epoch_that_was_left_is_none_and_has_a_line_of_its_own(loop: Loop, length: int | None, of_all: str) -> None:
    """As with a ``break``, or Lightning's ``limit_train_batches``."""
    for _ in range(2):
        loop.report.epoch_begins(length)
        for _ in range(3):
            loop.step(waits=0.5, works=0.5)
        loop.now += 100.0  # the evaluation that follows
        loop.counts = ReadCounts(hits=loop.counts.hits + 9, misses=loop.counts.misses + 3) if loop.counts else None
    assert loop.epochs == []
    loop.epoch(steps=4, waits=0.25, works=0.75)
    line = (
        f"prefeed: unfinished epoch of Photos (rank 2), 3{of_all} batches: 60.0 % of 2.5 s spent waiting for data; "
        "hit ratio 0.750 of 12 reads"
    )
    *left, whole = loop.lines()
    assert [one for one in left if "unfinished" in one] == [line, line]
    assert whole.startswith("prefeed: epoch 1 of Photos (rank 2): 25.0 % of 4.0 s")
    assert [(epoch.epoch, epoch.batches) for epoch in loop.epochs] == [(1, 4)]


@pytest.mark.parametrize("length", [2, 7])
def test_a_trial_is_no_epoch_however_far_it_comes(loop: Loop, length: int) -> None:
    loop.report.epoch_begins(length, is_trial=True)
    loop.step(waits=1.0)
    loop.step(waits=1.0)
    if loop.report.has_last:
        loop.report.epoch_ends()
    loop.epoch(steps=length, waits=0.0, works=1.0)
    trial, whole = loop.lines()
    assert trial.startswith(
        f"prefeed: sanity check of Photos (rank 2){'' if length == 2 else ', 2 of 7 batches'}: 100.0 % of 2.0 s"
    )
    assert whole.startswith("prefeed: epoch 1 of Photos (rank 2): 0.0 %")
    assert [(epoch.epoch, epoch.batches) for epoch in loop.epochs] == [(1, length)]


def test_loop_that_asks_for_no_more_than_there_is(loop: Loop) -> None:
    """Lightning knows how many batches there are: the epoch ends with the last one, and once."""
    for _ in range(2):
        loop.report.epoch_begins(2)
        loop.step(waits=1.0, works=1.0)
        assert not loop.report.has_last
        loop.step(waits=2.0)
        assert loop.report.has_last
        loop.report.epoch_ends()
        assert not loop.report.has_last
        loop.report.epoch_ends()
    assert [line.partition(";")[0] for line in loop.lines()] == [
        "prefeed: epoch 1 of Photos (rank 2): 75.0 % of 4.0 s spent waiting for data",
        "prefeed: epoch 2 of Photos (rank 2): 75.0 % of 4.0 s spent waiting for data",
    ]


def test_rates_at_the_interval(loop: Loop) -> None:
    loop.report.epoch_begins()
    loop.step(waits=9.0)
    assert loop.lines() == []
    assert loop.num_asked == 0  # the node is asked for lines alone
    loop.counts = ReadCounts(hits=3, late=1)
    loop.step(waits=1.0)
    loop.counts = ReadCounts(hits=10, late=1, misses=1)
    loop.step(waits=9.0)
    loop.step(waits=1.0)
    first, second = loop.lines()
    assert first == (
        "prefeed: Photos (rank 2) "
        "last_cycle_metrics:([request_count:4 hit_count:3 miss_count:1 hit_rate:75.00% miss_rate:25.00%]) "
        "sum_metrics:([request_count:4 hit_count:3 miss_count:1 hit_rate:75.00% miss_rate:25.00%])"
    )
    assert second == (
        "prefeed: Photos (rank 2) "
        "last_cycle_metrics:([request_count:8 hit_count:7 miss_count:1 hit_rate:87.50% miss_rate:12.50%]) "
        "sum_metrics:([request_count:12 hit_count:10 miss_count:2 hit_rate:83.33% miss_rate:16.67%])"
    )
    assert loop.num_asked == 2


def test_no_rates(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(caplog, interval_seconds=0.0)
    loop.report.epoch_begins()
    loop.step(waits=10000.0)
    assert loop.lines() == []
    assert loop.num_asked == 0


def test_node_that_does_not_tell(loop: Loop) -> None:
    loop.counts = None
    loop.epoch(steps=2, waits=10.0, works=0.0)
    assert loop.lines() == ["prefeed: epoch 1 of Photos (rank 2): 100.0 % of 20.0 s spent waiting for data"]


def test_new_server_begins_at_zero(loop: Loop) -> None:
    loop.counts = ReadCounts(hits=100)
    loop.epoch(steps=1, waits=0.0, works=1.0)
    loop.counts = ReadCounts(hits=1, misses=3)
    loop.epoch(steps=1, waits=10.0, works=0.0)
    said = loop.lines()
    assert "hit ratio 0.250 of 4 reads" in said[-1]
    assert "last_cycle_metrics:([request_count:4 hit_count:1 miss_count:3 " in said[-2]


def test_nothing_read_and_no_time_passed(loop: Loop) -> None:
    loop.epoch(steps=0, waits=0.0, works=0.0)
    assert loop.lines() == [
        "prefeed: epoch 1 of Photos (rank 2): 0.0 % of 0.0 s spent waiting for data; no reads through the cache"
    ]


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (ReadCounts(), "request_count:0 hit_count:0 miss_count:0 hit_rate:0.00% miss_rate:0.00%"),
        (
            ReadCounts(hits=295001, misses=100, late=50, direct_reads=3),
            "request_count:295154 hit_count:295001 miss_count:153 hit_rate:99.95% miss_rate:0.05%",
        ),
    ],
    ids=["none", "some"],
)
def test_rates_as_cube_torch_prints_them(counts: ReadCounts, text: str) -> None:
    assert rates(counts) == text
