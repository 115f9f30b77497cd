"""``prefeed.Plan``: a program says what it will read; the node has it before it is read, whoever reads it."""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
from leaks import wait_until
from limits import set_limits
from nodes import kill
from prefeed.client.node import NodeClient
from prefeed.config import Config, resolve
from prefeed.datasets import plans
from prefeed.errors import ForkedError, ObjectNotFoundError, ServerUnavailableError
from process.children import child_running
from sandbox import Sandbox, servers_of
from unit.packing.packs import make_files, packed

pytestmark = [pytest.mark.usefixtures("sandbox"), pytest.mark.timeout(300)]

NUM = 24
SIZE = 4000


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def content(index: int) -> bytes:
    return np.random.default_rng(index).bytes(SIZE)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    for index in range(NUM):
        (directory / f"{index:02}.bin").write_bytes(content(index))
    return directory


def resident() -> int:
    return prefeed.statistics().resident_objects


def wait_until_fetched(number: int) -> None:
    assert wait_until(lambda: prefeed.statistics().origin_requests >= number, timeout_seconds=60)


def order(seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).permutation(NUM).tolist()
    return found


# ---------------------------------------------------------------- what is planned is fetched, and read


def test_everything_is_in_memory_before_it_is_read(root: Path) -> None:
    with prefeed.Plan(root, order()) as plan:
        assert len(plan) == NUM
        assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
        assert [plan.read(index) for index in order()] == [content(index) for index in order()]
        reads = plan.progress().reads
    assert reads is not None
    assert (reads.hits, reads.late, reads.misses, reads.direct_reads) == (NUM, 0, 0, 0)
    assert prefeed.statistics().origin_requests == NUM


def test_only_what_is_planned_is_fetched(root: Path) -> None:
    """A sample that is not planned is read as any other object of the node."""
    with prefeed.Plan(root, [3, 1, 3]) as plan:
        wait_until_fetched(2)
        assert [plan.read(index) for index in (3, 1, 3)] == [content(3), content(1), content(3)]
        assert prefeed.statistics().origin_requests == 2
        assert plan.read(7) == content(7)
        assert prefeed.statistics().origin_requests == 3


@pytest.mark.parametrize("kind", ["names", "paths", "urls", "array", "negative", "mixed"])
def test_items(root: Path, kind: str) -> None:
    wanted = [4, 0, 23]
    items: Any = {
        "names": ["04.bin", "00.bin", "23.bin"],
        "paths": [root / f"{index:02}.bin" for index in wanted],
        "urls": [(root / f"{index:02}.bin").as_uri() for index in wanted],
        "array": np.array(wanted, dtype=np.uint16),
        "negative": np.array([4, -24, -1]),
        "mixed": ["04.bin", -24, np.int32(23)],
    }[kind]
    with prefeed.Plan(root, items) as plan:
        wait_until_fetched(3)
        assert [plan.read(item) for item in items] == [content(index) for index in wanted]
        assert prefeed.statistics().origin_requests == 3


def test_a_plan_of_some_objects(root: Path) -> None:
    """Indices are those of the dataset that was given, and so is what a read returns."""
    dataset = prefeed.datasets.Objects(root, decode=len, pattern="1*")
    with prefeed.Plan(dataset, ["13.bin", 0]) as plan:
        wait_until_fetched(2)
        assert plan.read("13.bin") == SIZE
        assert dataset.index_of("13.bin") == 3
        with pytest.raises(ObjectNotFoundError, match=r"03\.bin"):
            plan.read("03.bin")


