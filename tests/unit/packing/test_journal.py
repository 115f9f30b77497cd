"""The journal: whole records count, whatever follows them does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefeed.errors import PackOccupiedError
from prefeed.packing.journal import JOURNAL_NAME, Journal, PackOptions, Part

JOB = PackOptions(source="/src", layout="tfrecord", shard_bytes=5, seed=None)


def part(number: int) -> Part:
    return Part(file=f"{number}", signature="ab", sizes=[2**63] * number, checksums=[2**64 - 1] * number)


def begun(directory: Path, parts: int) -> Path:
    with Journal.open(directory) as journal:
        journal.begin(JOB)
        for number in range(parts):
            journal.add(part(number))
    return directory / JOURNAL_NAME


def test_what_was_noted_is_found(tmp_path: Path) -> None:
    begun(tmp_path, 3)
    with Journal.open(tmp_path) as journal:
        assert journal.job == JOB
        assert journal.parts == [part(0), part(1), part(2)]
        journal.keep(1)
        journal.add(part(7))
    with Journal.open(tmp_path) as journal:
        assert journal.parts == [part(0), part(7)]


def test_every_cut_leaves_a_beginning(tmp_path: Path) -> None:
    path = begun(tmp_path, 3)
    whole = path.read_bytes()
    seen = set()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size] + b"\xff" * (size % 5))
        with Journal.open(tmp_path) as journal:
            assert journal.parts == [part(0), part(1), part(2)][: len(journal.parts)]
            seen.add((journal.job is not None, len(journal.parts)))
            if journal.job is None:
                journal.begin(JOB)
            journal.add(part(9))
        with Journal.open(tmp_path) as journal:
            assert journal.parts[-1] == part(9)
    assert seen == {(False, 0), (True, 0), (True, 1), (True, 2), (True, 3)}


def test_one_at_a_time(tmp_path: Path) -> None:
    with Journal.open(tmp_path), pytest.raises(PackOccupiedError, match="another process"):
        Journal.open(tmp_path)
    with Journal.open(tmp_path) as journal:
        journal.finish()
    assert not (tmp_path / JOURNAL_NAME).exists()
