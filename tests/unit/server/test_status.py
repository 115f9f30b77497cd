"""What an operator is told of the plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from desk import Client, Desk
from nodes import content
from prefeed.types import EpochWait, PlanInfo
from prefeed.wire import messages as m
from unit.server.conftest import NUM_FILES

pytestmark = pytest.mark.usefixtures("sandbox")


def open_dataset(client: Client, message: m.OpenDataset) -> int:
    client.say(message)
    while isinstance(answer := client.hear(m.Message), m.Listing):
        pass
    assert isinstance(answer, m.DatasetOpened), answer
    return answer.dataset


def register(client: Client, consumer: int, dataset: int, ids: object, *, upcoming: bool = False) -> None:
    path = client.desk.config.runtime_dir / f"plan-{consumer}-{upcoming}.i64"
    np.asarray(ids, dtype=np.int64).tofile(path)
    client.say(m.RegisterPlan(consumer, dataset, str(path), upcoming))


def plans(client: Client) -> tuple[PlanInfo, ...]:
    return client.ask(m.GetPlans(), m.PlansReport).plans


def settle(server: Desk, client: Client) -> None:
    plans(client)
    server.turn_until(lambda: server.node.scheduler.num_in_flight == 0)


def epoch(loader: str) -> EpochWait:
    return EpochWait(loader=loader, rank=0, epoch=1, batches=2, seconds=2.0, waited_seconds=1.0)


def test_a_plan_is_told_with_its_position_and_its_reads(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, m.OpenDataset(1, str(origin)))
    register(client, 7, dataset, range(NUM_FILES))
    settle(server, client)
    client.say(m.Consumed(7, dataset, np.arange(4, dtype=np.int64).tobytes(), 3, 1), m.Position(7, 4))

    (plan,) = plans(client)

    assert (plan.consumer, plan.dataset, plan.position, plan.length) == (7, str(origin), 4, NUM_FILES)
    assert (plan.reads.hits, plan.reads.direct_reads, plan.reads.reads) == (3, 1, 4)
    assert (plan.warm, plan.has_next, plan.last_epoch) == (False, False, None)


def test_what_lies_ahead_is_told(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, m.OpenDataset(1, str(origin)))
    register(client, 7, dataset, range(NUM_FILES))
    settle(server, client)

    (plan,) = plans(client)
    assert plan.ahead_objects == NUM_FILES
    assert plan.ahead_bytes >= sum(len(content(index)) for index in range(NUM_FILES))


def test_an_upcoming_order_is_no_second_plan(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, m.OpenDataset(1, str(origin)))
    register(client, 7, dataset, range(NUM_FILES))
    register(client, 7, dataset, range(5), upcoming=True)

    (plan,) = plans(client)
    assert (plan.has_next, plan.length) == (True, NUM_FILES)


def test_a_plan_knows_its_loaders_last_epoch(server: Desk, origin: Path) -> None:
    first, second = server.connect(), server.connect()
    dataset = open_dataset(first, m.OpenDataset(1, str(origin)))
    register(first, 7, dataset, range(NUM_FILES))
    register(second, 8, dataset, range(NUM_FILES))
    plans(first), plans(second)
    second.say(m.EpochEnded(epoch("Second")))
    first.say(m.EpochEnded(epoch("First")))
    plans(second)

    assert [(p.consumer, p.last_epoch and p.last_epoch.loader) for p in plans(first)] == [(7, "First"), (8, "Second")]


def test_a_loader_that_is_gone_has_no_plan(server: Desk, origin: Path) -> None:
    client, watcher = server.connect(), server.connect()
    dataset = open_dataset(client, m.OpenDataset(1, str(origin)))
    register(client, 7, dataset, range(NUM_FILES))
    settle(server, client)
    client.say(m.EndConsumer(7))
    client.ask(m.GetStatus(), m.StatusReport)

    assert plans(watcher) == ()


def test_files_opened_by_path_are_named_by_the_directory_above_them(server: Desk, origin: Path) -> None:
    client = server.connect()
    (origin / "deep").mkdir()
    paths = [*sorted(origin.glob("*.bin")), origin / "deep" / "x.bin"]
    paths_file = server.config.runtime_dir / "paths-test"
    paths_file.write_bytes(b"\0".join(bytes(path) for path in paths))
    opened = m.OpenDataset(1, "", catalogue="files-0123456789abcdef", paths_file=str(paths_file))
    register(client, 7, open_dataset(client, opened), range(3))

    assert [plan.dataset for plan in plans(client)] == [str(origin)]
    settle(server, client)


def test_a_warm_up_is_told_as_one(server: Desk, origin: Path) -> None:
    client, watcher = server.connect(), server.connect()
    told: list[PlanInfo] = []
    report = server.handlers.after_pump
    server.handlers.after_pump = lambda: (told.extend(server.handlers.observer.observe().plans), report())  # type: ignore[method-assign,assignment]
    client.say(m.Warm(1, str(origin), 0.0))
    while not (isinstance(answer := client.hear(m.Message), m.WarmReport) and answer.done):
        pass

    assert {plan.warm for plan in told} == {True}
    assert told[-1].position == told[-1].length == NUM_FILES
    assert plans(watcher) == ()


def test_an_observation_has_everything(server: Desk, origin: Path) -> None:
    client = server.connect()
    dataset = open_dataset(client, m.OpenDataset(1, str(origin)))
    register(client, 7, dataset, range(NUM_FILES))
    settle(server, client)
    client.say(m.EpochEnded(epoch("Files")))
    plans(client)

    seen = server.handlers.observer.observe()

    assert seen.status.plans == len(seen.plans) == 1
    assert seen.statistics.origin_requests == NUM_FILES
    assert [total.loader for total in seen.epochs] == ["Files"]
