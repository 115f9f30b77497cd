"""What the log says of a training run: who sees it, when, and that its numbers are right."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import prefeed
from e2e.automatic import auto
from e2e.images import NUM_IMAGES, make_image_folder
from leaks import wait_until
from limits import set_limits
from sandbox import Sandbox, end_all, servers_of

NUM_SAMPLES = 46
FILE_BYTES = 3000
EVERY_BATCH = 1e-9
"""Seconds between two lines: at least one goes by from batch to batch."""

EPOCH = re.compile(
    r"prefeed: epoch (?P<epoch>\d+) of (?P<name>\w+)-\d+: (?P<waited>[\d.]+) % of (?P<seconds>[\d.]+) s spent waiting for data"
    r"; hit ratio (?P<ratio>[\d.]+) of (?P<reads>\d+) reads, best possible without reading ahead (?P<best>[\d.]+)"
)
METRICS = r"request_count:(\d+) hit_count:(\d+) miss_count:(\d+) hit_rate:([\d.]+)% miss_rate:([\d.]+)%"
RATES = re.compile(rf"prefeed: (\w+)-\d+ last_cycle_metrics:\(\[{METRICS}\]\) sum_metrics:\(\[{METRICS}\]\)")


class Hidden(Dataset[int]):
    """Opens files that nobody was told of."""

    def __init__(self, root: Path, *, files_each: int) -> None:
        self.root, self.files_each = root, files_each

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return sum(int(np.fromfile(path, np.uint8).sum()) for path in self.files(index))

    def files(self, index: int) -> list[Path]:
        return [self.root / f"{index}-{part}.bin" for part in range(self.files_each)]


class Told(Hidden):
    """Says which."""

    def prefeed_paths(self, index: int) -> list[Path]:
        return self.files(index)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "data"
    root.mkdir()
    rng = np.random.default_rng(3)
    for index in range(NUM_SAMPLES):
        for part in range(2):
            (root / f"{index}-{part}.bin").write_bytes(rng.bytes(FILE_BYTES))
    monkeypatch.setenv("PREFEED_ROOTS", str(root))
    return root


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what the log was told since the last call."""
    caplog.set_level(logging.INFO, logger="prefeed")

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == "prefeed"]
        caplog.clear()
        return lines

    return said


Said = Callable[[], list[str]]

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]
IDS = ["0", "2", "2-kept"]


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
@pytest.mark.parametrize("files_each", [1, 2])
@pytest.mark.parametrize("kind", [Told, Hidden])
def test_every_read_of_an_epoch_is_in_its_line(
    root: Path, said: Said, kind: type[Hidden], files_each: int, workers: dict[str, Any]
) -> None:
    loader = prefeed.DataLoader(kind(root, files_each=files_each), batch_size=4, shuffle=True, **workers)
    for epoch in (1, 2, 3):
        assert len(list(loader)) == len(loader)
        (line,) = said()
        found = EPOCH.fullmatch(line)
        assert found is not None, line
        assert (found["epoch"], found["name"]) == (str(epoch), kind.__name__)
        assert int(found["reads"]) == NUM_SAMPLES * files_each
        assert float(found["best"]) == 1.0
        assert 0 <= float(found["ratio"]) <= 1
        assert 0 <= float(found["waited"]) <= 100
    counted = prefeed.statistics()
    assert (counted.reads, counted.direct_reads) == (3 * NUM_SAMPLES * files_each, 0)


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_epoch_broken_off_is_not_in_the_next_ones_line(root: Path, said: Said, workers: dict[str, Any]) -> None:
    loader = prefeed.DataLoader(Told(root, files_each=1), batch_size=4, shuffle=True, **workers)
    list(loader)
    assert len(said()) == 1
    iterator = iter(loader)
    next(iterator)
    begun = 4 + workers["num_workers"] * 2 * 4  # what workers were told to make is made, whoever wants it
    assert wait_until(lambda: prefeed.statistics().reads == NUM_SAMPLES + begun, timeout_seconds=60)
    del iterator
    list(loader)
    (line,) = said()
    found = EPOCH.fullmatch(line)
    assert found is not None, line
    assert (found["epoch"], int(found["reads"])) == ("2", NUM_SAMPLES)


