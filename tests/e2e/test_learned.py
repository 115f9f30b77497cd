"""Datasets that do not say which files they open: it is learned in the first epoch, kept, and never believed."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler

import prefeed
import warm
from cover import crossed
from e2e.hashed import SMALLEST_BYTES, Hashed, HashedInBatches, InMemory, kept, name_of, write_hashed
from leaks import wait_until
from limits import set_limits
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.types import Statistics
from sandbox import Sandbox, end_all, servers_of
from slow_files import SlowDirectory, slow_files

NUM_SAMPLES = 400
NUM_SLOW_SAMPLES = 100
BATCH_SIZE = 8
OPEN_SECONDS = 0.02

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]
IDS = ["0", "2", "2-kept"]
NAMED = dict(zip(IDS, WORKERS, strict=True))
workers = pytest.mark.parametrize("workers", WORKERS, ids=IDS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of ``Hashed(source, NUM_SAMPLES)``."""
    return write_hashed(tmp_path / "data", Hashed(tmp_path / "data", NUM_SAMPLES))


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source) as slow:
        yield slow


@pytest.fixture
def root(source: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same files, on a local disk that is cached all the same."""
    monkeypatch.setenv("PREFEED_ROOTS", str(source))
    return source


def loader_of(dataset: Any, cls: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return cls(dataset, batch_size=BATCH_SIZE, shuffle=True, collate_fn=kept, generator=generator, **kwargs)


def truth_of(dataset: Any, **kwargs: Any) -> Any:
    """Return torch's own loader, over the same files."""
    return loader_of(dataset, DataLoader, **kwargs)


def statistics(*, reads: int) -> Statistics:
    """Return the node's counts, once so many reads are in them."""
    assert wait_until(lambda: prefeed.statistics().reads >= reads, timeout_seconds=60)
    found = prefeed.statistics()
    assert found.reads == reads
    return found


# ---------------------------------------------------------------- epochs of one run


@pytest.mark.parametrize(("workers", "revalidate"), crossed(NAMED, [True, False]))
def test_opened_once(
    source: Path, slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any], revalidate: bool
) -> None:
    """The first epoch opens each file once, at the origin; later ones find all of them in the cache.

    A loop that does nothing with a sample is as quick as the questions whether files have changed: it may have to wait for
    an answer, which makes the read a late one. How many do is a matter of time; that nothing is read again is not.
    """
    monkeypatch.setenv("PREFEED_REVALIDATE", str(int(revalidate)))
    ours = loader_of(Hashed(slow.path, NUM_SAMPLES), **workers)
    truth = truth_of(Hashed(source, NUM_SAMPLES), **workers)
    for epoch in (1, 2, 3):
        assert list(ours) == list(truth)
        assert slow.opens_by_file() == {name_of(index): 1 for index in range(NUM_SAMPLES)}
        found = statistics(reads=epoch * NUM_SAMPLES)
        assert found.hits + (found.late if revalidate else 0) >= 0.99 * (epoch - 1) * NUM_SAMPLES
        assert found.direct_reads == 0


@pytest.mark.parametrize(("workers", "cls"), crossed(NAMED, [Hashed, HashedInBatches]))
def test_samples_of_none_one_and_three_files(tmp_path: Path, workers: dict[str, Any], cls: type[Hashed]) -> None:
    source = tmp_path / "data"
    parts = (1, 0, 3, 0, 1)
    write_hashed(source, Hashed(source, NUM_SAMPLES, parts))
    with slow_files(source) as slow:
        ours = loader_of(cls(slow.path, NUM_SAMPLES, parts), **workers)
        truth = truth_of(Hashed(source, NUM_SAMPLES, parts), **workers)
        for _ in range(3):
            assert list(ours) == list(truth)
            assert set(slow.opens_by_file().values()) == {1}
    num_files = NUM_SAMPLES * sum(parts) // len(parts)
    found = statistics(reads=3 * num_files)
    assert found.direct_reads == 0
    if cls is Hashed:
        assert found.hits + found.late >= 0.99 * 2 * num_files


# ---------------------------------------------------------------- the next run


