from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fake_sources import CountingSource, Fault, FaultySource, MemorySource, SlowSource
from leaks import wait_until
from prefeed.errors import (
    AccessDeniedError,
    BadTargetNameError,
    CopyError,
    TargetFullError,
    ThrottledError,
    TransientSourceError,
)
from prefeed.sources.protocol import Source
from prefeed.transfer import engine
from prefeed.transfer.engine import Body, CopyProgress, CopySummary, copy_objects
from prefeed.transfer.entries import Entry
from prefeed.transfer.flow import CopyLimits

pytestmark = pytest.mark.usefixtures("sandbox")

OBJECTS = {f"{number:04}": bytes([number % 251]) * number for number in range(300)}
QUICK = CopyLimits(retry_deadline_seconds=0.3)


class DictSink:
    """Keeps what it gets; raises what it is told to, by path."""

    def __init__(self, errors: dict[str, Exception] | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.errors = errors or {}

    def write(self, entry: Entry, body: Body) -> None:
        data = b"".join(bytes(chunk) for chunk in body.chunks())
        if entry.path in self.errors:
            raise self.errors[entry.path]
        self.objects[entry.path] = data


def items_of(source: Source) -> list[Entry]:
    return [Entry.of(info) for batch in source.list_objects() for info in batch]


def copy(source: Source, sink: DictSink, **more: object) -> CopySummary:
    return copy_objects(source, items_of(source), sink, **more)  # type: ignore[arg-type]


def test_everything_is_copied_once_and_counted() -> None:
    source, sink = CountingSource(MemorySource(OBJECTS)), DictSink()
    told: list[CopyProgress] = []

    summary = copy(source, sink, progress=told.append)

    assert sink.objects == OBJECTS
    assert (summary.num_copied, summary.bytes_copied) == (300, sum(map(len, OBJECTS.values())))
    assert (summary.failures, summary.full) == ((), None)
    assert source.fetches == 300
    assert told[-1].num_copied == 300


def test_nothing_to_copy_is_done_at_once() -> None:
    assert copy_objects(MemorySource(), iter([]), DictSink()).num_copied == 0


def test_latency_is_met_with_more_in_flight() -> None:
    """20 ms an object and 32 in flight would be 1,600 objects/s."""
    source = CountingSource(SlowSource(MemorySource({str(number): b"x" for number in range(1000)}), 0.02))

    copy(source, DictSink())

    assert source.max_in_flight > 32


def test_no_more_is_in_flight_than_allowed() -> None:
    source = CountingSource(SlowSource(MemorySource(OBJECTS), 0.002))
    copy(source, DictSink(), limits=CopyLimits(max_in_flight=3))
    assert source.max_in_flight <= 3

    heavy = CountingSource(SlowSource(MemorySource({str(n): b"x" * 1000 for n in range(50)}), 0.002))
    copy(heavy, DictSink(), limits=CopyLimits(max_bytes_in_flight=4000))
    assert heavy.max_in_flight <= 4


def test_one_object_larger_than_what_may_be_in_flight_comes_alone() -> None:
    sink = DictSink()
    copy(MemorySource(OBJECTS), sink, limits=CopyLimits(max_bytes_in_flight=1))
    assert sink.objects == OBJECTS


def test_failures_that_pass_are_tried_again() -> None:
    faults = {
        "0001": Fault("error", times=2),
        "0002": Fault("truncated", times=2),
        "0003": Fault("error", times=1, error=ThrottledError("slow down")),
        "0004": Fault("short", times=1),
    }
    sink = DictSink()
    summary = copy(FaultySource(MemorySource(OBJECTS), faults), sink)

    assert sink.objects == OBJECTS
    assert summary.failures == ()


def test_what_fails_for_good_is_reported_and_the_rest_is_done() -> None:
    source = FaultySource(
        MemorySource(OBJECTS),
        {
            "0001": Fault("error", error=AccessDeniedError("/data/0001 may not be read")),
            "0002": Fault("error"),  # until the deadline
            "0003": Fault("truncated"),  # it changes whenever it is read
        },
    )
    sink = DictSink({"0004": BadTargetNameError("too long")})

    summary = copy(source, sink, limits=QUICK)

    assert {failure.path: failure.code for failure in summary.failures} == {
        "0001": "access-denied", "0002": "source-transient", "0003": "truncated-body", "0004": "bad-target-name",
    }  # fmt: skip
    assert sink.objects == {
        path: data for path, data in OBJECTS.items() if path not in ("0001", "0002", "0003", "0004")
    }
    assert summary.num_copied == 296


def test_a_full_sink_ends_it_without_an_error() -> None:
    sink = DictSink({"0100": TargetFullError("full: 0 bytes are left")})

    summary = copy(MemorySource(OBJECTS), sink, limits=CopyLimits(max_in_flight=1))

    assert summary.full == "full: 0 bytes are left"
    assert set(sink.objects) == {path for path in OBJECTS if path < "0100"}
    assert summary.failures == ()


def test_a_broken_sink_is_the_callers_error() -> None:
    with pytest.raises(CopyError, match="read-only"):
        copy(MemorySource(OBJECTS), DictSink({"0100": CopyError("read-only file system")}))


def test_an_origin_that_answers_nothing_any_more_is_not_asked_for_everything() -> None:
    source = CountingSource(FaultySource(MemorySource(OBJECTS), {path: Fault("error") for path in OBJECTS}))

    with pytest.raises(TransientSourceError):
        copy(source, DictSink(), limits=CopyLimits(max_in_flight=64, retry_deadline_seconds=0.0))
    assert source.fetches < 200


def test_an_interrupt_ends_it_though_the_origin_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_ABANDON_SECONDS", 0.05)  # what stalls here does so until the source is closed
    source = FaultySource(MemorySource(OBJECTS), {"0005": Fault("stall")})
    sink = DictSink()

    def interrupt(progress: CopyProgress) -> None:
        if source.stalled and progress.num_copied == 299:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, sink, progress=interrupt)
    source.close()  # lets the thread go that was abandoned
    assert wait_until(lambda: not copying_threads(), timeout_seconds=60)


def test_items_that_cannot_be_had_are_the_callers_error() -> None:
    def broken() -> Iterator[Entry]:
        yield from items_of(MemorySource(OBJECTS))[:5]
        raise RuntimeError("the list ended badly")

    with pytest.raises(RuntimeError, match="ended badly"):
        copy_objects(MemorySource(OBJECTS), broken(), DictSink())
    assert not copying_threads()


def copying_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefeed-copy")]
