"""The hit path, and everything that may happen off it: each read ends in the right bytes or the origin's error."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counting import counting
from leaks import open_descriptors, wait_until
from nodes import RecordingTier, content, kill
from prefeed.client.connection import Connection
from prefeed.client.dataset import (
    NodeDataset,
    open_learned_dataset,
    open_listed_dataset,
    open_node_dataset,
    reopen_on,
)
from prefeed.client.node import NodeClient
from prefeed.client.once import reading_once
from prefeed.client.reader import ObjectReader
from prefeed.client.tiers import keep_tier
from prefeed.config import Config, resolve
from prefeed.core.actions import Outcome
from prefeed.errors import ObjectNotFoundError, StoreFormatError
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.learned import LearnedMap
from prefeed.sources.library import ManifestLibrary
from prefeed.store.log import MIN_BUDGET_BYTES
from prefeed.store.memory import NUM_FILES as NUM_TIER_FILES
from prefeed.wire import messages as m
from process.children import stopped
from sandbox import Sandbox, servers_of
from scripted import ScriptedServer, scripted

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_FILES = 12


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    directory = sandbox.root / "origin"
    directory.mkdir()
    for index in range(NUM_FILES):
        (directory / f"{index:02d}.bin").write_bytes(content(index))
    return directory


@pytest.fixture
def config() -> Config:
    return resolve({})


@pytest.fixture
def node(config: Config) -> Iterator[NodeClient]:
    """A control connection to a server of its own."""
    with NodeClient.connect(config) as node:
        yield node


@pytest.fixture
def readers() -> Iterator[list[ObjectReader]]:
    opened: list[ObjectReader] = []
    yield opened
    for reader in opened:
        reader.close()
    opened.clear()


def reader_of(readers: list[ObjectReader], dataset: NodeDataset) -> ObjectReader:
    readers.append(ObjectReader(dataset))
    return readers[-1]


# ------------------------------------------------------------ with a server


def test_a_miss_is_fetched_by_the_server_and_a_hit_the_next_time(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    assert reader.read_many([3, 3, 5, 3]) == [content(3), content(3), content(5), content(3)]
    reader.report()
    statistics = node.statistics()
    assert (statistics.hits, statistics.misses, statistics.direct_reads) == (2, 2, 0)
    assert statistics.origin_requests == 2
    assert statistics.hit_bytes == 2 * len(content(3))


def test_a_hit_needs_no_server(node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]) -> None:
    """The server is suspended, so that an answer would never come."""
    dataset = open_node_dataset(node, str(origin), config)
    node.warm(str(origin))
    pid = node.status().pid
    for path in origin.iterdir():
        path.write_bytes(b"not read")
    reader = reader_of(readers, dataset)
    with stopped(pid):
        assert reader.read_many(range(NUM_FILES)) == [content(index) for index in range(NUM_FILES)]


def test_an_object_larger_than_the_cache_comes_with_the_answer(origin: Path, readers: list[ObjectReader]) -> None:
    config = resolve({"memory": MIN_BUDGET_BYTES})
    large = os.urandom(MIN_BUDGET_BYTES)
    (origin / "00.bin").write_bytes(large)
    with NodeClient.connect(config) as node:
        reader = reader_of(readers, open_node_dataset(node, str(origin), config))
        assert reader.try_read(0) == large
        reader.report()
        assert (node.statistics().misses, node.statistics().direct_reads) == (1, 0)


def test_an_object_that_is_gone_is_the_error_it_would_be_without_prefeed(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    (origin / "03.bin").unlink()
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"origin/03\.bin") as caught:
            reader.read(3)
        assert type(caught.value) is ObjectNotFoundError
    assert node.statistics().origin_requests == 1
    assert reader.read(4) == content(4)


def test_a_changed_file_is_read_as_it_is_now(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    (origin / "03.bin").write_bytes(b"changed since it was listed")
    assert reader.read(3) == b"changed since it was listed"
    (origin / "03.bin").write_bytes(b"and again")
    assert reader.read(3) == b"and again"


def test_a_reader_travels_to_a_spawned_worker(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    reader.read(1)
    copy = pickle.loads(pickle.dumps(reader))
    readers.append(copy)
    assert copy.read(1) == content(1)


def test_a_reader_that_was_closed_reads_again(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    assert reader.read(1) == content(1)
    reader.close()
    assert reader.read(1) == content(1)


def test_a_server_that_dies_is_replaced_without_a_wrong_byte(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.client.reader._RECONNECT_SECONDS", 0.0)
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    assert reader.read(1) == content(1)
    kill(node.status().pid)
    assert reader.read(2) == content(2)  # from the origin
    with NodeClient.connect(config) as other:
        assert reader.read_many([3, 3]) == [content(3), content(3)]
        reader.report()
        statistics = other.statistics()
        assert (statistics.misses, statistics.hits) == (1, 1)


# ------------------------------------------------------------ without one


@pytest.fixture
def tier() -> RecordingTier:
    """The memory tier of the server that is yet to be made."""
    return RecordingTier(MIN_BUDGET_BYTES)


@pytest.fixture
def dataset(origin: Path, config: Config, tier: RecordingTier) -> NodeDataset:
    """A dataset whose server is yet to be made; this process has the tier, which holds object 1."""
    manifest = ManifestLibrary(config.home).open(str(origin), config)
    tier.put_many([(manifest.key(1), b"in the tier", False)])
    keep_tier("one", [os.dup(descriptor) for descriptor in tier.descriptors])
    return NodeDataset(number=1, url=str(origin), manifest=manifest, instance="one", config=config)


@pytest.fixture
def server(dataset: NodeDataset, tier: RecordingTier) -> Iterator[ScriptedServer]:
    with scripted(dataset.config, instance="one", tier=tier) as server:
        yield server


def answering(outcome: Outcome, **answer: object):  # type: ignore[no-untyped-def]
    def script(message: m.AnyMessage) -> list[m.Message]:
        if isinstance(message, m.Demand):
            return [m.Answered(message.token, int(outcome), **answer)]  # type: ignore[arg-type]
        if isinstance(message, m.Lost):
            return [m.Answered(message.token, int(Outcome.READ_ORIGIN))]
        return []

    return script


def test_without_a_server_the_origin_is_read(
    dataset: NodeDataset, readers: list[ObjectReader], sandbox: Sandbox
) -> None:
    reader = reader_of(readers, dataset)
    assert reader.try_read(3) is None
    assert reader.read(3) == content(3)
    assert reader.read(1) == b"in the tier"
    assert servers_of(sandbox) == []  # a reader starts none
    with pytest.raises(FileNotFoundError, match=r"origin/04\.bin"):
        Path(dataset.manifest.url, "04.bin").unlink()
        reader.read(4)


def test_the_bytes_may_come_with_the_answer(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = answering(Outcome.INLINE, data=b"inline")
    assert reader_of(readers, dataset).read(3) == b"inline"


def test_an_empty_object_may_come_with_the_answer(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = answering(Outcome.INLINE, data=b"")
    assert reader_of(readers, dataset).try_read(3) == b""


def test_what_was_stored_meanwhile_is_looked_at_again(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader], tier: RecordingTier
) -> None:
    def store(message: m.AnyMessage) -> list[m.Message]:
        if not isinstance(message, m.Demand):
            return []
        tier.put_many([(dataset.manifest.key(message.object_id), b"late", True)])
        return [m.Answered(message.token, int(Outcome.STORED))]

    server.script = store
    assert reader_of(readers, dataset).read(3) == b"late"


def test_the_tier_of_the_next_server_is_read(
    dataset: NodeDataset, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the tier of the server before still holds is not read any more: the files may be other ones by now."""
    monkeypatch.setattr("prefeed.client.reader._RECONNECT_SECONDS", 0.0)
    reader = reader_of(readers, dataset)
    assert reader.read(1) == b"in the tier"
    with scripted(dataset.config) as server:
        server.tier.put_many([(dataset.manifest.key(3), b"in the new one", False)])

        def script(message: m.AnyMessage) -> list[m.Message]:
            if isinstance(message, m.OpenDataset):
                return [m.DatasetOpened(message.token, 42, message.manifest_dir)]
            return answering(Outcome.STORED)(message)

        server.script = script
        assert reader.read(3) == b"in the new one"
        assert server.of(m.Lost) == []
        assert reader.read(1) == content(1)
        assert len(server.of(m.Lost)) == 1


