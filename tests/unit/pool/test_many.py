"""Many values by one question: those that are there come back whole, and what is no answer is none."""

from __future__ import annotations

import random

import pytest

from memcached import Memcached, impostor, memcached, proxy
from prefeed.pool.servers import PoolServer, Stored
from unit.pool.test_ring import SHORT, only, ring_of

pytestmark = pytest.mark.usefixtures("sandbox")

SIZES = [0, 1, 511, 512, 513, 84_000, 300_000]


def values_in(server: PoolServer) -> dict[bytes, bytes]:
    values = {b"k%d" % size: random.Random(size).randbytes(size) for size in SIZES}
    for key, value in values.items():
        assert server.write(key, value) == Stored.YES
    return values


def read_many(server: PoolServer, keys: list[bytes], expected_bytes: int = sum(SIZES)) -> dict[bytes, bytes]:
    return {key: bytes(value) for key, value in server.read_many(keys, expected_bytes=expected_bytes).items()}


@pytest.fixture(scope="module")
def memory() -> Memcached:
    with memcached() as server:
        yield server


@pytest.mark.parametrize("expected_bytes", [0, 1000, sum(SIZES), 10 * sum(SIZES)])
def test_values_that_are_there_come_back_and_others_do_not(memory: Memcached, expected_bytes: int) -> None:
    """Whatever is thought of their size."""
    with ring_of(memory.address) as ring:
        values = values_in(only(ring))
        keys = [b"absent", *values, b"absent too"]
        random.Random(1).shuffle(keys)
        assert read_many(only(ring), keys, expected_bytes) == values
        assert read_many(only(ring), [b"absent"]) == {}
        assert only(ring).read(b"k513") == values[b"k513"]  # the connection is as good as before


def test_values_stay_when_more_is_read(memory: Memcached) -> None:
    with ring_of(memory.address) as ring:
        values = values_in(only(ring))
        first = only(ring).read_many(list(values), expected_bytes=0)
        read_many(only(ring), list(values))
        assert {key: bytes(value) for key, value in first.items()} == values


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"\0" * 100,
        b"A" * 100_000,
        random.Random(4).randbytes(4000),
        b"VALUE k 0 -5\r\nabc\r\nEND\r\n",
        b"VALUE k 0 99999999999999999999\r\nabc\r\nEND\r\n",
        b"VALUE other 0 3\r\nabc\r\nEND\r\n",
        b"VALUE k 0 3\r\nabcdef\r\nEND\r\n",
        b"VALUE k 0 30\r\nabcdef\r\nEND\r\n",
        b"VALUE k 0 3\r\nabc\r\nVALUE k 0 3\r\nabc\r\nEND\r\n",
        b"VALUE k 0 3\r\nabc\r\nVALUE l 0 3\r\nabcXEND\r\n",
        b"VALUE k 0 3\r\nabc\r\nEND\r\nEND\r\n",
        b"VALUE k 0 3\r\nabc\r\n",
        b"END\r\nEND\r\n",
        b"SERVER_ERROR out of memory\r\n",
    ],
)
def test_what_is_no_answer_gives_nothing_and_the_server_is_left_out(answer: bytes) -> None:
    with impostor(answer) as server, ring_of(server.address, timeout_seconds=SHORT) as ring:
        assert read_many(only(ring), [b"k", b"l"]) == {}
        assert only(ring).failures


def test_an_answer_that_does_not_end_costs_one_time_out(memory: Memcached) -> None:
    with ring_of(memory.address) as ring:
        values = values_in(only(ring))
    with (
        proxy(memory, lambda answer: answer[:-1]) as slow,
        ring_of(slow.address, timeout_seconds=SHORT) as ring,
    ):
        assert read_many(only(ring), list(values)) == {}
        assert only(ring).failures
