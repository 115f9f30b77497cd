"""What clients may ask, and what they are told."""

from __future__ import annotations

import math
import os
import select
import socket
from pathlib import Path

import numpy as np
import pytest

from desk import Client, Desk, desk
from log_tiers import key_of
from nodes import content
from prefeed.core.actions import Outcome
from prefeed.core.plan import MOST_BYTES
from prefeed.sources.manifest import Manifest
from prefeed.store import memory
from prefeed.wire import messages as m
from prefeed.wire.endpoint import place_of
from prefeed.wire.frames import FrameReader
from sandbox import Sandbox
from unit.server.conftest import NUM_FILES

pytestmark = pytest.mark.usefixtures("sandbox")

CONSUMER = 77


def open_dataset(client: Client, url: Path | str, *, listing_age: float = 0.0, token: int = 5) -> m.DatasetOpened:
    client.say(m.OpenDataset(token, str(url), listing_age))
    while isinstance(answer := client.hear(m.Message), m.Listing):
        assert answer.token == token
    assert isinstance(answer, m.DatasetOpened), answer
    assert answer.token == token
    return answer


def register(client: Client, dataset: int, ids: object, *, upcoming: bool = False, suffix: str = ".i64") -> Path:
    dtype = np.int64 if suffix == ".i64" else np.uint32
    path = client.desk.config.runtime_dir / f"plan-test{suffix}"
    np.asarray(ids, dtype=dtype).tofile(path)
    client.say(m.RegisterPlan(CONSUMER, dataset, str(path), upcoming))
    return path


def settle(server: Desk) -> None:
    """Wait until everything that was said was heard, and nothing is on its way."""
    client = server.connect()
    client.ask(m.GetStatus(), m.StatusReport)
    server.turn_until(lambda: server.node.scheduler.num_in_flight == 0)


def num_residents(server: Desk, dataset: int) -> int:
    return len(server.node.registry.resident_ids(dataset))


def ids_of(*ids: int) -> bytes:
    return np.array(ids, dtype=np.int64).tobytes()


# ------------------------------------------------------------ greeting


def test_a_client_is_told_where_the_cache_is(server: Desk) -> None:
    client = server.connect(greet=False)
    welcome = client.ask(m.Hello(m.PROTOCOL, "0", 0), m.Welcome)
    assert (welcome.pid, welcome.home) == (os.getpid(), place_of(server.config.home))
    assert welcome.instance


def test_the_descriptors_of_the_tier_come_with_the_welcome(server: Desk) -> None:
    """And nothing but the welcome brings them."""
    client = server.connect(greet=False)
    client.say(m.Hello(m.PROTOCOL, "0", 0))
    server.turn_until(lambda: bool(select.select([client.sock], [], [], 0)[0]))
    data, descriptors, _, _ = socket.recv_fds(client.sock, 1 << 16, 2 * memory.NUM_FILES)
    [welcome] = FrameReader().feed(data)
    assert isinstance(welcome, m.Welcome)
    assert len(descriptors) == memory.NUM_FILES
    reader = memory.MemoryReader(descriptors)
    server.tier.put_many([(key_of(1), b"stays", False), (key_of(2), b"is freed once read", True)])
    assert (reader.get(key_of(1)), reader.get(key_of(2))) == (b"stays", b"is freed once read")
    client.say(m.GetStatus())
    server.turn_until(lambda: bool(select.select([client.sock], [], [], 0)[0]))
    assert socket.recv_fds(client.sock, 1 << 16, memory.NUM_FILES)[1] == []


def test_another_protocol_is_refused_with_what_to_do(server: Desk) -> None:
    client = server.connect(greet=False)
    refused = client.ask(m.Hello(m.PROTOCOL + 1, "9.9", 0), m.Refused)
    assert refused.code == "version-mismatch"
    assert f"(protocol {m.PROTOCOL})" in refused.text
    assert "9.9" in refused.text
    assert "prefeed server stop" in refused.text
    client.say(m.GetStatus())
    client.wait_closed()


def test_who_does_not_greet_is_not_answered(server: Desk) -> None:
    client = server.connect(greet=False)
    client.say(m.GetStatus())
    client.wait_closed()


@pytest.mark.parametrize("message", [m.Stopping(), m.Answered(1, 2), m.Listing(1, 2, 3)])
def test_what_only_a_server_says_is_refused(server: Desk, message: m.Message) -> None:
    client = server.connect()
    client.ask(message, m.Refused)
    client.ask(m.GetStatus(), m.StatusReport)


