"""Reads outside of samples with ``reads = all``: in threads, pools and children, before the loop and after it."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import prefeed
from e2e.automatic import auto
from prefeed.client import beside
from sandbox import Sandbox, servers_of
from slow_files import SlowDirectory, slow_files

NUM_FILES = 40
LONG_AGO = 1_600_000_000

Scan = Callable[[list[str]], list[int]]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    rng = np.random.default_rng(0)
    for index in range(NUM_FILES):
        size = 400_000 if index % 10 == 0 else 2000
        (root / f"{index:02}.bin").write_bytes(rng.bytes(size + index))
        os.utime(root / f"{index:02}.bin", (LONG_AGO, LONG_AGO))
    return root


@pytest.fixture
def slow(source: Path) -> Iterator[SlowDirectory]:
    with slow_files(source, remember_seconds=0) as slow:
        yield slow


@pytest.fixture
def everything(slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every read is answered; the slow directory is there before, as the root that it is."""
    monkeypatch.setenv("PREFEED_READS", "all")
    with auto():
        yield


def paths_of(root: Path) -> list[str]:
    return [os.path.join(root, f"{index:02}.bin") for index in range(NUM_FILES)]


def total(path: str) -> int:
    """Read a file as a scan does."""
    with open(path, "rb") as file:
        return sum(file.read())


def in_threads(paths: list[str]) -> list[int]:
    with ThreadPool(8) as pool:
        return pool.map(total, paths)


def in_futures(paths: list[str]) -> list[int]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(total, paths))


def in_forks(paths: list[str]) -> list[int]:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        return pool.map(total, paths, chunksize=3)


def here(paths: list[str]) -> list[int]:
    return [total(path) for path in paths]


class Totals(Dataset[int]):
    """Says nothing of the files that it opens."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def __len__(self) -> int:
        return NUM_FILES

    def __getitem__(self, index: int) -> int:
        return total(os.path.join(self.root, f"{index:02}.bin"))


class Listed(Totals):
    """Says which they are."""

    def train_data_list(self) -> list[str]:
        return paths_of(Path(self.root))


def totals_of(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


@pytest.mark.parametrize(
    ("scan", "dataset_class"),
    [(here, Totals), (in_threads, Totals), (in_forks, Totals), (in_futures, Listed), (in_forks, Listed)],
)
@pytest.mark.usefixtures("everything")
def test_what_a_scan_has_read_the_loop_finds(source: Path, slow: SlowDirectory, scan: Scan, dataset_class: Any) -> None:
    """Each file is opened once at the origin: by the scan, and by nobody after it."""
    expected = here(paths_of(source))
    assert scan(paths_of(slow.path)) == expected
    assert slow.opens_by_file() == {f"{index:02}.bin": 1 for index in range(NUM_FILES)}
    loader = DataLoader(dataset_class(slow.path), batch_size=8, num_workers=2)
    for _ in range(2):
        assert totals_of(loader) == expected
    assert scan(paths_of(slow.path)) == expected
    assert set(slow.opens_by_file().values()) == {1}


def test_by_default_a_scan_is_left_alone(source: Path, slow: SlowDirectory, sandbox: Sandbox) -> None:
    with auto():
        assert in_threads(paths_of(slow.path)) == here(paths_of(source))
        assert slow.opens() == NUM_FILES
        assert not servers_of(sandbox)


@pytest.mark.usefixtures("everything")
def test_a_scan_after_the_loop_finds_what_the_loop_has_read(source: Path, slow: SlowDirectory) -> None:
    loader = DataLoader(Totals(slow.path), batch_size=8)
    expected = here(paths_of(source))
    assert totals_of(loader) == expected
    assert in_threads(paths_of(slow.path)) == expected
    assert set(slow.opens_by_file().values()) == {1}
    assert beside._current is not None
    assert beside._current.outcomes == {"hit": NUM_FILES}


def rewrite(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.utime(path, (LONG_AGO + 50, LONG_AGO + 50))


@pytest.mark.usefixtures("everything")
def test_a_file_is_asked_before_each_read(source: Path, slow: SlowDirectory) -> None:
    """Each version is fetched once, by the server; what was written just now is opened each time, by the program."""
    path, other = slow.path / "00.bin", slow.path / "01.bin"
    assert path.read_bytes() == (source / "00.bin").read_bytes()
    assert other.read_bytes() == (source / "01.bin").read_bytes()
    assert beside._current is not None
    outcomes = beside._current.outcomes
    for data in (b"changed", b"again!!" * 60_000):
        rewrite(source / "00.bin", data)
        assert path.read_bytes() == data
        opens = slow.opens()  # the server may have read it twice, to be sure that it is whole
        for _ in range(2):
            assert path.read_bytes() == data
        assert slow.opens() == opens
    assert other.read_bytes() == (source / "01.bin").read_bytes()
    assert slow.opens_by_file()["01.bin"] == 1
    assert outcomes == {"fetched": 4, "hit": 5}

    for number in range(3):
        (source / "00.bin").write_bytes(b"young %d" % number)
        now = time.time() + 60 + number  # however slow this machine is
        os.utime(source / "00.bin", (now, now))
        assert path.read_bytes() == b"young %d" % number
        assert slow.opens() == opens + 1 + number
    assert outcomes == {"fetched": 4, "hit": 5, "origin": 3}

    (source / "00.bin").unlink()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()


@pytest.mark.usefixtures("everything")
def test_what_the_program_writes_it_reads(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is written and read in turns is nobody's but its own."""
    monkeypatch.setenv("PREFEED_ROOTS", str(source))
    beside.end()
    with _begun_anew():
        path = source / "00.bin"
        path.read_bytes()
        for number in range(20):
            path.write_bytes(b"%03d" % number * 700)
            assert path.read_bytes() == b"%03d" % number * 700
        with open(path, "ab") as log:
            for number in range(5):
                log.write(b"x")
                log.flush()
                assert path.read_bytes() == b"019" * 700 + b"x" * (number + 1)


