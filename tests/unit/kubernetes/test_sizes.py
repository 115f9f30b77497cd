"""The port at which a server tells how much it holds, and the operator that asks there."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time

import pytest

from prefeed.kubernetes import sizes
from prefeed.kubernetes.operator.asking import Asker, Requests
from prefeed.kubernetes.operator.groups import Key
from prefeed.kubernetes.operator.reports import errors_of, servers_of
from prefeed.kubernetes.sizes import PATH, SizesEndpoint, parse_report, told
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import REF, Operator, active, end, node_mode, now, serve
from unit.sampleset.documents import sample_job

pytestmark = pytest.mark.usefixtures("sandbox")

KEY = Key("default", "imagenet")


def printed(cached: int = 5, name: str = "imagenet") -> bytes:
    sizes = {"totalSize": 10, "totalFiles": 2, "cachedSize": cached, "diskSize": 20, "diskUsed": 5, "diskAvail": 15}
    return json.dumps({"samplesets": [{"name": name, "home": "/secret", "status": {"cacheStatus": sizes}}]}).encode()


def get(port: int, path: str = PATH, method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_answers_with_sizes_and_nothing_else() -> None:
    endpoint = SizesEndpoint(printed, port=0)
    endpoint.start()
    try:
        status, text = get(endpoint.port)
        others = [get(endpoint.port, "/")[0], get(endpoint.port, "/upload/rmrOptions", "POST")[0]]
    finally:
        endpoint.end()

    found = parse_report("imagenet", text)
    assert status == 200
    assert found is not None
    assert found.cached_size == 5
    assert b"secret" not in text
    assert others == [404, 501]


def test_looking_takes_a_small_share_of_the_time() -> None:
    """An answer is given again for 10 s, or 20 times as long as it took to find, unless the set has changed."""
    seconds, looks = [0.0], []

    def look() -> bytes:
        looks.append(seconds[0])
        seconds[0] += 2
        return printed(len(looks))

    endpoint = SizesEndpoint(look, port=0, clock=lambda: seconds[0])
    endpoint.start()
    try:
        for _ in range(100):
            endpoint.answer()
            seconds[0] += 1
        endpoint.expire()
        endpoint.answer()
    finally:
        endpoint.end()

    assert looks == [0.0, 42.0, 84.0, 106.0]


def test_a_port_that_is_taken_is_said_and_the_server_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with sizes._listen(0) as taken:
        endpoint = SizesEndpoint(printed, port=taken.getsockname()[1])
        endpoint.start()
        endpoint.end()

    assert endpoint.port == 0
    assert "no sizes for the operator" in caplog.text


def test_a_client_that_asks_byte_by_byte_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the server would wait for it, too."""
    monkeypatch.setattr(sizes._Handler, "timeout", 0.2)  # its end is the test
    endpoint = SizesEndpoint(printed, port=0)
    endpoint.start()
    try:
        with socket.create_connection(("127.0.0.1", endpoint.port)) as client:
            client.settimeout(0.01)
            deadline = time.monotonic() + 60
            while not is_left(client):
                assert time.monotonic() < deadline
    finally:
        endpoint.end()


def is_left(client: socket.socket) -> bool:
    """Send a byte; return whether the server has closed the connection."""
    try:
        client.send(b"x")
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


# ---------------------------------------------------------------- the operator


def test_the_operator_asks_all_and_one_that_is_silent_keeps_none_waiting() -> None:
    cluster = Cluster()
    for name in ("a", "b"):
        document = node_mode(partitions=2)
        document["metadata"]["name"] = name
        cluster.add(document)
    operator = Operator(cluster)
    operator.settle()
    for name in ("a", "b"):
        serve(cluster, 2, name)
    now(operator.carrier.see_all([""]))
    asked: list[str] = []
    changed: list[Key] = []

    async def ask(url: str) -> bytes:
        asked.append(url)
        name = url[7:8]
        return b"" if "runtime-1" in url else told(printed(name=name))

    asker = Asker(operator.world, ask, changed.extend)
    asyncio.run(asker.round())

    assert len(asked) == 4
    assert sorted(changed) == [Key("default", "a"), Key("default", "b")]
    assert list(asker.reports(Key("default", "a"))) == ["a-runtime-0"]

    changed.clear()
    asyncio.run(asker.round())
    assert changed == []  # they say the same

    serve(cluster, 0, "a")
    now(operator.carrier.see_all([""]))
    asyncio.run(asker.round())
    assert changed == [Key("default", "a")]
    assert asker.reports(Key("default", "a")) == {}


