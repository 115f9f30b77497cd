"""Frameworks that make loaders of their own, or make ours anew: same batches, and files opened once."""

from __future__ import annotations

from pathlib import Path

import pytest

import prefeed
from e2e.frameworks import EPOCHS
from e2e.jobs import run_job, write_data
from slow_files import slow_files

pytestmark = pytest.mark.timeout(180)

LENGTH = 400


def check_served(tmp_path: Path, framework: str, kind: str, num_workers: str, served: str, processes: int = 1) -> None:
    """Run with and without; later epochs must not come to the origin."""
    source = write_data(tmp_path / "data", kind, LENGTH)
    with slow_files(source) as slow:
        arguments = (framework, str(slow.path), kind, str(LENGTH), num_workers)
        expected = run_job("frameworks", tmp_path / "plain", *arguments, processes=processes)
        assert slow.opens() == EPOCHS * LENGTH
        seen = run_job("frameworks", tmp_path / "served", *arguments, served, processes=processes)
        assert slow.opens() == (EPOCHS + 1) * LENGTH
    assert seen == expected
    assert seen[0][0] != seen[0][1]  # the order is another each epoch
    statistics = prefeed.statistics()
    assert statistics.reads == EPOCHS * LENGTH
    assert statistics.hits + statistics.late >= 0.97 * (EPOCHS - 1) * LENGTH
    assert statistics.direct_reads == 0
    if kind == "declared":
        assert statistics.misses <= 0.05 * LENGTH  # they were read ahead, in the right order


CASES = [("declared", "0", "--auto"), ("declared", "2", "--auto"), ("learned", "2", "--auto")]


@pytest.mark.parametrize(("kind", "num_workers", "served"), CASES)
@pytest.mark.parametrize("framework", ["accelerate", "accelerate_seedable"])
def test_accelerate(tmp_path: Path, framework: str, kind: str, num_workers: str, served: str) -> None:
    check_served(tmp_path, framework, kind, num_workers, served)


def test_accelerate_makes_torchs_loader_of_ours(tmp_path: Path) -> None:
    """So ours alone is not served there, and right all the same; with ``prefeed.auto`` it is."""
    check_served(tmp_path, "accelerate", "declared", "2", "--both")
    reads = prefeed.statistics().reads
    arguments = ("accelerate", str(tmp_path / "data"), "declared", str(LENGTH), "2")
    expected = run_job("frameworks", tmp_path / "plain again", *arguments)
    assert run_job("frameworks", tmp_path / "ours alone", *arguments, "--explicit") == expected
    assert prefeed.statistics().reads == reads


@pytest.mark.parametrize("framework", ["accelerate", "accelerate_seedable"])
def test_accelerate_in_two_processes(tmp_path: Path, framework: str) -> None:
    check_served(tmp_path, framework, "declared", "2", "--auto", processes=2)


@pytest.mark.parametrize(("kind", "num_workers", "served"), [*CASES, ("declared", "2", "--explicit")])
def test_lightning(tmp_path: Path, kind: str, num_workers: str, served: str) -> None:
    check_served(tmp_path, "lightning", kind, num_workers, served)


@pytest.mark.parametrize("served", ["--auto", "--explicit"])
def test_lightning_in_two_processes(tmp_path: Path, served: str) -> None:
    check_served(tmp_path, "lightning", "declared", "2", served, processes=2)


@pytest.mark.parametrize(("kind", "num_workers"), [("declared", "0"), ("declared", "2"), ("learned", "2")])
def test_torchdata_is_left_alone(tmp_path: Path, kind: str, num_workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader keeps state that ours does not; batches and states are as without."""
    root = write_data(tmp_path / "data", kind, LENGTH)
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    arguments = ("torchdata", str(root), kind, str(LENGTH), num_workers)
    expected = run_job("frameworks", tmp_path / "plain", *arguments)
    assert run_job("frameworks", tmp_path / "served", *arguments, "--auto") == expected
    assert prefeed.statistics().reads == 0