RUN = warm.given_as_text("""
import json, sys
from pathlib import Path
import prefeed
from e2e.hashed import Hashed, kept
dataset = Hashed(Path(sys.argv[1]), int(sys.argv[2]))
loader = prefeed.DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=kept, num_workers=int(sys.argv[3]))
seen = dict(sample for batch in loader for sample in batch)
assert seen == dict(Hashed(Path(sys.argv[4]), len(dataset))[i] for i in range(len(dataset)))
s = prefeed.statistics()
print(json.dumps([s.hits, s.late, s.misses, s.direct_reads]))
""")


def run_epoch(slow: SlowDirectory, *, num_workers: int) -> list[int]:
    """Read an epoch in a process of its own; return the node's hits, late reads, misses and direct reads."""
    arguments = [str(slow.path), str(NUM_SLOW_SAMPLES), str(num_workers), str(slow.source)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    counts: list[int] = json.loads(process.stdout)
    assert sum(counts) % NUM_SLOW_SAMPLES == 0
    return counts


@pytest.mark.parametrize("num_workers", [0, 2])
def test_next_run_knows(source: Path, sandbox: Sandbox, num_workers: int) -> None:
    """While the server is up nothing is opened; with an empty cache all is fetched ahead of the readers."""
    with slow_files(source, open_seconds=OPEN_SECONDS) as slow:
        first = run_epoch(slow, num_workers=num_workers)
        assert first[2] == NUM_SLOW_SAMPLES  # nobody could know
        assert slow.opens() == NUM_SLOW_SAMPLES
        hits, late, misses, direct = run_epoch(slow, num_workers=num_workers)
        assert (hits + late, misses - first[2], direct) == (NUM_SLOW_SAMPLES, 0, 0)
        assert slow.opens() == NUM_SLOW_SAMPLES

        end_all(servers_of(sandbox))
        hits, late, misses, direct = run_epoch(slow, num_workers=num_workers)
        assert hits + late + misses == NUM_SLOW_SAMPLES
        assert misses <= 0.01 * NUM_SLOW_SAMPLES
        assert set(slow.opens_by_file().values()) == {2}


# ---------------------------------------------------------------- what was learned no longer holds


@workers
def test_samples_open_other_files(root: Path, workers: dict[str, Any]) -> None:
    """Right at once, and known the next time; what a kept worker makes of the dataset is its own affair."""
    dataset = Hashed(root, NUM_SAMPLES)
    ours, truth = loader_of(dataset, **workers), truth_of(dataset, **workers)
    assert list(ours) == list(truth)
    for generation, parts in ((1, (1,)), (1, (2, 1)), (0, (1,))):
        dataset.generation, dataset.parts = generation, parts
        write_hashed(root, dataset)
        assert list(ours) == list(truth)
        before = statistics(reads=prefeed.statistics().reads)
        assert list(ours) == list(truth)
        after = prefeed.statistics()
        assert after.origin_requests == before.origin_requests
        assert after.misses - before.misses <= 0.01 * (after.reads - before.reads)


def change(file: Path, *, more_bytes: int) -> None:
    """Give the file other bytes, and a later time."""
    status = file.stat()
    file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()) + bytes(more_bytes))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@workers
def test_rewritten_file_is_served_again(root: Path, workers: dict[str, Any]) -> None:
    """As large as before, and larger: within the room that it had, and beyond."""
    dataset = Hashed(root, NUM_SAMPLES)
    ours, truth = loader_of(dataset, **workers), truth_of(dataset, **workers)
    assert list(ours) == list(truth)
    for index, more_bytes in ((0, 0), (33, 1), (NUM_SAMPLES - 1, 5000)):
        before = prefeed.statistics().origin_requests
        change(root / name_of(index), more_bytes=more_bytes)
        assert list(ours) == list(truth)
        assert prefeed.statistics().origin_requests == before + 1
        assert list(ours) == list(truth)
        assert prefeed.statistics().origin_requests == before + 1


@workers
def test_rewritten_file_and_a_sampler_that_is_not_read_ahead(root: Path, workers: dict[str, Any]) -> None:
    """Its order is not known beforehand, so each file is asked when its turn comes."""
    dataset = Hashed(root, NUM_SAMPLES)
    ours: Any = prefeed.DataLoader(dataset, sampler=Backwards(NUM_SAMPLES), batch_size=None, collate_fn=kept, **workers)
    for more_bytes in (0, 1):
        assert list(ours) == list(map(dataset.__getitem__, Backwards(NUM_SAMPLES)))
        for index in (0, 33, NUM_SAMPLES - 1):
            change(root / name_of(index), more_bytes=more_bytes)
    before = prefeed.statistics().origin_requests
    assert list(ours) == list(map(dataset.__getitem__, Backwards(NUM_SAMPLES)))
    assert prefeed.statistics().origin_requests == before + 3