def test_a_source_that_refuses_is_said_once_while_it_is_tried_again() -> None:
    """A server has no error to tell while it tries again, which takes minutes if the source does not answer."""
    cluster = Cluster()
    cluster.add(node_mode())
    operator = Operator(cluster)
    operator.settle()
    serve(cluster)
    now(operator.carrier.see_all([""]))
    nothing = {"totalSize": None, "totalFiles": None, "cachedSize": 0, "diskSize": 9, "diskUsed": 0, "diskAvail": 9}
    tries = [{**nothing, "errorMessage": "access denied"}, nothing] * 3
    answers = [{"name": "imagenet", "cacheStatus": each} for each in tries]
    changed: list[Key] = []

    async def ask(url: str) -> bytes:
        return json.dumps(answers.pop(0)).encode() if answers else told(printed())

    asker = Asker(operator.world, ask, changed.extend)
    for _ in tries:
        asyncio.run(asker.round())

    assert changed == [KEY]
    assert errors_of(asker.reports(KEY)) == "access denied"
    asyncio.run(asker.round())
    assert errors_of(asker.reports(KEY)) == ""


def test_a_set_whose_document_is_not_understood_keeps_none_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Documents may be older than the definition that would refuse them."""
    cluster = Cluster()
    for name in ("a", "b"):
        document = node_mode()
        document["metadata"]["name"] = name
        cluster.add(document)
    operator = Operator(cluster)
    operator.settle()
    for name in ("a", "b"):
        serve(cluster, 1, name)
    cluster.change("SampleSet", "a", {"spec": {"partitions": "many"}})
    now(operator.carrier.see_all([""]))

    async def ask(url: str) -> bytes:
        return told(printed(name="b"))

    asker = Asker(operator.world, ask, lambda _: None)
    asyncio.run(asker.round())

    assert list(asker.reports(Key("default", "b"))) == ["b-runtime-0"]
    assert "a in default: its servers are not asked" in caplog.text


def test_a_set_that_is_cached_whole_is_asked_for_rarely() -> None:
    cluster = Cluster()
    cluster.add(node_mode())
    operator = Operator(cluster)
    operator.settle()
    serve(cluster)
    now(operator.carrier.see_all([""]))
    asked: list[str] = []

    async def ask(url: str) -> bytes:
        asked.append(url)
        return told(printed(10))

    asker = Asker(operator.world, ask, lambda _: None)

    async def rounds() -> None:
        for _ in range(20):
            await asker.round()

    asyncio.run(rounds())

    assert len(asked) == 3  # the first one, and two of ten
    cluster.add(sample_job("clear", type="clear", **REF))
    operator.settle()
    end(cluster, *active(cluster))
    now(operator.carrier.see_all([""]))
    asyncio.run(asker.round())
    assert len(asked) == 4  # a job has ended, which may have cleared the cache
    assert len(servers_of(operator.carrier._group(KEY))) == 1


def test_requests_end_with_what_was_said_or_nothing() -> None:
    """A port that nobody has, an answer that is no answer, and one that is right."""
    endpoint = SizesEndpoint(printed, port=0)
    endpoint.start()

    async def ask() -> list[bytes]:
        async with Requests() as requests:
            url = f"http://127.0.0.1:{endpoint.port}"
            return [await requests.get(each) for each in (f"{url}{PATH}", "http://127.0.0.1:1/")]

    try:
        found = asyncio.run(ask())
    finally:
        endpoint.end()

    assert parse_report("imagenet", found[0]) is not None
    assert found[1] == b""
