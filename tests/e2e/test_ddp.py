"""Several ranks of one node: one cache, each file opened once between them, and every rank's batches are torch's."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import prefeed
from e2e.ddp_train import BATCH_SIZE, EPOCHS
from e2e.jobs import KINDS, run_job, write_data
from slow_files import slow_files

RANKS = 2
OPEN_SECONDS = 0.003


LENGTHS = [12 * RANKS * BATCH_SIZE, 12 * RANKS * BATCH_SIZE - 5]
"""As many samples for each rank, and some that are read by two."""


def test_one_open_a_file_a_node(tmp_path: Path) -> None:
    """Over all epochs each file is opened once; the first epoch needs them all, so later ones open none.

    One program trains on every kind of data, for it takes seconds to start.
    """
    given = [(kind, length) for kind in KINDS for length in LENGTHS]
    padded = [-(-length // RANKS) * RANKS for _, length in given]
    with ExitStack() as stack:
        sources = [write_data(tmp_path / f"{kind}{length}", kind, length) for kind, length in given]
        slow = [stack.enter_context(slow_files(source, open_seconds=OPEN_SECONDS)) for source in sources]
        datasets = json.dumps([(str(one.path), *each) for one, each in zip(slow, given, strict=True)])
        expected = run_job("ddp_train", tmp_path / "plain", datasets, "2", processes=RANKS)
        before = [one.opens_by_file() for one in slow]
        # What is counted is there to be saved.
        assert [sum(opens.values()) for opens in before] == [EPOCHS * length for length in padded]
        seen = run_job("ddp_train", tmp_path / "served", datasets, "2", "--auto", processes=RANKS)
        after = [one.opens_by_file() for one in slow]
    assert seen == expected
    for (_, length), opens, opens_before in zip(given, after, before, strict=True):
        assert {name: count - opens_before[name] for name, count in opens.items()} == dict.fromkeys(opens_before, 1)
        assert len(opens) == length
    statistics = prefeed.statistics()
    assert statistics.reads == EPOCHS * sum(padded)
    assert statistics.direct_reads == 0
    assert statistics.resident_objects == sum(length for _, length in given)
    # Those without a rank are of this process, which may have loaded for other tests.
    assert Counter((epoch.rank, epoch.epoch) for epoch in statistics.epochs if epoch.rank is not None) == {
        (rank, epoch): len(given) for rank in range(RANKS) for epoch in range(1, EPOCHS + 1)
    }