def test_samples_of_several_objects(tmp_path: Path) -> None:
    """Positions count samples, and the server's objects: of each group two."""
    files = make_files(tmp_path / "src", samples=6)
    packed(tmp_path / "src", tmp_path / "out", "webdataset")
    dataset = prefeed.datasets.Packed(tmp_path / "out", group=True)
    with prefeed.Plan(dataset, [5, 2]) as plan:
        plan.extend([0])
        wait_until_fetched(6)
        sample = plan.read(2)
        assert sample["jpg"] == files[f"{sample['__key__']}.jpg"]
        plan.advance(2)
        with NodeClient.connect(resolve({})) as node:
            assert [(one.position, one.length) for one in node.plans()] == [(4, 6)]
        with pytest.raises(TypeError, match="takes indices, 0 to 5"):
            plan.extend(["a"])


@pytest.mark.parametrize("scheme", ["", "blocks+"])
def test_parts_of_objects(tmp_path: Path, scheme: str) -> None:
    """In blocks only those are fetched that hold something of a part; else the object."""
    half = 32 * 1024
    large = np.random.default_rng(0).bytes(10 * half)
    (tmp_path / "large.bin").write_bytes(large)
    (tmp_path / "small.bin").write_bytes(content(2)[:100])
    config = resolve(limits={"block_bytes": 2 * half})
    listing = prefeed.datasets.Objects(f"{scheme}{tmp_path.as_uri()}", config=config)
    parts: list[Any] = [("large.bin", 3 * half, 2 * half), ("small.bin", 1, 98), (tmp_path / "large.bin", 0, 1)]
    with prefeed.Plan(listing, parts, config=config) as plan:
        assert len(plan) == 3
        wait_until_fetched(2 if not scheme else 4)
        assert [plan.read(part) for part in parts] == [large[3 * half : 5 * half], content(2)[1:99], large[:1]]
        plan.advance(2)
        assert prefeed.statistics().origin_requests == (2 if not scheme else 4)
        for wrong in (("large.bin", 0, 10 * half + 1), ("large.bin", -1, 2), ("small.bin", 3, 0)):
            with pytest.raises(ValueError, match="are not in"):
                plan.extend([wrong])
        with pytest.raises(ObjectNotFoundError, match=r"absent\.bin"):
            plan.extend([("absent.bin", 0, 1)])
    some = prefeed.datasets.Objects(tmp_path, pattern="l*", config=config)
    with pytest.raises(ValueError, match="pattern"):
        prefeed.Plan(some, parts, config=config)


@pytest.mark.parametrize(
    ("items", "error", "text"),
    [
        ([NUM], IndexError, "sample 24 of 24"),
        (np.array([0, -25]), IndexError, "sample -25 of 24"),
        (["absent.bin"], ObjectNotFoundError, "absent.bin"),
        (["/elsewhere/00.bin"], ObjectNotFoundError, "elsewhere"),
        ([1.5], TypeError, "float"),
        ("00.bin", TypeError, "several items"),
    ],
)
def test_wrong_items(root: Path, items: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prefeed.Plan(root, items)
    with prefeed.Plan(root, [1]) as plan:
        with pytest.raises(error, match=text):
            plan.extend(items)
        assert len(plan) == 1


def test_a_plan_needs_a_listing(root: Path) -> None:
    listing: Any = [root]
    with pytest.raises(TypeError, match=r"dataset of prefeed\.datasets.*not list"):
        prefeed.Plan(listing, [1])


# ---------------------------------------------------------------- extended, advanced, cancelled


def test_a_plan_grows(root: Path) -> None:
    with prefeed.Plan(root) as plan:
        assert len(plan) == 0
        for index in order():
            plan.extend([index])
        assert wait_until(lambda: resident() == NUM, timeout_seconds=60)
        assert plan.progress().planned == NUM


def test_samples_that_are_left_out_do_not_stop_it(root: Path) -> None:
    """The server fetches a lookahead and no more, until it hears that these are not waited for."""
    config = resolve({"read_once": "1"}, limits={"lookahead_bytes": 8 * SIZE})
    with prefeed.Plan(root, range(NUM), config=config) as plan:
        wait_until_fetched(4)
        before = prefeed.statistics().origin_requests
        assert before < NUM
        plan.advance(NUM - 2)
        assert plan.progress().position == NUM - 2
        assert wait_until(lambda: prefeed.statistics().origin_requests > before, timeout_seconds=60)
        assert plan.read(NUM - 1) == content(NUM - 1)
        plan.advance(3)  # no further than before
        assert plan.progress().position == NUM - 2
        for wrong in (-1, NUM + 1):
            with pytest.raises(ValueError, match=f"position {wrong} of a plan of 24"):
                plan.advance(wrong)


def test_a_cancelled_plan_fetches_nothing_more(root: Path) -> None:
    plan = prefeed.Plan(root, [1, 2])
    wait_until_fetched(2)
    plan.read(1)
    plan.cancel()
    plan.cancel()
    with NodeClient.connect(resolve({})) as node:
        assert wait_until(lambda: node.plans() == (), timeout_seconds=60)
    for change in (lambda: plan.extend([3]), lambda: plan.advance(1)):
        with pytest.raises(ValueError, match="cancelled"):
            change()
    assert plan.read(2) == content(2)
    assert plan.progress() == prefeed.PlanProgress(planned=2, position=0, reads=None)


# ---------------------------------------------------------------- other threads and processes


def test_threads_read_side_by_side(root: Path) -> None:
    with prefeed.Plan(root, order()) as plan:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(plan.read, order())) == [content(index) for index in order()]
        reads = plan.progress().reads
    assert reads is not None
    assert reads.reads == NUM
    assert prefeed.statistics().origin_requests == NUM