@pytest.mark.parametrize("num_descriptors", range(NUM_TIER_FILES))
def test_without_all_descriptors_of_the_tier_the_origin_is_read(
    dataset: NodeDataset, readers: list[ObjectReader], tier: RecordingTier, num_descriptors: int
) -> None:
    """As in a process that may open no more files; the descriptors that did come are closed."""
    with scripted(dataset.config, tier=tier, num_descriptors=num_descriptors) as server:
        server.script = answering(Outcome.STORED)
        reader = reader_of(readers, replace(dataset, instance=server.instance))
        before = open_descriptors()
        assert reader.read_many([1, 3]) == [content(1), content(3)]
        more = open_descriptors() - before
        assert not [name for name in more if "memfd" in name]
        assert not server.of(m.Lost), "the entries are there, for others"


def test_what_is_not_where_it_should_be_is_said_and_read_from_the_origin(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = answering(Outcome.STORED)
    assert reader_of(readers, dataset).read(3) == content(3)
    (lost,) = server.wait_heard(m.Lost)
    assert (lost.dataset, lost.object_id) == (1, 3)  # type: ignore[union-attr]


def test_the_server_may_leave_it_to_the_reader(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = answering(Outcome.READ_ORIGIN)
    assert reader_of(readers, dataset).read(3) == content(3)


def test_a_refusal_of_the_question_is_not_the_origin_s(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = lambda message: [m.Refused("prefeed-error", "no such dataset", getattr(message, "token", 0))]
    assert reader_of(readers, dataset).read(3) == content(3)


def test_a_server_that_dies_between_question_and_answer_is_not_waited_for(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = lambda message: None
    reader = reader_of(readers, dataset)
    assert reader.read(3) == content(3)
    assert reader.read(4) == content(4)
    assert len(server.of(m.Demand)) == 1  # it is not asked again at once


def test_a_server_that_says_nothing_is_not_waited_for_longer_than_the_origin(
    dataset: NodeDataset, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.client.reader._GRACE_SECONDS", 60.0)
    hurried = replace(dataset, config=resolve(limits={"request_seconds": 0}))
    with scripted(dataset.config, instance="one") as server:
        reader = reader_of(readers, hurried)
        connection = reader._connect()
        assert connection is not None
        connection.expect_answers_within(0.05)
        assert reader.read(3) == content(3)
        assert len(server.wait_heard(m.Demand)) == 1


def test_an_interrupted_read_does_not_give_its_bytes_to_the_next(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = lambda message: (
        [m.Answered(message.token, int(Outcome.INLINE), data=content(message.object_id))]
        if isinstance(message, m.Demand)
        else []
    )
    reader = reader_of(readers, dataset)

    def interrupt(connection: Connection) -> m.AnyMessage:
        raise KeyboardInterrupt

    assert reader.read(2) == content(2)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Connection, "_receive", interrupt)
        reader.read(3)
    assert reader.read(4) == content(4)


def test_reads_are_reported_in_groups_and_at_the_end(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader]
) -> None:
    server.script = answering(Outcome.READ_ORIGIN)
    reader = reader_of(readers, dataset)
    for index in range(20):
        reader.read(1 if index % 2 else 3)
    (first,) = server.wait_heard(m.Consumed)
    assert isinstance(first, m.Consumed)
    assert (len(first.ids) // 8, first.hits, first.direct_reads) == (16, 8, 8)
    reader.close()
    last = server.wait_heard(m.Consumed, 2)[1]
    assert isinstance(last, m.Consumed)
    assert (len(last.ids) // 8, last.hits, last.direct_reads) == (4, 2, 2)


def test_large_objects_are_reported_sooner(dataset: NodeDataset, readers: list[ObjectReader], config: Config) -> None:
    small = resolve(limits={"lookahead_bytes": 8 * len(b"in the tier")})
    with scripted(small, instance="one") as server:
        reader = reader_of(readers, replace(dataset, config=small))
        reader.read(1)
        reader.read(1)
        (report,) = server.wait_heard(m.Consumed)
        assert isinstance(report, m.Consumed)
        assert report.hits == 2


def test_parts_are_reported_no_more_often_than_the_server_should_be_woken(
    server: ScriptedServer, dataset: NodeDataset, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(readers, dataset)

    def read_parts(number: int) -> None:
        for _ in range(number):
            assert reader.try_part(1, 7, 100, object_bytes=len(b"in the tier")) == b"tier"

    monkeypatch.setattr("prefeed.client.reader._PART_REPORT_PAUSE_SECONDS", 0.0)
    read_parts(16)
    monkeypatch.setattr("prefeed.client.reader._PART_REPORT_PAUSE_SECONDS", 3600.0)
    read_parts(99)
    monkeypatch.setattr("prefeed.client.reader._PART_REPORT_PAUSE_SECONDS", 0.0)
    read_parts(1)
    reports = server.wait_heard(m.Consumed, 2)
    assert [report.hits for report in reports if isinstance(report, m.Consumed)] == [16, 100]


def test_the_dataset_is_named_again_on_another_server(
    dataset: NodeDataset, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.client.reader._RECONNECT_SECONDS", 0.0)
    with scripted(dataset.config) as server:

        def script(message: m.AnyMessage) -> list[m.Message]:
            if isinstance(message, m.OpenDataset):
                assert message.manifest_dir == str(dataset.manifest.directory)
                return [m.DatasetOpened(message.token, 42, message.manifest_dir)]
            return answering(Outcome.READ_ORIGIN)(message)

        server.script = script
        reader = reader_of(readers, dataset)
        assert reader.read(3) == content(3)
        (question,) = server.wait_heard(m.Demand)
        assert question.dataset == 42  # type: ignore[union-attr]


def test_a_reader_says_that_it_has_no_use_for_an_object_after_its_read(
    dataset: NodeDataset, readers: list[ObjectReader], server: ScriptedServer
) -> None:
    server.script = answering(Outcome.INLINE, data=content(3))
    reader = reader_of(readers, dataset)
    with reading_once():
        reader.read(3)
        with reading_once():
            reader.read(3)
        reader.read(3)
    reader.read(3)
    asked = server.wait_heard(m.Demand, 4)
    assert [message.once for message in asked] == [True, True, True, False]  # type: ignore[union-attr]


def test_a_server_that_does_not_know_the_manifest_is_let_go(dataset: NodeDataset, readers: list[ObjectReader]) -> None:
    with scripted(dataset.config) as server:
        server.script = lambda message: [m.Refused("store-format", "no manifest", getattr(message, "token", 0))]
        reader = reader_of(readers, dataset)
        assert reader.read(3) == content(3)
        assert server.of(m.Demand) == []


def test_a_fork_counts_its_own_reads_for_the_run_summary(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader], tmp_path: Path
) -> None:
    """What its parent has not reported yet, the parent reports."""
    reader = reader_of(readers, open_node_dataset(node, str(origin), config))
    with counting(tmp_path / "counts") as sums:
        reader.read_many([0, 1, 2, 2])
        child = os.fork()
        if not child:
            reader.read_many([2, 3])
            reader.report()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        reader.report()
        found = sums()
    hits, misses = [2, 2], [0, 1, 2, 3]
    assert found == {
        "hits": len(hits), "cache_bytes": sum(len(content(index)) for index in hits),
        "late_or_missed": len(misses), "origin_bytes": sum(len(content(index)) for index in misses),
    }  # fmt: skip


# ------------------------------------------------------------ files opened by path


@pytest.fixture
def catalogue(origin: Path, config: Config) -> Iterator[NodeDataset]:
    """A catalogue of the files 0 and 1, whose server is yet to be made."""
    config.home.mkdir(exist_ok=True)
    writer = CatalogueWriter.open_or_create(config.home / "catalogue", [f"{origin}/00.bin", f"{origin}/01.bin"])
    manifest = CatalogueWriter.open(writer.directory)
    yield NodeDataset(number=1, url="/", manifest=manifest, instance="one", config=config)
    writer.close()
    manifest.close()


@pytest.fixture
def catalogue_server(catalogue: NodeDataset) -> Iterator[ScriptedServer]:
    with scripted(catalogue.config, instance="one") as server:
        yield server


def answering_files(outcome: Outcome, **answer: object):  # type: ignore[no-untyped-def]
    def script(message: m.AnyMessage) -> list[m.Message]:
        if isinstance(message, m.DemandFile):
            return [m.Answered(message.token, int(outcome), **answer)]  # type: ignore[arg-type]
        return answering(Outcome.READ_ORIGIN)(message)  # type: ignore[no-any-return]

    return script


def test_a_catalogue_that_is_another_one_here_is_not_used(catalogue: NodeDataset) -> None:
    """As for a container that has another home at the path of the server's: ids would mean other files."""
    directory = str(catalogue.manifest.directory)
    with scripted(catalogue.config) as server:
        server.script = lambda message: [
            m.DatasetOpened(getattr(message, "token", 0), 42, directory, "of another home")
        ]
        with NodeClient(Connection.open(catalogue.config)) as node:
            with pytest.raises(StoreFormatError, match="another catalogue"):
                open_listed_dataset(node, ["/a"], catalogue.config)
            with pytest.raises(StoreFormatError, match="a different catalogue"):
                reopen_on(node, catalogue)


def test_a_listed_file_is_a_hit_once_the_server_has_it(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    paths = [str(origin / f"{index:02d}.bin") for index in (3, 1)]
    reader = reader_of(readers, open_listed_dataset(node, paths, config))
    assert reader.read_many([0, 1, 0]) == [content(3), content(1), content(3)]
    reader.report()
    statistics = node.statistics()
    assert (statistics.hits, statistics.misses, statistics.origin_requests) == (1, 2, 2)


def test_a_file_by_path_has_an_id_from_then_on(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    dataset = open_learned_dataset(node, "0123456789abcdef", 4, config)
    reader = reader_of(readers, dataset)
    assert reader.try_read_file(str(origin / "05.bin")) == (content(5), 0)
    assert reader.try_read_file(str(origin / "02.bin")) == (content(2), 1)
    assert reader.try_read_file(str(origin / "05.bin")) == (content(5), 0)
    assert reader.read_many([1, 0]) == [content(2), content(5)]
    reader.report()
    statistics = node.statistics()
    assert (statistics.hits, statistics.misses, statistics.late) == (3, 2, 0)  # the third by path is there
    assert (statistics.origin_requests, statistics.direct_reads) == (2, 0)


def test_ids_beyond_what_was_mapped_are_asked_for_and_then_found(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    """The catalogue grew past its first 1024 objects after this reader had mapped it."""
    dataset, other = (open_learned_dataset(node, "0123456789abcdef", 4, config) for _ in range(2))
    late, early = reader_of(readers, dataset), reader_of(readers, other)
    many = 1100
    paths = [origin / f"many{index:04d}.bin" for index in range(many)]
    for index, path in enumerate(paths):  # all before the first is read: one that was written just now is read again
        path.write_bytes(content(index, 40))
    for path in paths:
        early.try_read_file(str(path))
    assert len(late._keys) < many * 16
    assert late.read_many([many - 1, 2, many - 1]) == [content(many - 1, 40), content(2, 40), content(many - 1, 40)]
    late.report()
    early.report()
    statistics = node.statistics()
    assert (statistics.hits, statistics.late, statistics.misses) == (3, 0, many)


def test_a_file_by_path_that_is_missing_is_the_error_it_would_be(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, open_learned_dataset(node, "0123456789abcdef", 4, config))
    with pytest.raises(FileNotFoundError, match="missing"):
        reader.try_read_file(str(origin / "missing"))
    assert reader.try_read_file("relative") == (None, None)
    assert reader.try_read_file(str(origin / "02.bin"))[0] == content(2)


def test_a_file_by_path_may_come_with_the_answer(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    catalogue_server.script = answering_files(Outcome.INLINE, data=b"inline", object_id=1)
    reader = reader_of(readers, catalogue)
    assert reader.try_read_file("/a/b\udcff") == (b"inline", 1)
    (question,) = catalogue_server.wait_heard(m.DemandFile)
    assert (question.path, question.dataset) == (b"/a/b\xff", 1)  # type: ignore[union-attr]
    reader.report()
    (report,) = catalogue_server.wait_heard(m.Consumed)
    assert isinstance(report, m.Consumed)
    assert (np.frombuffer(report.ids, np.int64).tolist(), report.hits, report.direct_reads) == ([1], 0, 0)


def test_a_key_that_is_withdrawn_again_before_the_reader_looks_is_no_loss(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    """Another loader of the node begins an epoch, for which every file is checked anew."""
    key = bytes(range(16))
    catalogue_server.tier.put_many([(key, b"as answered", False)])
    catalogue_server.script = answering_files(Outcome.STORED, object_id=1, key=key)
    assert reader_of(readers, catalogue).try_read_file("/a") == (b"as answered", 1)
    assert catalogue_server.of(m.Lost) == []


def test_a_file_by_path_may_be_left_to_the_reader(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    catalogue_server.script = answering_files(Outcome.READ_ORIGIN, object_id=1)
    reader = reader_of(readers, catalogue)
    assert reader.try_read_file("/a/b") == (None, 1)
    reader.report()
    (report,) = catalogue_server.wait_heard(m.Consumed)
    assert isinstance(report, m.Consumed)
    assert (len(report.ids), report.direct_reads) == (8, 1)


def test_what_was_there_when_it_was_asked_for_is_a_hit(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    """Also with the answer. What is said to be there, and is not, is none: the reader goes to the origin."""
    reader = reader_of(readers, catalogue)
    catalogue_server.script = answering_files(Outcome.INLINE, data=b"inline", object_id=1, was_held=True)
    assert reader.try_read_file("/a") == (b"inline", 1)
    catalogue_server.script = answering_files(Outcome.STORED, object_id=1, key=bytes(range(16)), was_held=True)
    assert reader.try_read_file("/b") == (None, 1)
    reader.report()
    (report,) = catalogue_server.wait_heard(m.Consumed)
    assert isinstance(report, m.Consumed)
    assert (report.hits, report.direct_reads) == (1, 1)


def test_a_file_by_path_without_an_answer_is_read_past_the_cache(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    catalogue_server.script = lambda message: None
    reader = reader_of(readers, catalogue)
    assert reader.try_read_file("/a/b") == (None, None)
    assert reader.try_read_file("/a/b") == (None, None)
    assert len(catalogue_server.of(m.DemandFile)) == 1  # it is not asked again at once
    assert (list(reader._consumed), reader._direct_reads) == ([], 2)


def test_a_file_by_path_without_a_server(catalogue: NodeDataset, readers: list[ObjectReader]) -> None:
    assert reader_of(readers, catalogue).try_read_file("/a/b") == (None, None)


def test_what_samples_opened_reaches_the_server_with_the_report(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader]
) -> None:
    dataset = open_learned_dataset(node, "0123456789abcdef", 4, config)
    learned = LearnedMap.open(dataset.manifest.directory, 4)
    reader = reader_of(readers, dataset)
    for index in (5, 2):
        reader.try_read_file(str(origin / f"{index:02d}.bin"))
    reader.learn(3, [1, 0])
    reader.learn(1, [])
    assert learned.num_known == 0
    reader.report()
    assert wait_until(lambda: learned.num_known == 2, timeout_seconds=60)
    assert [learned.objects_of(sample) for sample in (3, 1)] == [(1, 0), ()]
    reader.report()
    reader.learn(0, [0])
    reader.close()
    assert wait_until(lambda: learned.is_known(0), timeout_seconds=60)
    assert node.statistics().errors == {}


def test_records_of_what_samples_opened_are_sent_once(
    catalogue_server: ScriptedServer, catalogue: NodeDataset, readers: list[ObjectReader]
) -> None:
    reader = reader_of(readers, catalogue)
    reader.learn(7, [1, 0])
    reader.learn(2, [])
    reader.report()
    reader.report()
    (message,) = catalogue_server.wait_heard(m.SamplesOpened)
    assert isinstance(message, m.SamplesOpened)
    assert np.frombuffer(message.records, np.int64).tolist() == [7, 2, 1, 0, 2, 0]


def test_a_catalogue_that_was_made_again_is_not_read_by_its_old_ids(
    node: NodeClient, config: Config, origin: Path, readers: list[ObjectReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefeed.client.reader._RECONNECT_SECONDS", 0.0)
    reader = reader_of(readers, open_learned_dataset(node, "0123456789abcdef", 4, config))
    assert reader.try_read_file(str(origin / "05.bin")) == (content(5), 0)
    directory = reader.dataset.manifest.directory
    node.stop()
    (directory / "header.json").write_text("damaged")
    with NodeClient.connect(config) as other:
        fresh = reader_of(readers, open_learned_dataset(other, "0123456789abcdef", 4, config))
        assert fresh.try_read_file(str(origin / "02.bin")) == (content(2), 0)
        for _ in range(2):  # its server is gone; and the next one has another catalogue
            assert reader.try_read_file(str(origin / "03.bin")) == (None, None)
        assert reader.read(0) == content(5)  # as it is on disk, or from the tier, and never the other file