# ------------------------------------------------------------ datasets


def test_a_directory_becomes_a_dataset_and_the_same_one_again(server: Desk, origin: Path) -> None:
    client, other = server.connect(), server.connect()
    opened = open_dataset(client, origin)
    assert open_dataset(other, f"{origin}/", token=9).dataset == opened.dataset
    manifest = Manifest.open(opened.manifest_dir)
    assert manifest.num_objects == NUM_FILES


def test_clients_that_open_it_at_once_wait_for_one_listing(server: Desk, origin: Path) -> None:
    clients = [server.connect() for _ in range(5)]
    for client in clients:
        client.say(m.OpenDataset(3, str(origin)))
    numbers = set()
    for client in clients:
        while isinstance(answer := client.hear(m.Message), m.Listing):
            pass
        assert isinstance(answer, m.DatasetOpened)
        numbers.add(answer.dataset)
    assert numbers == {1}


def test_an_origin_that_cannot_be_listed_is_refused_with_its_error(server: Desk, sandbox: Sandbox) -> None:
    client = server.connect()
    client.say(m.OpenDataset(8, str(sandbox.root / "nowhere")))
    refused = client.hear(m.Refused)
    assert (refused.code, refused.token) == ("object-not-found", 8)
    assert str(sandbox.root / "nowhere") in refused.text


def test_a_listing_that_finds_something_else_is_another_dataset(server: Desk, origin: Path) -> None:
    client = server.connect()
    first = open_dataset(client, origin)
    (origin / "new.bin").write_bytes(b"new")
    old = open_dataset(client, origin, listing_age=math.inf)
    assert (old.dataset, old.listed_at) == (first.dataset, pytest.approx(first.listed_at, abs=1e-3))
    second = open_dataset(client, origin)
    assert second.listed_at > first.listed_at
    assert Manifest.open(second.manifest_dir).num_objects == NUM_FILES + 1
    assert second.dataset != first.dataset


def test_an_object_is_found_by_its_url(server: Desk, origin: Path) -> None:
    client = server.connect()
    opened = open_dataset(client, origin)
    located = client.ask(m.Locate(str(origin / "004.bin")), m.Located)
    assert (located.dataset, located.object_id) == (opened.dataset, 4)
    for missing in (origin / "x.bin", f"{origin}2/004.bin", origin):
        assert client.ask(m.Locate(str(missing)), m.Located).dataset == -1


def test_an_object_is_asked_for_without_a_dataset(server: Desk, origin: Path) -> None:
    client = server.connect()
    file = origin / "004.bin"
    for token in (5, 6):  # by a new connection to the origin, and by the same
        asked = client.ask(m.AskObject(token, str(origin), b"004.bin"), m.ObjectAsked)
        assert (asked.token, asked.size_bytes) == (token, file.stat().st_size)
        assert asked.version
    refused = client.ask(m.AskObject(7, str(origin), b"none"), m.Refused)
    assert (refused.code, refused.token) == ("object-not-found", 7)


def test_a_manifest_of_another_home_is_refused(server: Desk, sandbox: Sandbox) -> None:
    refused = server.connect().ask(m.OpenDataset(4, "", manifest_dir=str(sandbox.root)), m.Refused)
    assert (refused.token, "must lie below" in refused.text) == (4, True)


# ------------------------------------------------------------ plans


@pytest.mark.parametrize("suffix", [".i64", ".u32"])
def test_a_plan_is_fetched_and_its_file_is_gone(server: Desk, origin: Path, suffix: str) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    path = register(client, dataset, range(NUM_FILES), suffix=suffix)
    settle(server)
    assert num_residents(server, dataset) == NUM_FILES
    assert not path.exists()
    assert client.ask(m.GetStatus(), m.StatusReport).status.plans == 1