def read_all(reader: prefeed.PlanReader, pipe: Connection) -> None:
    for index in iter(pipe.recv, None):
        pipe.send(reader.read(index))


def num_reads(plan: prefeed.Plan) -> int:
    reads = plan.progress().reads
    return 0 if reads is None else reads.reads


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_for_the_plan(root: Path, method: str) -> None:
    """What they read is reported as the plan's, at the latest when they end."""
    with prefeed.Plan(root, order()) as plan:
        assert plan.read(order()[0]) == content(order()[0])
        with child_running(read_all, plan.reader, method=method) as (process, pipe):
            for index in order()[1:10]:
                pipe.send(index)
                assert pipe.recv() == content(index)
            pipe.send(None)
            process.join()
        assert wait_until(lambda: num_reads(plan) == 10, timeout_seconds=60)
        with pytest.raises(TypeError, match=r"pass plan\.reader"):
            pickle.dumps(plan)


def test_a_forked_child_reads_and_changes_nothing(root: Path) -> None:
    with prefeed.Plan(root, order()) as plan:
        assert plan.read(0) == content(0)
        child = os.fork()
        if not child:
            status = 1
            try:
                for change in (lambda: plan.extend([3]), lambda: plan.advance(1)):
                    with pytest.raises(ForkedError, match=r"read with plan\.reader"):
                        change()
                plan.cancel()
                status = int(plan.read(1) != content(1))
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        plan.advance(1)
        with NodeClient.connect(resolve({})) as node:
            assert [one.position for one in node.plans()] == [1]


# ---------------------------------------------------------------- without a server