@contextmanager
def _begun_anew() -> Iterator[None]:
    prefeed.auto.answer_beside()
    try:
        yield
    finally:
        beside.end()


def test_without_a_server_the_program_reads(
    source: Path, slow: SlowDirectory, monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox
) -> None:
    monkeypatch.setenv("PREFEED_READS", "all")
    monkeypatch.setenv("PREFEED_AUTOSTART", "0")
    with auto():
        for scan in (in_threads, in_forks):
            assert scan(paths_of(slow.path)) == here(paths_of(source))
    assert slow.opens() == 2 * NUM_FILES
    assert not servers_of(sandbox)


SPAWNED = """
import multiprocessing, os, sys
import numpy as np

def total(path):
    return int(np.fromfile(path, np.uint8).sum()) + int(np.frombuffer(open(path, "rb").read(), np.uint8).sum())

if __name__ == "__main__":
    paths = sorted(entry.path for entry in os.scandir(sys.argv[1]))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(total, paths)))
"""


def test_spawned_children_without_torch_are_answered(source: Path, slow: SlowDirectory, tmp_path: Path) -> None:
    """The run summary counts each of their reads, although the pool ends them by a signal."""
    (tmp_path / "scan.py").write_text(SPAWNED)
    told = tmp_path / "told.json"
    line = [sys.executable, "-m", "prefeed.cli.main", "run", "--explain", "--json", str(told)]
    line += [str(tmp_path / "scan.py"), str(slow.path)]
    done = subprocess.run(line, env={**os.environ, "PREFEED_READS": "all"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{2 * sum(here(paths_of(source)))}\n"), done.stderr
    assert slow.opens_by_file() == {f"{index:02}.bin": 1 for index in range(NUM_FILES)}
    facts = json.loads(told.read_text())
    num_bytes = sum(path.stat().st_size for path in source.iterdir())
    assert (facts["hits"], facts["late_or_missed"], facts["direct_reads"]) == (NUM_FILES, NUM_FILES, 0)
    assert (facts["cache_bytes"], facts["origin_bytes"], facts["bypassed"]) == (num_bytes, num_bytes, {})


@pytest.mark.parametrize("module", ["torch", "PIL.Image"])
def test_whatever_a_program_imports_first(source: Path, tmp_path: Path, module: str) -> None:
    """torch imports numpy while it is half there itself: nothing that needs torch may be imported then."""
    path = source / "01.bin"
    script = tmp_path / "read.py"
    script.write_text(f"import {module}\nfor _ in range(2): print(len(open({str(path)!r}, 'rb').read()))\n")
    line = [sys.executable, "-m", "prefeed", "run", "--root", str(source), str(script)]
    environment = os.environ | {"PREFEED_READS": "all"}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, 2 * f"{path.stat().st_size}\n"), done.stderr
    assert (
        ": 1 hits (50.0 %), 1 late or missed, 0 direct; 2.0 KiB from the cache, 2.0 KiB from the origin\n"
        in done.stderr
    )
    assert (prefeed.statistics().hits, prefeed.statistics().misses) == (1, 1), "the server is told at the end"