def test_a_consumer_s_reports_reach_the_scheduler(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    register(client, dataset, [0, 1])
    client.say(m.ExtendPlan(CONSUMER, ids_of(2, 3)), m.Consumed(CONSUMER, dataset, ids_of(0, 1), 2, 0))
    client.say(m.Position(CONSUMER, 2))
    settle(server)
    assert num_residents(server, dataset) == 2  # the position had passed the others
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.hits == 2
    register(client, dataset, [7], upcoming=True)
    client.say(m.AdoptUpcoming(CONSUMER))
    settle(server)
    assert num_residents(server, dataset) == 3
    client.say(m.EndConsumer(CONSUMER))
    assert client.ask(m.GetStatus(), m.StatusReport).status.plans == 0


def test_an_order_that_continues_comes_in_files(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    register(client, dataset, [0, 1], suffix=".u32")
    more = server.config.runtime_dir / "plan-more.u32"
    np.array([2, 3], dtype=np.uint32).tofile(more)
    client.say(m.ExtendPlan(CONSUMER, ids_file=str(more)))
    settle(server)
    client.say(m.Position(CONSUMER, 1))
    assert not more.exists()
    assert num_residents(server, dataset) == 4
    plan = client.ask(m.GetPlans(), m.PlansReport).plans[0]
    assert (plan.position, plan.length) == (1, 4)
    assert 0 < plan.memory_bytes < 64 * 1024**2


@pytest.mark.parametrize("in_parts", [False, True])
def test_of_an_order_no_more_is_kept_than_may_be(server: Desk, origin: Path, in_parts: bool) -> None:
    """What lies behind is counted once, and read when it is asked for."""
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    most = MOST_BYTES // 4
    register(client, dataset, [0] * 5 if in_parts else np.zeros(most + 10), suffix=".u32")
    for number in range(2):
        more = server.config.runtime_dir / f"plan-more-{number}.u32"
        np.zeros(most, dtype=np.uint32).tofile(more)
        client.say(m.ExtendPlan(CONSUMER, ids_file=str(more)))
    settle(server)
    plan = client.ask(m.GetPlans(), m.PlansReport).plans[0]
    assert plan.length == most
    assert plan.memory_bytes < 64 * 1024**2
    assert client.ask(m.GetStatistics(), m.StatisticsReport).statistics.errors == {"plan-cut": 1}
    foreseen = server.config.runtime_dir / "plan-foreseen.u32"
    np.zeros(most + 1, dtype=np.uint32).tofile(foreseen)
    client.say(m.Foresee(CONSUMER, str(foreseen)))
    settle(server)
    assert not foreseen.exists()
    assert not client.ask(m.GetPlans(), m.PlansReport).plans[0].has_next


def test_counts_come_under_the_token_of_the_question(server: Desk, origin: Path) -> None:
    """A client that did not wait for an earlier answer takes this one for what it is."""
    client = server.connect()
    assert client.ask(m.GetReadCounts(CONSUMER, 41), m.ReadCountsReport).token == 41


def test_a_client_that_goes_takes_its_plan_along(server: Desk, origin: Path) -> None:
    client = server.connect()
    register(client, open_dataset(client, origin).dataset, range(3))
    settle(server)
    assert server.node.scheduler.num_plans == 1
    client.sock.close()
    server.turn_until(lambda: server.node.scheduler.num_plans == 0)


@pytest.mark.parametrize("ids", [[0, NUM_FILES], [-1]])
def test_ids_that_the_dataset_does_not_have_change_nothing(server: Desk, origin: Path, ids: list[int]) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    register(client, dataset, ids)
    settle(server)
    assert server.node.scheduler.num_plans == 0
    register(client, dataset, [0])
    client.say(m.ExtendPlan(CONSUMER, ids_of(*ids)), m.Consumed(CONSUMER, dataset, ids_of(*ids), 1, 0))
    client.say(m.ExtendPlan(CONSUMER, b"seven b"), m.Consumed(CONSUMER, 99, ids_of(0), 1, 0))
    settle(server)
    assert num_residents(server, dataset) == 1
    server.node.validate()


def test_a_report_that_cannot_be_is_counted_and_not_answered(server: Desk, origin: Path) -> None:
    client = server.connect()
    open_dataset(client, origin)
    client.say(m.Consumed(CONSUMER, 99, ids_of(0), 1, 0), m.RegisterPlan(CONSUMER, 1, "/etc/passwd", False))
    statistics = client.ask(m.GetStatistics(), m.StatisticsReport).statistics  # the next word is its answer
    assert statistics.errors == {"prefeed-error": 2}


def test_a_plan_is_read_from_the_private_directory_only(server: Desk, origin: Path, sandbox: Sandbox) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    outside = sandbox.root / "precious.i64"
    np.arange(3, dtype=np.int64).tofile(outside)
    for path in (outside, server.config.runtime_dir / "sub" / ".." / ".." / outside.name):
        client.say(m.RegisterPlan(CONSUMER, dataset, str(path), False))
    settle(server)
    assert outside.exists()
    assert server.node.scheduler.num_plans == 0


def test_the_server_s_own_files_are_no_plans(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    lock = server.config.runtime_dir / "server.lock"
    lock.write_bytes(b"8 bytes.")
    client.say(m.RegisterPlan(CONSUMER, dataset, str(lock), False))
    settle(server)
    assert lock.exists()


# ------------------------------------------------------------ readers


def test_a_miss_is_fetched_and_the_answer_carries_the_token(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    client.say(m.Demand(11, 0, dataset, 3), m.Demand(12, 0, dataset, 4))
    answers = {answer.token: answer.outcome for answer in (client.hear(m.Answered), client.hear(m.Answered))}
    assert answers == {11: Outcome.STORED, 12: Outcome.STORED}


def test_what_does_not_fit_comes_with_the_answer(sandbox: Sandbox, origin: Path) -> None:
    with desk(capacity=100) as server:
        client = server.connect()
        dataset = open_dataset(client, origin).dataset
        answer = client.ask(m.Demand(11, 0, dataset, 3), m.Answered)
        assert (answer.outcome, answer.data) == (Outcome.INLINE, content(3))


def test_an_object_larger_than_a_frame_is_left_to_its_reader(
    sandbox: Sandbox, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.server.handlers.MAX_INLINE_BYTES", 4999)
    with desk(capacity=100) as server:
        client = server.connect()
        dataset = open_dataset(client, origin).dataset
        answer = client.ask(m.Demand(11, 0, dataset, 3), m.Answered)
        assert (answer.outcome, answer.data) == (Outcome.READ_ORIGIN, b"")


def test_the_origin_s_refusal_reaches_the_reader_with_the_path(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    (origin / "003.bin").unlink()
    answer = client.ask(m.Demand(11, 0, dataset, 3), m.Answered)
    assert (answer.outcome, answer.code) == (Outcome.FAILED, "object-not-found")
    assert str(origin / "003.bin") in answer.text


@pytest.mark.parametrize(("dataset", "object_id"), [(99, 0), (1, NUM_FILES), (1, -1)])
def test_a_question_about_what_is_not_there_is_refused(
    server: Desk, origin: Path, dataset: int, object_id: int
) -> None:
    client = server.connect()
    open_dataset(client, origin)
    assert client.ask(m.Demand(11, 0, dataset, object_id), m.Refused).token == 11
    assert client.ask(m.Lost(12, dataset, object_id), m.Refused).token == 12


def test_an_answer_to_a_reader_that_is_gone_goes_nowhere(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    client.say(m.Demand(11, 0, dataset, 3))
    client.sock.close()
    server.turn_until(lambda: num_residents(server, dataset) == 1)


# ------------------------------------------------------------ warm, clear, stop


def test_warm_fills_the_cache_and_says_when_it_is_done(server: Desk, origin: Path) -> None:
    client = server.connect()
    client.say(m.Warm(21, str(origin), math.inf))
    while not (isinstance(answer := client.hear(m.Message), m.WarmReport) and answer.done):
        assert isinstance(answer, m.Listing | m.WarmReport)
        assert answer.token == 21
    result = answer.result
    assert (result.objects, result.resident, result.fetched, result.failed) == (NUM_FILES, NUM_FILES, NUM_FILES, 0)
    assert server.node.scheduler.live_datasets() == set()


def test_a_warm_up_counts_what_failed(server: Desk, origin: Path) -> None:
    client = server.connect()
    open_dataset(client, origin)
    (origin / "003.bin").unlink()
    client.say(m.Warm(21, str(origin), math.inf))
    while not (isinstance(answer := client.hear(m.Message), m.WarmReport) and answer.done):
        pass
    assert (answer.result.resident, answer.result.failed) == (NUM_FILES - 1, 1)


def test_clear_counts_what_it_freed(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, origin).dataset
    client.ask(m.Demand(11, 0, dataset, 3), m.Answered)
    assert client.ask(m.Clear(str(origin)), m.Cleared).result.entries == 1
    assert client.ask(m.Clear(None), m.Cleared).result.entries == 0
    assert client.ask(m.Clear("nosuch://x"), m.Refused).code == "unknown-scheme"


def test_stop_is_answered_and_remembered(server: Desk) -> None:
    server.connect().ask(m.Stop(), m.Stopping)
    assert server.handlers.is_stopping
