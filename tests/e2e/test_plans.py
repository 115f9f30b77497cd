"""Plans in programs of others: what they read is in memory before they read it, whichever threads and processes they have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import prefeed
from leaks import wait_until
from process.children import child_running

NUM = 40


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


def content(index: int) -> bytes:
    return np.random.default_rng(index).bytes(3000)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index in range(NUM):
        (tmp_path / f"{index:02}.bin").write_bytes(content(index))
    return tmp_path


def assert_each_was_fetched_once(plan: prefeed.Plan) -> None:
    """Every read was the plan's, and none of them asked the origin."""

    def is_heard() -> bool:
        reads = plan.progress().reads
        return reads is not None and reads.reads == NUM

    assert wait_until(is_heard, timeout_seconds=60)
    reads = plan.progress().reads
    assert reads is not None
    assert (reads.misses, reads.direct_reads) == (0, 0)
    assert prefeed.statistics().origin_requests == NUM


def test_spdl(root: Path) -> None:
    pipeline = pytest.importorskip("spdl.pipeline", reason="SPDL is not installed: it is in the extra `dev`")
    order = np.random.default_rng(0).permutation(NUM).tolist()
    with prefeed.Plan(root, order) as plan:
        assert wait_until(lambda: prefeed.statistics().resident_objects == NUM, timeout_seconds=60)
        built = pipeline.PipelineBuilder().add_source(order)
        built = built.pipe(plan.read, concurrency=4, output_order="input").aggregate(8).add_sink()
        run = built.build(num_threads=4)
        with run.auto_stop():
            seen = [sample for batch in run for sample in batch]
        assert seen == [content(index) for index in order]
        assert_each_was_fetched_once(plan)


class SampleInfo:
    """The field of DALI's class of this name that sources use."""

    def __init__(self, idx_in_epoch: int) -> None:
        self.idx_in_epoch = idx_in_epoch


class ExternalSource:
    """What DALI's ``fn.external_source(..., batch=False, parallel=True)`` is given: it is called in DALI's workers."""

    def __init__(self, reader: prefeed.PlanReader, order: list[int]) -> None:
        self.reader, self.order = reader, order

    def __call__(self, sample_info: SampleInfo) -> np.ndarray[Any, np.dtype[np.uint8]]:
        if sample_info.idx_in_epoch >= len(self.order):
            raise StopIteration
        return np.frombuffer(self.reader.read(self.order[sample_info.idx_in_epoch]), dtype=np.uint8)


def work(source: ExternalSource, pipe: Any) -> None:
    """Make samples as a worker of DALI does, for which the pipeline asks."""
    for index in iter(pipe.recv, None):
        try:
            pipe.send(source(SampleInfo(index)).tobytes())
        except StopIteration:
            pipe.send(None)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_external_source_of_dali(root: Path, method: str) -> None:
    """Two workers make every second sample, in whatever order they are done."""
    order = np.random.default_rng(1).permutation(NUM).tolist()
    with prefeed.Plan(root, order) as plan:
        assert wait_until(lambda: prefeed.statistics().resident_objects == NUM, timeout_seconds=60)
        source = ExternalSource(plan.reader, order)
        with (
            child_running(work, source, method=method) as (one, to_one),
            child_running(work, source, method=method) as (other, to_other),
        ):
            seen = {}
            for index in range(NUM):
                pipe = (to_one, to_other)[index % 2]
                pipe.send(index)
                seen[index] = pipe.recv()
            to_one.send(NUM)
            assert to_one.recv() is None
            for process, pipe in ((one, to_one), (other, to_other)):
                pipe.send(None)
                process.join()
        assert [seen[index] for index in range(NUM)] == [content(index) for index in order]
        assert_each_was_fetched_once(plan)
