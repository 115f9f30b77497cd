from concurrent.futures import ThreadPoolExecutor

import pytest

from fake_sources import CountingSource, Fault, FaultySource, MemorySource, SlowSource
from prefeed.errors import AccessDeniedError, TransientSourceError, TruncatedBodyError

pytestmark = pytest.mark.usefixtures("sandbox")


def test_counting_source_counts() -> None:
    source = CountingSource(MemorySource({"a": b"123"}))
    source.fetch("a")
    source.fetch("a")
    with pytest.raises(FileNotFoundError):
        source.fetch("b")
    list(source.list_objects())
    assert (source.listings, source.fetches, source.fetched_bytes, source.in_flight) == (1, 3, 6, 0)
    assert source.fetches_by_path == {"a": 2, "b": 1}
    with pytest.raises(TimeoutError, match="3 fetches"):
        source.wait_until(lambda counts: counts.fetches > 3, timeout_seconds=0.0)


def test_faults_by_path() -> None:
    source = FaultySource(
        MemorySource(dict.fromkeys("abcde", b"1234")),
        {
            "a": Fault("error", times=1),
            "b": Fault("error", error=AccessDeniedError("no")),
            "c": Fault("truncated", times=1),
            "d": Fault("short", times=1),
            "e": Fault("wrong-bytes", times=1),
        },
    )
    with pytest.raises(TransientSourceError):
        source.fetch("a")
    with pytest.raises(TruncatedBodyError):
        source.fetch("c")
    assert source.fetch("d").data == b"12"
    assert source.fetch("e").data == bytes(byte ^ 0xFF for byte in b"1234")
    for name in "acde":
        assert source.fetch(name).data == b"1234"
    for _ in range(3):
        with pytest.raises(AccessDeniedError):
            source.fetch("b")


def test_a_stall_lasts_until_it_is_released() -> None:
    source = FaultySource(MemorySource({"a": b"1"}), {"a": Fault("stall")})
    with ThreadPoolExecutor(2) as pool:
        fetches = [pool.submit(source.fetch, "a") for _ in range(2)]
        source.wait_for_stalled(2)
        assert not any(fetch.done() for fetch in fetches)
        source.release()
        assert [fetch.result().data for fetch in fetches] == [b"1", b"1"]
    assert source.stalled == []


def test_random_faults_come_from_the_seed() -> None:
    def outcomes(seed: int) -> list[bool]:
        source = FaultySource(MemorySource({"a": b"1"}), seed=seed, fault_ratio=0.3)
        failed = []
        for _ in range(200):
            try:
                source.fetch("a")
                failed.append(False)
            except TransientSourceError:
                failed.append(True)
        return failed

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 30 < sum(outcomes(1)) < 90


def test_a_slow_source_lets_all_through_when_released() -> None:
    source = SlowSource(MemorySource({"a": b"1"}), latency_seconds=3600.0)
    with ThreadPoolExecutor(4) as pool:
        fetches = [pool.submit(source.fetch, "a") for _ in range(4)]
        source.release()
        assert [fetch.result().data for fetch in fetches] == [b"1"] * 4