@pytest.mark.parametrize("settings", [{"enabled": "0"}, {"autostart": "0"}], ids=["off", "no server"])
def test_without_a_server_samples_are_read_from_the_origin(
    root: Path, settings: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    dataset = prefeed.datasets.Objects(root, config=resolve({"enabled": "0"}))
    config: Config = resolve(settings)
    with caplog.at_level(logging.WARNING, "prefeed"), prefeed.Plan(dataset, [1], config=config) as plan:
        plan.extend([2])
        plan.advance(1)
        assert [plan.read(index) for index in (1, 2)] == [content(1), content(2)]
        assert plan.progress() == prefeed.PlanProgress(planned=2, position=1, reads=None)
    assert ["no plan for" in record.message for record in caplog.records] == ["autostart" in settings] * (
        "autostart" in settings
    )


def test_the_next_server_gets_the_rest_of_the_plan(
    root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.client.consumer._RECOVER_SECONDS", 0.0)
    with prefeed.Plan(root, [0, 1]) as plan:
        wait_until_fetched(2)
        (server,) = servers_of(sandbox)
        kill(server)
        plan.extend(range(2, NUM))

        def is_fetched() -> bool:
            plan.advance(2)
            return prefeed.statistics().origin_requests >= NUM - 2

        assert wait_until(is_fetched, timeout_seconds=60)
        assert [plan.read(index) for index in range(NUM)] == [content(index) for index in range(NUM)]


# ---------------------------------------------------------------- while the server starts


class Gate:
    """The way of plans to the server; it is open once ``open`` is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._event = threading.Event()
        self._attached = plans._connect
        monkeypatch.setattr(plans, "_connect", self._pass)

    def _pass(self, dataset: Any, config: Config) -> Any:
        assert self._event.wait(120)
        return self._attached(dataset, config)

    def open(self) -> None:
        self._event.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    set_limits(monkeypatch, start_ahead=True)
    monkeypatch.setattr(plans, "start_ahead", lambda _: False)
    monkeypatch.setattr(plans, "is_listening", lambda _: False)
    gate = Gate(monkeypatch)
    yield gate
    gate.open()
    assert wait_until(
        lambda: "prefeed-plan" not in {thread.name for thread in threading.enumerate()}, timeout_seconds=60
    )


def test_the_program_goes_on_while_the_server_starts(root: Path, gate: Gate) -> None:
    """What was read by then is not fetched, nor what is passed; all else is, as if the server had been told at once."""
    with prefeed.Plan(root, order()[:12]) as plan:
        done = [*order()[:3], order()[7]]
        assert [plan.read(index) for index in done] == [content(index) for index in done]
        plan.extend(order()[12:])
        plan.advance(5)
        assert plan.progress() == prefeed.PlanProgress(planned=NUM, position=5, reads=None)
        assert "whose server starts" in repr(plan)
        with pytest.raises(ObjectNotFoundError):
            plan.extend(["absent.bin"])
        with pytest.raises(ValueError, match="position 25 of a plan of 24"):
            plan.advance(25)
        gate.open()
        assert wait_until(lambda: resident() == NUM - 6, timeout_seconds=60)
        plan.advance(8)
        with NodeClient.connect(resolve({})) as node:
            assert [(one.position, one.length) for one in node.plans()] == [(2, NUM - 6)]
        left = [*order()[5:7], *order()[8:]]
        assert [plan.read(index) for index in left] == [content(index) for index in left]
        reads = plan.progress().reads
        assert reads is not None
        assert (reads.hits, reads.direct_reads) == (NUM - 6, 0)
        assert prefeed.statistics().origin_requests == NUM - 6


def test_a_server_that_really_starts(root: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects below the root are listed here meanwhile; the server follows this listing."""
    set_limits(monkeypatch, start_ahead=True)
    with prefeed.Plan(root, order()) as plan:
        plan.reader._future.wait()
        assert [plan.read(index) for index in order()] == [content(index) for index in order()]
        assert wait_until(lambda: num_reads(plan) == NUM, timeout_seconds=60)
    assert len(servers_of(sandbox)) == 1
    with prefeed.Plan(root, order()) as again:  # it listens
        assert again.reader._future.is_resolved


def test_what_is_left_of_a_plan() -> None:
    """Objects by their number: item 0 has two, item 1 none, items 2 and 3 one each, item 4 two."""
    ids, counts = np.array([5, 6, 7, 5, 7, 8]), np.array([2, 0, 1, 1, 2])
    left = partial(plans._remaining, ids, counts)
    cases: list[tuple[list[int], int, tuple[list[int], list[int]]]] = [
        ([], 0, (ids.tolist(), counts.tolist())),
        ([5], 0, ([6, 7, 5, 7, 8], [1, 0, 1, 1, 2])),
        ([5, 5, 7, 9], 0, ([6, 7, 8], [1, 0, 0, 0, 2])),
        ([], 3, ([5, 7, 8], [0, 0, 0, 1, 2])),
        ([5], 3, ([5, 7, 8], [0, 0, 0, 1, 2])),
        ([8], 5, ([], [0, 0, 0, 0, 0])),
    ]
    for done, num_passed, expected in cases:
        found, number = left(done=np.array(done, dtype=np.int64), num_passed=num_passed)
        assert (found.tolist(), number.tolist()) == expected


def test_a_plan_that_is_cancelled_while_the_server_starts(root: Path, gate: Gate) -> None:
    plan = prefeed.Plan(root, order())
    plan.cancel()
    assert plan.read(1) == content(1)
    gate.open()
    assert wait_until(
        lambda: "prefeed-plan" not in {thread.name for thread in threading.enumerate()}, timeout_seconds=60
    )
    with NodeClient.connect(resolve({})) as node:
        assert wait_until(lambda: node.plans() == (), timeout_seconds=60)
    assert plan.progress() == prefeed.PlanProgress(planned=NUM, position=0, reads=None)


def test_a_plan_that_is_dropped_while_the_server_starts(root: Path, gate: Gate) -> None:
    prefeed.Plan(root, order())
    gate.open()
    assert wait_until(
        lambda: "prefeed-plan" not in {thread.name for thread in threading.enumerate()}, timeout_seconds=60
    )
    with NodeClient.connect(resolve({})) as node:
        assert wait_until(lambda: node.plans() == (), timeout_seconds=60)


def test_a_process_that_was_forked_before_reads_for_the_plan(root: Path, gate: Gate) -> None:
    with prefeed.Plan(root, order()) as plan:
        with child_running(read_all, plan.reader, method="fork") as (process, pipe):
            pipe.send(0)
            assert pipe.recv() == content(0)
            gate.open()
            assert wait_until(lambda: plan.reader._future.is_resolved, timeout_seconds=60)
            for index in range(1, 5):
                pipe.send(index)
                assert pipe.recv() == content(index)
            pipe.send(None)
            process.join()
        assert wait_until(lambda: num_reads(plan) == 4, timeout_seconds=60)


def test_a_reader_is_pickled_when_the_plan_is_followed(root: Path, gate: Gate) -> None:
    with prefeed.Plan(root, order()) as plan, ThreadPoolExecutor(1) as pool:
        pickled = pool.submit(pickle.dumps, plan.reader)
        assert plan.read(1) == content(1)
        assert not pickled.done()
        gate.open()
        reader = pickle.loads(pickled.result(120))
        assert reader.read(2) == content(2)
        reader.close()
        assert wait_until(lambda: num_reads(plan) == 1, timeout_seconds=60)


def test_an_error_of_the_dataset_comes_with_the_first_use(
    root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(prefeed.datasets.Objects, "prefeed_access", fail)
    with prefeed.Plan(root, order()) as plan:
        gate.open()
        plan.reader._future.wait()
        with pytest.raises(RuntimeError, match="a defect"):
            plan.extend([1])
        plan.extend([1])
        assert plan.read(1) == content(1)
        assert plan.progress() == prefeed.PlanProgress(planned=NUM + 1, position=0, reads=None)


def test_no_server_can_be_started(root: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Config) -> None:
        raise ServerUnavailableError("none starts here")

    gate.open()
    monkeypatch.setattr(plans.NodeClient, "connect", refuse)
    with prefeed.Plan(root, order()) as plan:
        plan.reader._future.wait()
        assert plan.read(1) == content(1)
        assert "without a server" in repr(plan)
        assert pickle.loads(pickle.dumps(plan.reader)).read(2) == content(2)
