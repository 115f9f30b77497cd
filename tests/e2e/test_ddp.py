"""Several ranks of one node: one cache, each file opened once between them, and every rank's batches are torch's."""

from __future__ import annotations

from pathlib import Path

import pytest

import prefeed
from e2e.ddp_train import BATCH_SIZE, EPOCHS
from e2e.jobs import KINDS, run_job, write_data
from slow_files import slow_files

pytestmark = pytest.mark.timeout(180)

RANKS = 2
OPEN_SECONDS = 0.003


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [12 * RANKS * BATCH_SIZE, 12 * RANKS * BATCH_SIZE - 5], ids=["even", "padded"])
def test_one_open_a_file_a_node(tmp_path: Path, kind: str, length: int) -> None:
    """Over all epochs each file is opened once; the first epoch needs them all, so later ones open none."""
    source = write_data(tmp_path / "data", kind, length)
    padded = -(-length // RANKS) * RANKS
    with slow_files(source, open_seconds=OPEN_SECONDS) as slow:
        arguments = (str(slow.path), kind, str(length), "2")
        expected = run_job("ddp_train", tmp_path / "plain", *arguments, processes=RANKS)
        opens_before = slow.opens_by_file()
        assert sum(opens_before.values()) == EPOCHS * padded  # what is counted is there to be saved
        seen = run_job("ddp_train", tmp_path / "served", *arguments, "--auto", processes=RANKS)
        opens = {name: count - opens_before[name] for name, count in slow.opens_by_file().items()}
    assert seen == expected
    assert opens == dict.fromkeys(opens_before, 1)
    assert len(opens) == length
    statistics = prefeed.statistics()
    assert statistics.reads == EPOCHS * padded
    assert statistics.direct_reads == 0
    assert statistics.resident_objects == length
    assert {(epoch.rank, epoch.epoch) for epoch in statistics.epochs} == {
        (rank, epoch) for rank in range(RANKS) for epoch in range(1, EPOCHS + 1)
    }