class Backwards(Sampler[int]):
    """Nobody knows what a sampler of the user's own does."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length - 1, -1, -1))


@workers
def test_without_revalidation_a_loader_keeps_what_it_has(
    root: Path, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any]
) -> None:
    """Files are asked once a loader: the next loader sees what another program has changed."""
    monkeypatch.setenv("PREFEED_REVALIDATE", "0")
    dataset = Hashed(root, NUM_SAMPLES)
    ours = loader_of(dataset, **workers)
    old = dict(sample for batch in ours for sample in batch)
    subprocess.run(["sh", "-c", 'printf x >> "$0"', root / name_of(7)], check=True)
    assert dict(sample for batch in ours for sample in batch) == old
    new = dict(dataset[index] for index in range(NUM_SAMPLES))
    assert new != old
    assert dict(sample for batch in loader_of(dataset, **workers) for sample in batch) == new


@pytest.mark.parametrize(("workers", "read_before"), crossed(NAMED, [True, False]))
def test_removed_file(root: Path, workers: dict[str, Any], read_before: bool) -> None:
    """It is missing in Python's own words."""
    dataset = Hashed(root, NUM_SAMPLES)
    ours, truth = loader_of(dataset, **workers), truth_of(dataset, **workers)
    if read_before:
        assert list(ours) == list(truth)
    file = root / name_of(9)
    file.unlink()
    ours_error, truth_error = missing_file(ours), missing_file(truth)
    assert (ours_error.errno, ours_error.filename) == (truth_error.errno, truth_error.filename)
    assert str(ours_error).splitlines()[-1] == str(truth_error).splitlines()[-1]
    assert str(file) in str(ours_error)


def missing_file(loader: Any) -> FileNotFoundError:
    """Return the error that ends an epoch; nothing refers to the loader's workers any more."""
    try:
        list(loader)
    except FileNotFoundError as error:
        loader._iterator = None
        return error.with_traceback(None)
    raise AssertionError("the file is missing, and nobody noticed")


# ---------------------------------------------------------------- what cannot be helped


@pytest.mark.parametrize("workers", WORKERS[:2], ids=IDS[:2])
def test_dataset_that_opens_nothing(root: Path, caplog: pytest.LogCaptureFixture, workers: dict[str, Any]) -> None:
    dataset = InMemory(NUM_SAMPLES)
    ours, truth = loader_of(dataset, **workers), truth_of(dataset, **workers)
    with caplog.at_level(logging.INFO, logger="prefeed"):
        for _ in range(3):
            assert list(ours) == list(truth)
    lines = [record.getMessage() for record in caplog.records if "not used" in record.getMessage()]
    assert lines == [
        f"prefeed: not used for this loader: the samples of its dataset, InMemory, open no files below {root}"
    ]
    iterator: Any = iter(ours)
    assert iterator._dataset is dataset  # nothing stands in for it any more
    assert iterator._collate_fn is ours.collate_fn
    assert prefeed.statistics().reads == 0


@workers
def test_file_that_is_too_large(root: Path, monkeypatch: pytest.MonkeyPatch, workers: dict[str, Any]) -> None:
    """It is read past the cache, and all others through it."""
    most = SMALLEST_BYTES + NUM_SAMPLES - 11
    set_limits(monkeypatch, max_object_bytes=most)
    dataset = Hashed(root, NUM_SAMPLES)
    ours, truth = loader_of(dataset, **workers), truth_of(dataset, **workers)
    for _ in range(3):
        assert list(ours) == list(truth)
    assert prefeed.statistics().resident_objects == NUM_SAMPLES - 10
    found = statistics(reads=3 * NUM_SAMPLES)
    assert found.hits + found.late >= 0.99 * 2 * (NUM_SAMPLES - 10)
    assert found.misses + found.direct_reads <= NUM_SAMPLES - 10 + 3 * 10 + 2 * 0.01 * NUM_SAMPLES
    with NodeClient.connect(resolve()) as node:
        assert node.statistics().origin_bytes <= (NUM_SAMPLES - 10) * most
