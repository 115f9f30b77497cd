"""The same cached dataset as a random-access source of Grain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
from frameworks.feeding import assert_epoch, assert_made_once, cached_pictures, example, expected
from frameworks.running import assert_recipe_is_served, assert_the_node_reads_ahead
from leaks import wait_until

grain = pytest.importorskip("grain.python", reason="Grain is not installed: make test-frameworks", exc_type=ImportError)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks(reason="Grain keeps threads and descriptors of its own to the end of the process"),
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_source(tmp_path: Path, num_workers: int) -> None:
    cached = cached_pictures(tmp_path / "pictures")
    pictures = expected(cached)
    create_loader = example("grain_source").create_loader
    for _ in range(3):
        assert_epoch(create_loader(cached, num_workers=num_workers), pictures)
    assert_made_once(cached, 3)


def test_source_names_what_it_holds(tmp_path: Path) -> None:
    """Grain's checkpoints compare the source's text: the same data are the same text, in another process too."""
    source = example("grain_source").Cached
    assert repr(source(cached_pictures(tmp_path / "a"))) == repr(source(cached_pictures(tmp_path / "a")))


class Planned:
    """A source that reads for a plan, in whichever process Grain makes samples."""

    def __init__(self, reader: prefeed.PlanReader, length: int) -> None:
        self.reader, self.length = reader, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, record_key: Any) -> bytes:
        data: bytes = self.reader.read(record_key)
        return data


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plan_of_its_sampler(tmp_path: Path, num_workers: int) -> None:
    """What the sampler draws is known before the loader begins, and read before it is asked for."""
    content = [np.random.default_rng(number).bytes(3000) for number in range(30)]
    for number, data in enumerate(content):
        (tmp_path / f"{number:02}.bin").write_bytes(data)
    images = prefeed.datasets.Objects(tmp_path)
    sampler = grain.IndexSampler(30, grain.NoSharding(), shuffle=True, num_epochs=1, seed=1)
    order = [sampler[step].record_key for step in range(30)]
    with prefeed.Plan(images, order) as plan:
        assert wait_until(lambda: prefeed.statistics().resident_objects == 30, timeout_seconds=60)
        source = Planned(plan.reader, 30)
        loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=num_workers)
        assert sorted(loader) == sorted(content)
        reads = plan.progress().reads
    assert reads is not None
    assert reads.misses == reads.direct_reads == 0
    assert prefeed.statistics().origin_requests == 30
    prefeed.datasets._readers.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unchanged_program_is_served(tmp_path: Path, num_workers: int) -> None:
    answer = ["grain.DataLoader (Files)"]
    assert_the_node_reads_ahead("grain_epochs.py", tmp_path, num_workers=num_workers, answer=answer)


def test_the_recipe_is_served(tmp_path: Path) -> None:
    assert_recipe_is_served("grain", tmp_path)
