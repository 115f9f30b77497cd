"""Counters of processes: sums over all of them, kept when a process is killed, in files that are used again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from counting import counting
from prefeed.run_summary import counters

pytestmark = pytest.mark.usefixtures("sandbox")


def in_child(act: str, number: int = 1) -> None:
    """Count in a forked process that is killed."""
    child = os.fork()
    if not child:
        for _ in range(number):
            counters.add(act, 2)
        counters.note("served", "train")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def test_counts_of_killed_processes_are_kept(tmp_path: Path) -> None:
    with counting(tmp_path / "counts") as sums:
        counters.add("hits")
        for _ in range(3):
            in_child("hits", 5)
        counters.add("hits", 0)
        assert sums() == {"hits": 31, "served\ttrain": 1}
        assert sorted(os.listdir(tmp_path / "counts")) == ["counts-0", "counts-1"]


def test_times_of_loops_are_of_processes_at_once(tmp_path: Path) -> None:
    with counting(tmp_path / "counts"):
        in_child(counters.LOOP_NS)
        assert counters.sums(str(tmp_path / "counts")) == ({"loop_ns": 2, "served\ttrain": 1}, 1)
        counters.add(counters.LOOP_NS, 1)
        in_child(counters.LOOP_NS)
        found, num_loops = counters.sums(str(tmp_path / "counts"))
        assert (found[counters.LOOP_NS], num_loops) == (5, 2)


def test_a_full_file_keeps_what_it_has(tmp_path: Path) -> None:
    with counting(tmp_path / "counts") as sums:
        for number in range(200):
            counters.add(f"{number} {'long' * 200}")
        counters.add(f"0 {'long' * 200}")
        assert len(sums()) == 128
        assert sums().total() == 129


def test_nothing_is_counted_without_a_directory(tmp_path: Path) -> None:
    with counting(tmp_path / "counts"):
        os.rmdir(tmp_path / "counts")
        counters.add("hits")
        assert not counters.is_counting()
    counters.add("hits")
    assert os.listdir(tmp_path) == []
