"""Servers of a pool, real and false: what each failure costs, and when a server is asked again."""

from __future__ import annotations

import itertools
import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from leaks import wait_until
from memcached import Impostor, Memcached, impostor, memcached, memcached_ring, proxy
from prefeed.pool import servers
from prefeed.pool.servers import PoolServer, ServerRing, Stored, parse_address

pytestmark = pytest.mark.usefixtures("sandbox")

LONG = 60.0
"""Of a server that answers: a busy machine may take its time."""

SHORT = 0.1
"""Of one that is silent."""

BOTH = 2.0
"""Of one that answers and is silent later."""

VALUE = random.Random(1).randbytes(84_000)
MISS = b"END\r\n"


@contextmanager
def ring_of(*addresses: str, timeout_seconds: float = LONG) -> Iterator[ServerRing]:
    ring = ServerRing(addresses, timeout_seconds=timeout_seconds, clock=time.monotonic)
    try:
        yield ring
    finally:
        ring.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is left out is asked again soon; it comes back only by answering."""
    monkeypatch.setattr(servers, "_FIRST_PAUSE_SECONDS", 0.02)


def only(ring: ServerRing) -> PoolServer:
    (server,) = ring.servers
    return server


def soon(condition: object) -> bool:
    assert callable(condition)
    return wait_until(condition, timeout_seconds=60)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:11211", ("host", 11211)),
        ("[::1]:1", ("::1", 1)),
        ("/run/memcached.sock", "/run/memcached.sock"),
    ],
)
def test_addresses_are_as_sockets_want_them(text: str, address: object) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("size", [0, 1, 1000, 2030, 84_000, 1_000_000])
def test_values_come_back_as_they_went(size: int) -> None:
    data = random.Random(size).randbytes(size)
    with memcached() as server, ring_of(server.address) as ring:
        assert only(ring).read(b"k") is None
        assert only(ring).write(b"k", data[: size // 3], memoryview(data)[size // 3 :]) == Stored.YES
        found = only(ring).read(b"k")
        assert found is not None
        assert bytes(found) == data


def test_a_unix_socket_does_as_well(tmp_path: Path) -> None:
    with memcached(socket_path=tmp_path / "s") as server, ring_of(server.address) as ring:
        assert only(ring).write(b"k", b"value") == Stored.YES
        assert bytes(only(ring).read(b"k") or b"") == b"value"


def test_only_the_first_adds_a_value() -> None:
    with memcached() as server, ring_of(server.address) as ring:
        assert only(ring).add(b"k", b"mine", seconds=5)
        assert not only(ring).add(b"k", b"yours", seconds=5)
        assert bytes(only(ring).read(b"k") or b"") == b"mine"


def test_keys_are_spread_and_stay_where_they_are_when_a_server_is_left_out() -> None:
    keys = [b"key%d" % number for number in range(600)]
    with memcached_ring(3) as pool, ring_of(*(server.address for server in pool)) as ring:
        before = {key: ring.server_of(key) for key in keys}
        spread = Counter(server.name for server in before.values() if server is not None)
        assert min(spread.values()) > 120
        out = ring.servers[1]
        pool[1].kill()
        out.read(b"any")
        assert soon(lambda: out not in map(ring.server_of, keys))  # the ring's own question may fail first
        after = {key: ring.server_of(key) for key in keys}
        assert ring.num_out == 1
        assert all(after[key] is server for key, server in before.items() if server is not out)


def test_every_order_of_the_servers_gives_the_same_places() -> None:
    with memcached_ring(3) as pool, ExitStack() as stack:
        names = [server.address for server in pool]
        rings = [stack.enter_context(ring_of(*order)) for order in itertools.permutations(names)]
        for key in [b"%d" % number for number in range(50)]:
            places = [ring.server_of(key) for ring in rings]
            assert len({place.name for place in places if place is not None}) == 1


@pytest.mark.usefixtures("short_pauses")
def test_a_server_that_says_nothing_costs_all_threads_together_one_time_out() -> None:
    with memcached() as server, ring_of(server.address, timeout_seconds=BOTH) as ring:
        assert soon(lambda: only(ring).write(b"k", VALUE) == Stored.YES)
        failures = only(ring).failures
        server.pause()
        results: list[object] = []
        threads = [threading.Thread(target=lambda: results.append(only(ring).read(b"k"))) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [None] * 32
        assert only(ring).failures == failures + 1
        assert only(ring).is_out
        assert soon(lambda: ring.server_of(b"k") is None)  # another thread, which asked first, may be telling the ring
        server.resume()
        assert soon(lambda: bytes(only(ring).read(b"k") or b"") == VALUE)


def test_a_server_that_was_started_again_is_asked_again_at_once() -> None:
    with memcached(max_item="2m") as server, ring_of(server.address) as ring:
        assert soon(lambda: only(ring).item_bytes == 2 * 1024**2)  # else what the ring asks first is what breaks off
        only(ring).write(b"k", VALUE)
        server.kill()
        server.start()
        assert only(ring).read(b"k") is None
        assert not only(ring).is_out


@pytest.mark.usefixtures("short_pauses")
def test_a_killed_server_is_left_out_and_asked_again_when_it_is_back() -> None:
    with memcached() as server, ring_of(server.address) as ring:
        only(ring).write(b"k", VALUE)
        server.kill()
        assert only(ring).read(b"k") is None
        assert only(ring).is_out
        assert only(ring).write(b"k", VALUE) == Stored.NO
        server.start()
        assert soon(lambda: not only(ring).is_out)
        assert only(ring).write(b"k", VALUE) == Stored.YES


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0" * 100,
        b"A" * 100_000,
        random.Random(4).randbytes(4000),
        b"VALUE k 0 -5\r\nabc\r\nEND\r\n",
        b"VALUE k 0 99999999999999999999\r\nabc\r\nEND\r\n",
        b"VALUE k 0 4000000000\r\nabc\r\nEND\r\n",
        b"VALUE other 0 3\r\nabc\r\nEND\r\n",
        b"VALUE k 0 3\r\nabcdef\r\nEND\r\n",
        b"VALUE k 0 30\r\nabcdef\r\nEND\r\n",
        b"VALUE k 0 3\r\nabcXXXXXXX",
        b"VALUE k 0 " + b"1" * 5000 + b"\r\n",
        b"END\r\nEND\r\n",
        b"SERVER_ERROR out of memory\r\n",
        b"ERROR\r\n",
    ],
)
def test_what_is_no_answer_of_a_memcached_is_no_value_and_the_server_is_left_out(answer: bytes) -> None:
    with impostor(answer) as server, ring_of(server.address, timeout_seconds=SHORT) as ring:
        assert only(ring).read(b"k") is None
        assert only(ring).failures
        assert only(ring).write(b"k", VALUE) == Stored.NO
        assert only(ring).add(b"k", b"claim", seconds=1)


def test_an_answer_that_trickles_in_ends_with_the_time_out() -> None:
    gate = threading.Event()

    def slowly(answer: bytes) -> bytes:
        gate.wait(SHORT / 20)
        return answer

    with memcached() as server, proxy(server, lambda answer: answer) as quick, ring_of(quick.address) as ring:
        assert only(ring).write(b"k", VALUE * 10) == Stored.YES
        with (
            proxy(server, lambda answer: slowly(answer[:100])) as slow,
            ring_of(slow.address, timeout_seconds=SHORT) as other,
        ):
            assert only(other).read(b"k") is None
            assert only(other).failures


def test_a_full_server_is_offered_nothing_for_a_while_and_still_read() -> None:
    with memcached(memory_mib=2) as server, ring_of(server.address) as ring:
        outcomes = [only(ring).write(b"k%d" % number, VALUE) for number in range(100)]
        stored = outcomes.index(Stored.FULL)
        assert stored > 0
        assert set(outcomes[stored:]) == {Stored.FULL}
        assert int(server.statistics()["bytes_read"]) < (stored + 2) * len(VALUE)
        assert not only(ring).is_out
        assert bytes(only(ring).read(b"k0") or b"") == VALUE


def test_a_value_that_is_too_large_for_the_server_leaves_the_connection_usable() -> None:
    with memcached() as server, ring_of(server.address) as ring:
        only(ring).write(b"k", VALUE)
        assert only(ring).write(b"large", bytes(2 * 1024**2)) == Stored.FULL
        assert bytes(only(ring).read(b"k") or b"") == VALUE


def test_parts_are_as_large_as_the_smallest_server_takes() -> None:
    with memcached(max_item="512k") as small, memcached(max_item="8m") as large:
        with ring_of(small.address, large.address) as ring:
            assert soon(lambda: ring.part_bytes == 512 * 1024 - 1024)
        with ring_of(large.address) as ring:
            assert soon(lambda: only(ring).item_bytes == 8 * 1024**2)
            assert ring.part_bytes == 1024**2 - 1024


def test_a_forked_child_makes_connections_of_its_own() -> None:
    with memcached() as server, ring_of(server.address) as ring:
        only(ring).write(b"k", VALUE)
        ours = only(ring)._turns
        child = os.fork()
        if child == 0:
            is_right = bytes(only(ring).read(b"k") or b"") == VALUE
            os._exit(0 if is_right and only(ring)._turns is not ours else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(only(ring).read(b"k") or b"") == VALUE
        assert only(ring)._turns is ours


@pytest.mark.usefixtures("short_pauses")
def test_connections_as_old_as_one_that_went_silent_are_not_tried_one_after_the_other() -> None:
    """A machine that came back behind a firewall knows nothing of them, and does not say so."""
    is_silent, connections = threading.Event(), itertools.count()

    with memcached() as server:
        host, port = server.address.split(":")

        def talk(client: socket.socket) -> None:
            number = next(connections)
            with socket.create_connection((host, int(port))) as upstream:
                while asked := client.recv(65536):
                    if not is_silent.is_set() or number >= before:
                        upstream.sendall(asked)
                        client.sendall(upstream.recv(65536))

        between = Impostor(talk)
        try:
            with ring_of(between.address, timeout_seconds=BOTH) as ring:
                for _ in range(8):
                    assert only(ring).read(b"k") is None
                    assert only(ring).write(b"k", b"value") == Stored.YES
                    assert bytes(only(ring).read(b"k") or b"") == b"value"
                    raw_delete(server)
                assert only(ring).write(b"k", b"value") == Stored.YES
                before = between.connections
                is_silent.set()
                assert only(ring).read(b"k") is None
                assert soon(lambda: not only(ring).is_out)
                assert [bytes(only(ring).read(b"k") or b"") for _ in range(8)] == [b"value"] * 8
                assert only(ring).write(b"k", b"value") == Stored.YES
                assert only(ring).failures == 1
        finally:
            between.close()


def raw_delete(server: Memcached) -> None:
    with server._connect() as connection:
        connection.sendall(b"delete k\r\n")
        connection.recv(100)


@pytest.mark.parametrize("piece", [b"A", b""], ids=["endless", "closed"])
def test_a_server_that_goes_wrong_at_a_claim_is_left_out(piece: bytes) -> None:
    def talk(client: socket.socket) -> None:
        while asked := client.recv(65536):
            if asked.startswith(b"add"):
                while piece:
                    client.sendall(piece * 100)
                client.shutdown(socket.SHUT_RDWR)
            else:
                client.sendall(MISS if asked.startswith(b"get") else b"STAT item_size_max 1048576\r\nEND\r\n")

    server = Impostor(talk)
    try:
        with ring_of(server.address) as ring:
            assert only(ring).read(b"k") is None
            assert only(ring).add(b"k", b"claim", seconds=1)
            assert only(ring).failures
    finally:
        server.close()


def test_a_server_without_room_is_not_asked_to_hold_claims_until_it_has_stored_something() -> None:
    now = [0.0]
    with memcached() as server:
        ring = ServerRing([server.address], timeout_seconds=LONG, clock=lambda: now[0])
        try:
            assert only(ring).write(b"large", bytes(2 * 1024**2)) == Stored.FULL
            for seconds in (1.0, 10.0):  # while it is offered nothing, and after that
                now[0] = seconds
                assert only(ring).add(b"k", b"claim", seconds=5)
                assert only(ring).read(b"k") is None
            assert only(ring).write(b"small", b"value") == Stored.YES
            assert only(ring).add(b"k", b"claim", seconds=5)
            assert bytes(only(ring).read(b"k") or b"") == b"claim"
        finally:
            ring.close()


def test_a_write_that_was_on_its_way_when_another_was_refused_says_nothing_of_room() -> None:
    is_refused, is_stored = threading.Event(), threading.Event()

    def hold_up(answer: bytes) -> bytes:
        if answer == b"STORED\r\n":
            is_stored.set()
            is_refused.wait(60)
        return answer

    with memcached() as server, proxy(server, hold_up) as slow, ring_of(slow.address, timeout_seconds=LONG) as ring:
        writing = threading.Thread(target=lambda: only(ring).write(b"small", b"value"))
        writing.start()
        assert is_stored.wait(60)
        assert only(ring).write(b"large", bytes(2 * 1024**2)) == Stored.FULL
        is_refused.set()
        writing.join()
        assert only(ring).add(b"k", b"claim", seconds=5)
        assert only(ring).read(b"k") is None


def test_the_end_does_not_wait_for_a_name_that_is_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def resolve(*_: object, **__: object) -> list[object]:
        is_asked.set()
        is_over.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ring = ServerRing(["nowhere.invalid:1"], timeout_seconds=0.01, clock=time.monotonic)
    assert is_asked.wait(60)
    ring.close()
    assert ring._watch.is_alive()
    is_over.set()
    ring._watch.join()