def test_best_possible_ratio_is_the_share_that_fits(root: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    file_bytes = 100_000
    for file in root.iterdir():
        file.write_bytes(bytes(file_bytes))
    set_limits(monkeypatch, lookahead_bytes=8 * file_bytes)
    monkeypatch.setenv("PREFEED_MEMORY", "5MiB")
    loader = prefeed.DataLoader(Told(root, files_each=2), batch_size=4, shuffle=True)
    for _ in range(2):
        list(loader)
    first, second = map(EPOCH.fullmatch, said())
    assert first is not None
    assert second is not None
    best = prefeed.statistics().best_hit_ratio
    assert best is not None
    assert 0 < best < 0.6
    assert float(second["ratio"]) > 0
    assert second["best"] == f"{best:.3f}"


@pytest.mark.parametrize("workers", WORKERS, ids=IDS)
def test_lines_at_the_interval_add_up(
    root: Path, said: Said, workers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_REPORT_INTERVAL", str(EVERY_BATCH))
    loader = prefeed.DataLoader(Told(root, files_each=1), batch_size=4, shuffle=True, **workers)
    for _ in range(2):
        list(loader)
    lines = said()
    found = [match for line in lines if (match := RATES.fullmatch(line)) is not None]
    assert len(lines) - len(found) == 2  # the epochs' own
    assert len(found) >= len(loader)
    cycle_sum = 0
    for match in found:
        assert match[1] == "Told"
        for at in (2, 7):
            requests, hits, misses = (int(match[i]) for i in range(at, at + 3))
            assert hits + misses == requests
            assert match[at + 3] == f"{100 * hits / requests if requests else 0:.2f}"
            assert match[at + 4] == f"{100 * misses / requests if requests else 0:.2f}"
        cycle_sum += int(match[2])
        assert cycle_sum == int(match[7])
    assert cycle_sum == 2 * NUM_SAMPLES


def test_no_lines_at_an_interval_of_zero(root: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_REPORT_INTERVAL", "0")
    list(prefeed.DataLoader(Told(root, files_each=1), batch_size=4))
    (line,) = said()
    assert EPOCH.fullmatch(line)


def test_epoch_without_a_server_has_its_line(root: Path, said: Said, sandbox: Sandbox) -> None:
    loader = prefeed.DataLoader(Told(root, files_each=1), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    end_all(servers_of(sandbox))
    assert len(list(iterator)) == len(loader) - 1
    gone, line = said()
    assert "the node server is gone" in gone
    assert re.fullmatch(r"prefeed: epoch 1 of Told-\d+: [\d.]+ % of [\d.]+ s spent waiting for data(; .*)?", line)
    del iterator, loader  # and with it whoever looks for a new server


class Misdeclared(Hidden):
    """Its list raises."""

    def train_data_list(self) -> Any:
        raise KeyError("lost")


def test_why_a_loader_is_left_alone_names_what_to_change(
    root: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", f"{root}:{root}/nope")
    with auto():
        list(DataLoader(Misdeclared(root, files_each=1)))
        list(DataLoader(Told(root, files_each=1)))
    absent, raised, _ = said()
    assert "KeyError: 'lost'; raised by Misdeclared.train_data_list(), which prefeed called" in raised
    assert f"not directories here: {root}/nope" in absent


class Hanging(Told):
    """Its third batch does not come until it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, files_each=1)
        self.wait, self.release = os.pipe()

    def __getitem__(self, index: int) -> int:
        if index == 8:
            os.read(self.wait, 1)
        return super().__getitem__(index)


def test_a_wait_that_ends_in_an_exception_is_counted(root: Path, said: Said) -> None:
    dataset = Hanging(root)
    loader = prefeed.DataLoader(dataset, batch_size=4, num_workers=1, timeout=0.5, multiprocessing_context="fork")
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="timed out after"):
        list(batches)
    os.write(dataset.release, b"12")  # for each epoch one
    del batches
    assert len(list(loader)) == len(loader)
    os.close(dataset.wait)
    os.close(dataset.release)
    unfinished, _ = said()
    found = re.fullmatch(
        rf".*: unfinished epoch of Hanging-\d+, 2 of {len(loader)} batches: ([\d.]+) % of ([\d.]+) s .*",
        unfinished,
    )
    assert found is not None, unfinished
    assert float(found[1]) / 100 * float(found[2]) >= 0.4


TRAIN = """
import logging, sys
import torch
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

loader = DataLoader(datasets.ImageFolder(sys.argv[1], transforms.PILToTensor()), batch_size=4)
for _ in range(2):
    print(len(list(loader)))
"""
INFORMED = "logging.basicConfig(level=logging.INFO, format='%(name)s|%(message)s', stream=sys.stdout)\nloader"


def epochs_of(lines: list[str]) -> list[tuple[str, str, str]]:
    found = [match for line in lines if (match := EPOCH.fullmatch(line))]
    return [(match["epoch"], match["name"], match["reads"]) for match in found]


@pytest.mark.parametrize("way", ["import", "run"])
def test_seen_on_stderr_by_who_configured_nothing(tmp_path: Path, way: str) -> None:
    root = make_image_folder(tmp_path / "data")
    result = train(tmp_path, root, TRAIN, way=way)

    assert result.stdout == "7\n7\n"
    assert epochs_of(result.stderr.splitlines()) == [
        ("1", "ImageFolder", str(NUM_IMAGES)),
        ("2", "ImageFolder", str(NUM_IMAGES)),
    ]


def test_programs_own_logging_is_followed(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "data")
    result = train(tmp_path, root, TRAIN.replace("loader", INFORMED, 1), way="import")

    lines = [line.removeprefix("prefeed|") for line in result.stdout.splitlines() if line.startswith("prefeed|")]
    assert [epoch for epoch, _, _ in epochs_of(lines)] == ["1", "2"]
    assert result.stderr == ""


def train(tmp_path: Path, root: Path, text: str, *, way: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(f"import prefeed.auto\n{text}" if way == "import" else text)
    line = [sys.executable, str(script)] if way == "import" else [sys.executable, "-m", "prefeed", "run", str(script)]
    result = subprocess.run(
        [*line, str(root)],
        env={**os.environ, "PREFEED_ROOTS": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result


class WrongLength:
    """A batch sampler whose length is not what it gives."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __iter__(self) -> Any:
        return iter([[i, i + 1] for i in range(0, NUM_SAMPLES, 2)])

    def __len__(self) -> int:
        if self.length is None:
            raise RuntimeError("nobody knows")
        return self.length


@pytest.mark.parametrize("length", [NUM_SAMPLES // 2, NUM_SAMPLES, 3, None])
def test_one_line_an_epoch_whatever_the_sampler_says_of_its_length(root: Path, said: Said, length: int | None) -> None:
    sampler: Any = WrongLength(length)
    loader = prefeed.DataLoader(Told(root, files_each=1), batch_sampler=sampler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own, of the length
        for _ in range(2):
            assert sum(len(batch) for batch in loader) == NUM_SAMPLES
    assert [epoch for epoch, _, _ in epochs_of(said())] == ["1", "2"]


def test_loop_that_asks_for_no_more_than_there_is(root: Path, said: Said) -> None:
    """As Lightning's does."""
    loader = prefeed.DataLoader(Told(root, files_each=2), batch_size=4, shuffle=True, num_workers=1)
    for _ in range(3):
        iterator = iter(loader)
        for _ in range(len(loader)):
            next(iterator)
    reads = str(2 * NUM_SAMPLES)
    assert epochs_of(said()) == [("1", "Told", reads), ("2", "Told", reads), ("3", "Told", reads)]
