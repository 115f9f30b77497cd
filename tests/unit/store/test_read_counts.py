"""Reads are added up over processes and threads, and none is lost."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from prefeed.store.read_counts import ReadCounts, counted_reads

pytestmark = pytest.mark.usefixtures("sandbox")


def test_reads_add_up_over_those_who_count(tmp_path: Path) -> None:
    one, two = ReadCounts(tmp_path), ReadCounts(tmp_path)
    assert one.try_add(3, 1)
    assert two.try_add(1, 1)
    assert one.try_add(0, 2)
    assert counted_reads(tmp_path) == (4, 4)
    one.close()
    three = ReadCounts(tmp_path)  # takes over what was left there
    assert three.try_add(1, 0)
    assert one.try_add(1, 0)
    assert counted_reads(tmp_path) == (6, 4)
    for counts in (one, two, three):
        counts.close()
    assert (tmp_path / "reads").stat().st_size <= 4096


def test_threads_and_forked_children_count_together(tmp_path: Path) -> None:
    counts = ReadCounts(tmp_path)
    assert counts.try_add(1, 0)

    def add() -> None:
        for _ in range(200):
            counts.try_add(1, 1)

    def add_in_threads() -> None:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    pid = os.fork()
    add_in_threads()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert counted_reads(tmp_path) == (1601, 1600)
    counts.close()


def test_one_too_many_is_told_so(tmp_path: Path) -> None:
    many = [ReadCounts(tmp_path) for _ in range(257)]
    assert [counts.try_add(1, 0) for counts in many] == [True] * 256 + [False]
    assert counted_reads(tmp_path) == (256, 0)
    for counts in many:
        counts.close()


def test_a_dropped_cache_counts_nothing(tmp_path: Path) -> None:
    counts = ReadCounts(tmp_path / "dropped")
    assert not counts.try_add(1, 1)
    assert counted_reads(tmp_path / "dropped") == (0, 0)
