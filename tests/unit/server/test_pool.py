"""The pool tier on real servers: nothing that happens to them is an error, a wrong byte or a long wait."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from leaks import wait_until
from memcached import Memcached, impostor, memcached, memcached_ring, proxy
from prefeed.pool.values import HEADER_BYTES, pool_key
from prefeed.server.pool import PoolTier

pytestmark = pytest.mark.usefixtures("sandbox")

LONG = 60.0
"""Of a server that answers: a busy machine may take its time."""

SHORT = 0.1
"""Of one that is silent."""

KEY = bytes(range(16))
OTHER = bytes(range(1, 17))
VALUE = random.Random(1).randbytes(84_000)
LARGE = random.Random(2).randbytes(5_000_000)


@contextmanager
def tier_of(*addresses: str, timeout_seconds: float = LONG) -> Iterator[PoolTier]:
    tier = PoolTier(addresses, timeout_seconds=timeout_seconds, clock=time.monotonic)
    try:
        yield tier
    finally:
        tier.close()


@pytest.fixture
def server() -> Iterator[Memcached]:
    with memcached() as server:
        yield server


def store(tier: PoolTier, key: bytes, data: bytes) -> None:
    before = tier.counts().stored
    tier.offer(key, data)
    assert wait_until(lambda: tier.counts().stored > before, timeout_seconds=60)


def read(tier: PoolTier, key: bytes) -> bytes | None:
    found = tier.read(key)
    return None if found is None else bytes(found)


def raw(server: Memcached, *commands: bytes) -> None:
    """Say something to the server as another client would."""
    with server._connect() as connection:
        for command in commands:
            connection.sendall(command)
            connection.recv(65536)


@pytest.mark.parametrize("data", [b"", b"x", VALUE, LARGE], ids=["empty", "one", "photo", "large"])
def test_another_node_reads_what_one_has_stored(data: bytes) -> None:
    with memcached_ring(3) as ring:
        addresses = [server.address for server in ring]
        with tier_of(*addresses) as one, tier_of(*reversed(addresses)) as other:
            store(one, KEY, data)
            assert read(other, KEY) == data
            counts = other.counts()
            assert (counts.hits, counts.misses, counts.read_bytes) == (1, 0, len(data))
            assert one.counts().written_bytes == len(data)


def test_parts_of_a_large_object_lie_on_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefeed.pool.servers.DEFAULT_ITEM_BYTES", 65_536)  # five parts are on one server now and then
    with memcached_ring(2) as ring, tier_of(*(server.address for server in ring)) as tier:
        store(tier, KEY, LARGE)
        assert [int(server.statistics()["curr_items"]) > 0 for server in ring] == [True, True]


def test_a_photo_is_handed_on_as_it_was_received(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, VALUE)
        found = tier.read(KEY)
        assert isinstance(found, memoryview)
        assert isinstance(found.obj, bytearray)
        assert len(found.obj) == HEADER_BYTES + len(VALUE) + len(b"\r\nEND\r\n")


@pytest.mark.parametrize("data", [VALUE, LARGE], ids=["photo", "large"])
@pytest.mark.parametrize("at", [0, 5, 12, 30, 50, HEADER_BYTES, HEADER_BYTES + 70_000])
def test_a_value_with_one_wrong_byte_is_counted_and_not_returned(server: Memcached, data: bytes, at: int) -> None:
    seen = 0

    def corrupt(answer: bytes) -> bytes:
        nonlocal seen
        start = answer.find(b"\r\n") + 2 if answer.startswith(b"VALUE") else -seen
        seen = 0 if answer.startswith(b"VALUE") else seen
        wanted = start + at
        seen += len(answer) - max(0, start)
        if not 0 <= wanted < len(answer) or answer.startswith((b"STAT", b"STORED", b"END")):
            return answer
        return answer[:wanted] + bytes([answer[wanted] ^ 1]) + answer[wanted + 1 :]

    with tier_of(server.address) as writer:
        store(writer, KEY, data)
    with proxy(server, corrupt) as bad, tier_of(bad.address) as tier:
        assert read(tier, KEY) is None
        counts = tier.counts()
        assert (counts.corrupt, counts.hits, counts.misses) == (1, 0, 1)


def test_values_of_another_entry_and_parts_of_another_write_are_wrong(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, OTHER, VALUE)
        raw(server, b"set %s 0 0 3\r\nabc\r\n" % pool_key(KEY))
        assert read(tier, KEY) is None
        store(tier, KEY, LARGE)
        raw(server, b"set %s 0 0 70\r\n%s\r\n" % (pool_key(KEY, 2), b"x" * 70))
        assert read(tier, KEY) is None
        assert tier.counts().corrupt == 2
        assert read(tier, OTHER) == VALUE


def test_an_object_with_a_missing_part_is_a_miss_and_is_stored_again(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, LARGE)
        raw(server, b"delete %s\r\n" % pool_key(KEY, 3))
        assert read(tier, KEY) is None
        assert tier.counts().corrupt == 0
        store(tier, KEY, LARGE)
        assert read(tier, KEY) == LARGE


def test_who_comes_second_waits_for_what_the_first_one_fetches(server: Memcached) -> None:
    with tier_of(server.address) as first, tier_of(server.address) as second:
        assert read(first, KEY) is None
        answers: list[bytes | None] = []
        waiting = threading.Thread(target=lambda: answers.append(read(second, KEY)))
        waiting.start()
        assert wait_until(lambda: second.counts().waits == 1, timeout_seconds=60)
        first.offer(KEY, VALUE)
        waiting.join()
        assert answers == [VALUE]
        assert second.counts().expired_waits == 0


def test_a_wait_ends_when_the_claim_is_gone(server: Memcached) -> None:
    with tier_of(server.address) as first, tier_of(server.address) as second:
        assert read(first, KEY) is None
        answers: list[bytes | None] = []
        waiting = threading.Thread(target=lambda: answers.append(read(second, KEY)))
        waiting.start()
        assert wait_until(lambda: second.counts().waits == 1, timeout_seconds=60)
        raw(server, b"delete %s\r\n" % pool_key(KEY))
        waiting.join()
        assert answers == [None]
        assert second.counts().expired_waits == 1


def test_a_wait_ends_by_itself_and_sooner_when_a_reader_waits(server: Memcached) -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            self.now += 0.05
            return self.now

    def looks(is_urgent: bool) -> int:
        before = int(server.statistics()["cmd_get"])
        tier = PoolTier([server.address], timeout_seconds=5, clock=Clock())
        try:
            assert tier.read(KEY, is_urgent=lambda: is_urgent) is None
        finally:
            tier.close()
        return int(server.statistics()["cmd_get"]) - before

    with tier_of(server.address) as first:
        assert read(first, KEY) is None
        assert 2 < looks(is_urgent=True) < looks(is_urgent=False)


def test_a_node_does_not_wait_for_itself(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        assert read(tier, KEY) is None
        assert read(tier, KEY) is None
        assert tier.counts().waits == 0


def test_a_pool_that_is_down_is_neither_asked_nor_waited_for() -> None:
    with memcached_ring(2) as ring, tier_of(*(server.address for server in ring)) as tier:
        store(tier, KEY, VALUE)
        for server in ring:
            server.kill()
        assert read(tier, KEY) is None
        assert read(tier, OTHER) is None
        assert wait_until(lambda: read(tier, KEY) is None and tier.counts().left_out == 2, timeout_seconds=60)
        tier.offer(KEY, VALUE)
        assert not tier._waiting
        assert tier.counts().waits == 0


def test_a_server_that_was_started_empty_is_filled_again(server: Memcached) -> None:
    with tier_of(server.address) as tier:
        store(tier, KEY, VALUE)
        server.kill()
        server.start()
        assert read(tier, KEY) is None
        store(tier, KEY, VALUE)
        assert read(tier, KEY) == VALUE


def test_a_full_pool_refuses_is_counted_and_continues_serving() -> None:
    with memcached(memory_mib=2) as server, tier_of(server.address) as tier:
        keys = [bytes([number]) * 16 for number in range(60)]
        for key in keys:
            tier.offer(key, VALUE)
        assert wait_until(lambda: tier.counts().stored + tier.counts().refused == len(keys), timeout_seconds=60)
        assert tier.counts().refused > 0
        assert tier.counts().left_out == 0
        found = [read(tier, key) for key in keys]
        assert set(found) <= {VALUE, None}
        assert found.count(VALUE) == tier.counts().stored


def test_what_comes_while_too_much_waits_is_dropped_and_counted(
    server: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.server.pool._MOST_WAITING_BYTES", 3 * len(VALUE))
    with tier_of(server.address) as tier:
        store(tier, KEY, VALUE)
        server.pause()
        for number in range(40):
            tier.offer(bytes([number]) * 16, VALUE)
        assert tier.counts().dropped > 0
        server.resume()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"VALUE a 0 1\r\n"])
def test_a_wrong_server_is_no_error(answer: bytes) -> None:
    with impostor(answer) as wrong, tier_of(wrong.address, timeout_seconds=SHORT) as tier:
        assert read(tier, KEY) is None
        tier.offer(KEY, VALUE)
        assert tier.counts().left_out == 1
        assert tier.counts().failures == 1


def test_closing_ends_a_wait(server: Memcached) -> None:
    with tier_of(server.address) as first, tier_of(server.address) as second:
        assert read(first, KEY) is None
        waiting = threading.Thread(target=lambda: read(second, KEY))
        waiting.start()
        assert wait_until(lambda: second.counts().waits == 1, timeout_seconds=60)
        second.close()
        waiting.join()


def test_without_threads_nothing_is_stored_and_nothing_breaks(
    server: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with tier_of(server.address) as tier:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            tier.offer(OTHER, VALUE)
        store(tier, KEY, VALUE)
        assert wait_until(lambda: tier.counts().stored == 2, timeout_seconds=60)
        assert read(tier, OTHER) == VALUE


def test_reports_that_a_full_server_does_not_take_are_not_awaited() -> None:
    with memcached(memory_mib=2) as full, tier_of(full.address) as first, tier_of(full.address) as second:
        for number in range(60):
            first.offer(number.to_bytes(16, "big"), VALUE)
        assert wait_until(lambda: first.counts().refused > 0, timeout_seconds=60)
        assert read(first, KEY) is None
        assert read(second, KEY) is None
        assert second.counts().waits == 0
