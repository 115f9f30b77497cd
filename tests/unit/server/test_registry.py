"""Datasets in use: their numbers, what the tier holds of them, what is learned of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fake_sources import MemorySource
from nodes import Rig, content, memory_source, rig
from prefeed.core.actions import Outcome
from prefeed.server.datasets import Dataset, Opened
from prefeed.sources.blocks import BlockSource, entries_of
from prefeed.sources.manifest_writer import Columns
from prefeed.sources.posix import PosixSource
from prefeed.types import ObjectInfo
from sandbox import Sandbox

READER = 7
ROOT = "memory://parts"
BLOCK = 4096


@pytest.fixture
def node(sandbox: Sandbox) -> Iterator[Rig]:
    with rig(sandbox.home) as made:
        yield made


@pytest.fixture
def files(sandbox: Sandbox) -> list[Path]:
    """Three files of one directory, and one of another whose name begins the same."""
    paths = [sandbox.root / "origin" / name for name in ("a.bin", "b.bin", "c.bin")] + [sandbox.root / "origin2/a.bin"]
    for index, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content(index))
    return paths


def fill(node: Rig, dataset: object, count: int) -> None:
    node.begin(READER, dataset, range(count))  # type: ignore[arg-type]
    node.deliver_all()
    node.node.end_consumer(READER)


# ------------------------------------------------------------ catalogues grow


def test_a_path_gets_an_id_once(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(files[0])
    registry = node.node.registry
    ids = [registry.object_of(dataset.number, str(files[index])) for index in (2, 0, 1, 2)]
    assert ids == [1, 0, 2, 1]
    assert dataset.manifest.num_objects == 3
    assert [dataset.manifest.path(index) for index in range(3)] == [str(files[index]) for index in (0, 2, 1)]
    assert len(node.node.scheduler.tables[dataset.number]) == 3
    reader = node.demand(dataset, 2)
    node.deliver_all()
    assert (reader.outcome, bytes(node.tier.get(dataset.key(2)) or b"")) == (Outcome.STORED, content(1))


def test_a_manifest_does_not_grow(node: Rig) -> None:
    dataset = node.open(memory_source(2))
    for number in (dataset.number, 99):
        with pytest.raises(KeyError):
            node.node.registry.object_of(number, "/a/b")


@pytest.mark.parametrize("path", ["relative", "", "/nul\0byte"])
def test_what_is_no_absolute_path_gets_no_id(node: Rig, path: str) -> None:
    dataset = node.open_catalogue()
    with pytest.raises(ValueError, match="not an absolute path"):
        node.node.registry.object_of(dataset.number, path)
    assert dataset.manifest.num_objects == 0


# ------------------------------------------------------------ what samples open


def words(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_what_samples_opened_is_learned(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files, num_samples=4)
    node.node.registry.learn(dataset.number, words(3, 2, 1, 0, 0, 0, 2, 1, 3))
    assert dataset.learned is not None
    assert [dataset.learned.is_known(sample) for sample in range(4)] == [True, False, True, True]
    assert [dataset.learned.objects_of(sample) for sample in range(4)] == [(), (), (3,), (1, 0)]


@pytest.mark.parametrize(
    "damaged",
    [
        words(1),
        words(1, 2, 0),
        words(1, -1),
        words(1, -2, 0, 0),
        words(1, 1, 4),
        words(1, 1, -1),
        words(4, 1, 0),
        words(-1, 1, 0),
        words(1, 1 << 62, 0),
    ],
    ids=[
        "cut off before the count", "cut off", "a negative count", "a count that leads back", "no such object",
        "a negative object", "no such sample", "a negative sample", "a count beyond all",
    ],
)  # fmt: skip
def test_damaged_records_are_refused(node: Rig, files: list[Path], damaged: np.ndarray) -> None:  # type: ignore[type-arg]
    dataset = node.open_catalogue(*files, num_samples=4)
    with pytest.raises((IndexError, ValueError)):
        node.node.registry.learn(dataset.number, damaged)
    assert dataset.learned is not None
    assert dataset.learned.num_known == 0


def test_samples_that_are_not_learned_are_passed_over(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    node.node.registry.learn(dataset.number, words(0, 1, 2))
    assert dataset.learned is None


# ------------------------------------------------------------ keys


def test_no_key_is_told_of_bytes_that_may_be_out_of_date(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    fill(node, dataset, 4)
    registry = node.node.registry
    assert registry.readable_key(dataset.number, 2) == registry.key(dataset.number, 2) != bytes(16)
    node.begin(READER, dataset, [2])
    assert registry.readable_key(dataset.number, 2) == b""
    node.check()
    assert registry.readable_key(dataset.number, 2) == registry.key(dataset.number, 2)


def test_objects_of_a_manifest_always_have_a_key(node: Rig) -> None:
    dataset = node.open(memory_source(2))
    assert node.node.registry.readable_key(dataset.number, 1) == dataset.manifest.key(1)


# ------------------------------------------------------------ clear


def test_clear_frees_the_files_below_a_path_and_no_others(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    fill(node, dataset, 4)
    assert node.node.clear(str(files[0].parent)).entries == 3
    assert node.node.registry.resident_ids(dataset.number).tolist() == [3]
    assert node.node.clear(str(files[3])).entries == 1


def test_clear_of_one_file(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    fill(node, dataset, 4)
    assert node.node.clear(str(files[1])).entries == 1
    assert node.node.registry.resident_ids(dataset.number).tolist() == [0, 2, 3]
    reader = node.demand(dataset, 1)
    node.deliver_all()
    assert reader.outcome == Outcome.STORED


def test_clear_of_the_root_frees_every_file_and_no_object_store(node: Rig, files: list[Path]) -> None:
    catalogue, manifest = node.open_catalogue(*files), node.open(memory_source(2))
    fill(node, catalogue, 4)
    fill(node, manifest, 2)
    assert node.node.clear("/").entries == 4
    assert node.node.clear("memory://test").entries == 2


def test_a_catalogue_in_use_is_not_opened_twice(node: Rig, files: list[Path]) -> None:
    dataset = node.open_catalogue(*files)
    fill(node, dataset, 4)
    assert node.open_catalogue(*files) is dataset
    assert node.num_residents(dataset) == 4


# ------------------------------------------------------------ objects opened one by one


def open_part(node: Rig, name: str, *, num_blocks: int = 3) -> Dataset:
    """Use the blocks of one object of a root, as a client that has opened it alone."""
    info = ObjectInfo(path=name, size_bytes=num_blocks * BLOCK, version="1")
    source = BlockSource(f"blocks+{ROOT}", MemorySource({name: bytes(info.size_bytes)}, url=ROOT), BLOCK)
    columns = Columns(source.url, mark=source.mark)
    columns.extend(list(entries_of(info, BLOCK)))
    return node.node.registry.add(Opened(manifest=columns.write_part(node.directory / "parts"), source=source))


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions a call calls, at any depth."""
    count = 0

    def called(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


def test_opening_an_object_costs_the_same_with_one_or_a_hundred_others_open(node: Rig) -> None:
    node.open(memory_source(2))  # a listing of another root
    counts = [calls_of(partial(open_part, node, f"{number:03d}")) for number in range(100)]
    again = [calls_of(partial(open_part, node, name)) for name in ("000", "099")]
    assert len(node.node.datasets) == 101
    assert counts[99] <= counts[1] + 5  # numbers with two digits and three, no more
    assert again[1] <= again[0] + 5


def test_an_object_opened_alone_has_the_blocks_that_a_listing_of_its_root_fetched(
    node: Rig, files: list[Path], sandbox: Sandbox
) -> None:
    whole = node.open(BlockSource(f"blocks+{sandbox.root}", PosixSource(str(sandbox.root)), BLOCK))
    fill(node, whole, whole.manifest.num_objects)
    assert node.num_residents(whole) == 8  # two blocks of each of four files
    root = str(files[1].parent)
    source = BlockSource(f"blocks+{root}", PosixSource(root), BLOCK)
    columns = Columns(source.url, mark=source.mark)
    columns.extend(list(entries_of(source.info(files[1].name), BLOCK)))
    part = node.node.registry.add(Opened(manifest=columns.write_part(node.directory / "parts"), source=source))
    assert node.num_residents(part) == 2
    assert node.num_residents(whole) == 6
    node.node.validate()


def test_what_has_nothing_in_the_tier_is_let_go_of_and_found_no_more(node: Rig) -> None:
    first = open_part(node, "a")
    node.clock.now += 61
    second = open_part(node, "b")
    registry = node.node.registry
    assert registry.find(first.manifest.directory) is None
    assert registry.find(second.manifest.directory) is second
    third = open_part(node, "a")
    assert third.number not in (first.number, second.number)
    assert registry.find(third.manifest.directory) is third
