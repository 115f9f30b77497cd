"""The node carries out what is decided: requests, commits, deletions, answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_sources import CountingSource, Fault, FaultySource
from nodes import Asked, Rig, content, memory_source, rig
from prefeed.core.actions import Outcome
from prefeed.core.requests import START
from prefeed.errors import (
    AccessDeniedError,
    SourceError,
    ThrottledError,
    TierFullError,
    TransientSourceError,
)
from prefeed.limits import Limits
from prefeed.store.log import stored_bytes
from sandbox import Sandbox

READER = 7
COST = stored_bytes(5000)


@pytest.fixture
def node(sandbox: Sandbox) -> Iterator[Rig]:
    with rig(sandbox.home) as made:
        yield made


# ------------------------------------------------------------ single-flight


def test_readers_that_ask_at_once_share_one_request(sandbox: Sandbox) -> None:
    source = FaultySource(CountingSource(memory_source(4)), {"00002.bin": Fault("stall")})
    with rig(sandbox.home, threads=True) as made:
        dataset = made.open(source)
        readers = [made.demand(dataset, 2) for _ in range(20)]
        source.wait_for_stalled(1)
        readers += [made.demand(dataset, 2) for _ in range(20)]
        source.faults.clear()
        source.release()
        made.pump_until(lambda: all(reader.outcome == Outcome.STORED for reader in readers))
        assert {reader.times for reader in readers} == {1}
        assert source.source.fetches == 1  # type: ignore[attr-defined]
        assert made.tier.get(dataset.key(2)) == content(2)


def test_a_plan_and_a_reader_share_one_request(node: Rig) -> None:
    source = CountingSource(memory_source(4))
    dataset = node.open(source)
    node.plan(READER, dataset, [0, 1])
    reader = node.demand(dataset, 1, consumer=READER)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert source.fetches_by_path == {"00000.bin": 1, "00001.bin": 1}
    assert (node.node.statistics().late, node.node.statistics().misses) == (1, 0)


def test_a_whole_epoch_goes_through_the_threads(sandbox: Sandbox) -> None:
    source = CountingSource(memory_source(300))
    with rig(sandbox.home, threads=True) as made:
        dataset = made.open(source)
        made.plan(READER, dataset, range(300))
        made.pump_until(lambda: made.num_residents(dataset) == 300)
        assert source.fetches == 300
        assert source.max_in_flight <= dataset.limit.limit
        assert made.tier.get(dataset.key(123)) == content(123)
        assert sum(made.tier.groups) == 300


# ------------------------------------------------------------ what the origin does


def test_a_request_that_failed_is_made_again_until_it_succeeds(node: Rig) -> None:
    source = CountingSource(FaultySource(memory_source(1), {"00000.bin": Fault("error", times=2)}))
    dataset = node.open(source)
    reader = node.demand(dataset, 0)
    for _ in range(2):
        node.deliver_all()
        assert reader.outcome is None
        node.timers.run_next()
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    statistics = node.node.statistics()
    assert (source.fetches, statistics.origin_requests, statistics.errors) == (3, 3, {"source-transient": 2})


def test_it_is_given_up_at_the_deadline_and_left_to_the_reader(sandbox: Sandbox) -> None:
    with rig(sandbox.home, limits=Limits(retry_seconds=60.0)) as node:
        dataset = node.open(FaultySource(memory_source(1), {"00000.bin": Fault("truncated")}))
        began = node.clock.now
        reader = node.demand(dataset, 0)
        node.deliver_all()
        while reader.outcome is None:
            node.timers.run_next()
            node.deliver_all()
        assert reader.outcome == Outcome.READ_ORIGIN
        assert 40.0 < node.clock.now - began <= 60.0
        assert node.timers.waiting == []
        assert node.node.statistics().errors.keys() == {"truncated-body"}


def test_an_object_that_is_gone_is_asked_for_once_an_epoch(node: Rig) -> None:
    memory = memory_source(3)
    source = CountingSource(memory)
    dataset = node.open(source)
    memory.remove("00001.bin")
    node.plan(READER, dataset, [0, 1, 2])
    node.deliver_all()
    for _ in range(2):
        reader = node.demand(dataset, 1, consumer=READER)
        assert (reader.outcome, reader.code) == (Outcome.FAILED, "object-not-found")
        assert "memory://test/00001.bin" in reader.text
    assert source.fetches_by_path["00001.bin"] == 1
    memory.put("00001.bin", b"back again")
    node.plan(READER, dataset, [0, 1, 2])
    node.deliver_all()
    assert source.fetches_by_path["00001.bin"] == 2
    assert node.tier.get(dataset.key(1)) is None  # it is another version than the manifest's


def test_denied_access_is_not_tried_again(node: Rig) -> None:
    fault = Fault("error", error=AccessDeniedError("memory://test/00000.bin: 403"))
    dataset = node.open(FaultySource(memory_source(1), {"00000.bin": fault}))
    reader = node.demand(dataset, 0)
    node.deliver_all()
    assert (reader.outcome, reader.code) == (Outcome.FAILED, "access-denied")
    assert node.timers.waiting == []


def test_an_origin_that_refuses_is_logged_once_a_minute(node: Rig, caplog: pytest.LogCaptureFixture) -> None:
    names = [f"{number:05}.bin" for number in range(4)]
    memory = memory_source(4)
    faults = {name: Fault("error", error=AccessDeniedError(f"memory://test/{name}: 403")) for name in names[:3]}
    dataset = node.open(FaultySource(memory, faults))
    memory.remove(names[3])  # says nothing of the origin
    for number in (3, 0, 1):
        node.demand(dataset, number)
        node.deliver_all()
    node.clock.now += 60
    node.demand(dataset, 2)
    node.deliver_all()

    assert [record.getMessage() for record in caplog.records if "the origin" in record.getMessage()] == [
        f"prefeed: the origin memory://test fails: memory://test/{names[number]}: 403" for number in (0, 2)
    ]


def test_throttling_halves_what_is_in_flight(node: Rig) -> None:
    fault = Fault("error", times=3, error=ThrottledError("memory://test: 503 SlowDown"))
    dataset = node.open(FaultySource(memory_source(200), {"00000.bin": fault}))
    node.plan(READER, dataset, range(200))
    assert len(node.fetchers.jobs) == START
    node.deliver(1)
    assert dataset.limit.limit == START // 2
    assert node.node.scheduler.tables[dataset.number].max_in_flight == START // 2
    node.deliver(20)
    assert node.node.scheduler.num_in_flight <= START // 2


def test_latency_lets_more_be_in_flight(node: Rig) -> None:
    dataset = node.open(memory_source(1000))
    node.fetchers.seconds_each = 0.04
    node.plan(READER, dataset, range(1000))
    node.deliver(START)
    assert len(node.fetchers.jobs) == 2 * START


def test_whatever_a_source_raises_is_that_fetch_s_failure(node: Rig) -> None:
    class Broken(CountingSource):
        def fetch(self, path: str) -> object:  # type: ignore[override]
            raise ZeroDivisionError("a defect")

    dataset = node.open(Broken(memory_source(1)))
    reader = node.demand(dataset, 0)
    node.deliver_all()
    assert (reader.outcome, reader.code) == (Outcome.FAILED, SourceError.code)
    assert "ZeroDivisionError: a defect" in reader.text


def test_a_changed_object_reaches_its_reader_and_is_not_kept(node: Rig) -> None:
    memory = memory_source(2)
    dataset = node.open(memory)
    memory.put("00000.bin", b"x" * 5000)
    reader = node.demand(dataset, 0)
    node.deliver_all()
    assert (reader.outcome, reader.data) == (Outcome.INLINE, b"x" * 5000)
    assert list(node.tier.entries()) == []
    assert node.node.statistics().errors == {"object-changed": 1}


def test_a_body_of_another_size_than_listed_is_asked_for_again(node: Rig) -> None:
    """It has the listed version, so it is no changed object: the right one is kept, once it comes."""
    dataset = node.open(FaultySource(memory_source(1), {"00000.bin": Fault("short", times=2)}))
    reader = node.demand(dataset, 0)
    for _ in range(2):
        node.deliver_all()
        assert reader.outcome is None
        node.timers.run_next()
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert [size for _, size, _ in node.tier.entries()] == [5000]
    assert node.node.statistics().errors == {"wrong-answer": 2}


# ------------------------------------------------------------ what the tier does


def test_readers_get_the_bytes_when_the_tier_refuses_them(node: Rig) -> None:
    dataset = node.open(memory_source(8))
    node.tier.refusal = TierFullError("no room")
    node.plan(READER, dataset, range(8))
    readers = [node.demand(dataset, object_id, consumer=READER) for object_id in range(3)]
    node.deliver_all()
    assert [(reader.outcome, reader.data) for reader in readers] == [(Outcome.INLINE, content(i)) for i in range(3)]
    assert node.node.statistics().errors == {TierFullError.code: 1}
    assert node.node.statistics().resident_bytes == 0
    node.tier.refusal = None
    node.node.end_consumer(READER)
    node.deliver_all()
    again = node.demand(dataset, 3)
    node.deliver_all()
    assert again.outcome == Outcome.STORED


def test_what_the_tier_refuses_is_fetched_again_when_its_reader_asks(node: Rig) -> None:
    source = CountingSource(memory_source(8))
    dataset = node.open(source)
    node.tier.refusal = TierFullError("pages are pinned")
    node.plan(READER, dataset, range(8))
    node.deliver_all()
    statistics = node.node.statistics()
    assert (statistics.transient_objects, statistics.transient_bytes, statistics.resident_bytes) == (0, 0, 0)
    assert set(source.fetches_by_path.values()) == {1}
    node.tier.refusal = None
    for object_id in range(8):
        reader = node.demand(dataset, object_id, consumer=READER)
        node.deliver_all()
        assert reader.outcome == Outcome.STORED
        assert node.tier.get(dataset.key(object_id)) == content(object_id)
        node.consume(READER, dataset, [object_id])
    assert set(source.fetches_by_path.values()) == {2}


def test_bytes_of_the_last_epoch_are_not_given_when_the_tier_refuses_them(node: Rig, tmp_path: Path) -> None:
    path = tmp_path / "label"
    path.write_bytes(b"old")
    dataset = node.open_catalogue(path)
    node.begin(READER, dataset, [])
    node.demand(dataset, 0, consumer=READER)
    node.fetchers.make()  # it brings the old bytes, and has yet to be taken in
    on_their_way, node.fetchers._results = node.fetchers._results, []
    path.write_bytes(b"newer")
    node.begin(READER + 1, dataset, [])
    node.check()
    reader = node.demand(dataset, 0, consumer=READER + 1)
    node.tier.refusal = TierFullError("no room")
    node.fetchers._results = on_their_way
    node.node.pump()
    assert (reader.outcome, reader.data) == (Outcome.READ_ORIGIN, b"")


def test_a_reader_that_was_sent_to_the_tier_in_vain_reads_the_origin(node: Rig) -> None:
    dataset = node.open(memory_source(2))
    node.demand(dataset, 0)
    node.deliver_all()
    node.tier.free_many([dataset.key(0)])
    asked = Asked()
    node.node.lost(dataset.number, 0, asked.answer)
    node.node.pump()
    assert asked.outcome == Outcome.READ_ORIGIN
    assert node.node.statistics().errors == {"entry-lost": 1}
    again = node.demand(dataset, 0)
    node.deliver_all()
    assert again.outcome == Outcome.STORED


# ------------------------------------------------------------ datasets


def test_a_manifest_that_is_in_use_is_not_opened_twice(node: Rig) -> None:
    source = memory_source(2)
    assert node.open(source) is node.open(source)


def test_a_newer_listing_inherits_what_did_not_change(node: Rig) -> None:
    source = CountingSource(memory_source(5))
    first = node.open(source)
    node.plan(READER, first, range(5))
    node.deliver_all()
    node.node.scheduler.end_consumer(READER)
    source.source.put("00002.bin", b"changed")  # type: ignore[attr-defined]
    source.source.put("00000a.bin", b"new")  # type: ignore[attr-defined]
    second = node.open(source)
    assert second.number != first.number
    node.plan(READER, second, range(6))
    node.deliver_all()
    assert {path for path, count in source.fetches_by_path.items() if count == 2} == {"00002.bin"}
    assert source.fetches == 7
    assert node.num_residents(second) == 6


def test_clear_frees_what_lies_at_or_below_a_url(sandbox: Sandbox) -> None:
    with rig(sandbox.home) as node:
        ours = node.open(memory_source(3, url="memory://a/b"), name="ours")
        other = node.open(memory_source(3, url="memory://a/bc"), name="other")
        for dataset in (ours, other):
            node.plan(READER, dataset, range(3))
            node.deliver_all()
            node.node.scheduler.end_consumer(READER)
        result = node.node.clear("memory://a/b")
        assert (result.entries, result.bytes) == (3, 3 * COST)
        assert [node.num_residents(d) for d in (ours, other)] == [0, 3]
        assert node.node.clear("memory://a").entries == 3
        assert node.node.clear(None).entries == 0


def test_clear_counts_what_it_freed_while_a_plan_keeps_filling(sandbox: Sandbox) -> None:
    with rig(sandbox.home, capacity=60 * COST) as node:
        dataset = node.open(memory_source(100))
        node.plan(READER, dataset, range(100))
        node.deliver_all()
        assert node.node.clear(None).bytes == 36 * COST


@pytest.mark.parametrize(("dataset", "object_id"), [(99, 0), (1, 2), (1, -1)])
def test_a_question_about_what_is_not_there_leaves_nothing_behind(node: Rig, dataset: int, object_id: int) -> None:
    node.open(memory_source(2))
    for ask in (
        lambda answer: node.node.demand(0, dataset, object_id, answer),
        lambda answer: node.node.lost(dataset, object_id, answer),
    ):
        with pytest.raises((KeyError, IndexError)):
            ask(lambda *_: None)
    node.node.pump()
    assert not node.fetchers.is_urgent


def test_arrivals_wake_the_loop_only_while_a_reader_waits(node: Rig) -> None:
    dataset = node.open(memory_source(2))
    node.plan(READER, dataset, [0])
    assert not node.fetchers.is_urgent
    reader = node.demand(dataset, 1)
    assert node.fetchers.is_urgent
    node.deliver_all()
    assert reader.outcome == Outcome.STORED
    assert not node.fetchers.is_urgent


def test_a_retry_that_is_no_longer_awaited_changes_nothing(node: Rig) -> None:
    fault = Fault("error", times=1, error=TransientSourceError("gone for a moment"))
    dataset = node.open(FaultySource(memory_source(1), {"00000.bin": fault}))
    node.plan(READER, dataset, [0])
    node.deliver_all()
    node.node.scheduler.end_consumer(READER)
    node.timers.run_next()
    node.deliver_all()
    assert node.num_residents(dataset) == 1
