"""Unchanged programs of the libraries that people train with: the same to the last bit, each file opened once and never again.

Each runs three times as a command, on a directory that counts its opens: without prefeed, under ``prefeed run`` from an
empty cache, and once more. ``make test-programs`` runs them, in an environment that has the libraries.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest

from programs.data import NUM_PAIRS, NUM_PICTURES, NUM_VALIDATED, write_data
from programs.running import Program, Run, run_three_times

if importlib.util.find_spec("timm") is None:
    pytest.skip("the libraries are not installed: make test-programs", allow_module_level=True)

pytestmark = pytest.mark.timeout(2000)

ALL = {"PREFEED_READS": "all"}
"""Reads beside the loaders' samples are answered as well."""

PROGRAMS = {
    "timm": Program(line=["timm_folder.py"], data="classes"),
    "timm-endless": Program(line=["timm_folder.py", "--endless"], data="classes", is_endless=True),
    "huggingface": Program(line=["huggingface.py"], data="classes"),
    "huggingface-folder": Program(line=["huggingface.py", "--folder"], data="classes"),
    "monai": Program(line=["monai_dicts.py"], data="pairs"),
    "monai-threads": Program(line=["monai_dicts.py", "threads"], data="pairs"),
    "monai-cache": Program(line=["monai_dicts.py", "cache"], data="pairs", num_beside=2 * NUM_PAIRS, environment=ALL),
    "monai-persistent": Program(line=["monai_dicts.py", "persistent"], data="pairs"),
    "unet": Program(
        line=["unet.py"],
        data="pairs",
        epochs=(2, 2),
        num_beside=NUM_PAIRS,
        num_scanned=NUM_PAIRS,
        environment=ALL,
    ),
    "super-resolution": Program(line=["super_resolution.py"], data="pairs"),
    "fastai": Program(line=["fastai_vision.py"], data="classes", epochs=(2, 2), num_beside=2, environment=ALL),
    "fastai-blocks": Program(
        line=["fastai_vision.py", "--blocks"], data="classes", epochs=(2, 2), num_beside=2, environment=ALL
    ),
    "ultralytics": Program(
        line=["yolo.py"],
        data="detection",
        epochs=(2, 3),
        num_beside=3 * NUM_PAIRS + 10,
        num_scanned=2 * NUM_PAIRS,
        is_endless=True,
        past="bypassed the cache: numpy.load outside of samples 2\n",  # of lists that it did not find
        environment=ALL,
    ),
    "lightning": Program(line=["lightning_module.py"], data="classes", epochs=(2, 2)),
    "accelerate": Program(line=["accelerated.py"], data="classes"),
    "deepspeed": Program(line=["deepspeed_loader.py"], data="classes"),
    "nanogpt": Program(  # maps its files: what it reads of them nobody can answer
        line=["nanogpt.py"],
        data="tokens",
        epochs=(),
        is_answered=False,
        past="bypassed the cache: numpy.memmap outside of samples 10\n",
    ),
}

LOADING = [name for name in PROGRAMS if name not in ("monai-cache", "nanogpt")]
"""Programs whose loaders' samples open files."""

COUNTABLE = [name for name in LOADING if name != "ultralytics"]
"""Those whose loaders open a number of files that is known: ultralytics' read on as far as they come, beside much else."""

Runs = dict[str, Run]


def programs(*names: str) -> pytest.MarkDecorator:
    """Run a test for these programs, all unless some are named.

    All tests of a program run in one process, where its three runs are made once.
    """
    marked = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names or PROGRAMS]
    return pytest.mark.parametrize("name", marked)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def done() -> dict[str, Runs]:
    """Runs by the name of their program; empty for one that failed."""
    return {}


@pytest.fixture
def runs(name: str, data: Path, done: dict[str, Runs], tmp_path: Path) -> Runs:
    """The three runs of a program: made by the first test that asks."""
    if name not in done:
        done[name] = {}
        done[name] = run_three_times(PROGRAMS[name], data, tmp_path)
    assert done[name], f"{name} could not be run; the test before shows why"
    return done[name]


@programs()
def test_batches_losses_and_weights_are_the_same(runs: Runs) -> None:
    assert runs["plain"].seen["num_batches"] > 0
    assert runs["cold"].seen == runs["plain"].seen
    assert runs["warm"].seen == runs["plain"].seen


@programs()
def test_each_file_is_opened_once_from_an_empty_cache(name: str, runs: Runs) -> None:
    once = Counter(dict.fromkeys(runs["plain"].opens, 1))
    assert runs["cold"].opens == (once if PROGRAMS[name].is_answered else runs["plain"].opens)


@programs()
def test_no_file_is_opened_once_it_is_cached(name: str, runs: Runs) -> None:
    assert runs["warm"].opens == (Counter() if PROGRAMS[name].is_answered else runs["plain"].opens)


@programs(*LOADING)
def test_files_are_read_ahead_in_the_first_epoch(name: str, runs: Runs) -> None:
    """A guess may have to be confirmed by the first samples; what the program scans before, nobody can foresee."""
    num_files, num_scanned = len(runs["plain"].opens), PROGRAMS[name].num_scanned
    assert runs["cold"].num_foreseen + runs["cold"].num_unforeseen >= num_files
    assert runs["cold"].num_unforeseen - num_scanned <= 0.25 * (num_files - num_scanned)


@programs(*COUNTABLE)
def test_reads_and_hits_are_those_counted_from_outside(name: str, runs: Runs) -> None:
    """What the program opens without prefeed are the reads; what it does not open with a warm cache are the hits."""
    program = PROGRAMS[name]
    num_reads = runs["warm"].num_reads if program.is_endless else runs["plain"].opens.total() - program.num_beside
    num_opened = max(0, runs["warm"].opens.total() - program.num_beside)
    tolerance = 0.01 * num_reads
    assert num_reads >= len(runs["plain"].opens)
    for kind in () if program.is_endless else ("cold", "warm"):
        assert runs[kind].num_reads == pytest.approx(num_reads, abs=tolerance)
    assert runs["warm"].num_hits == pytest.approx(num_reads - num_opened, abs=tolerance)


@programs(*LOADING, "nanogpt")
def test_every_loader_has_a_name_and_every_epoch_a_line(name: str, runs: Runs) -> None:
    for kind in ("cold", "warm"):
        epochs = Counter(one.loader for one in runs[kind].passes if one.epoch is not None)
        assert sorted(epochs.values()) == sorted(PROGRAMS[name].epochs), epochs


@programs()
def test_the_run_summary_counts_the_files_of_the_program(name: str, runs: Runs) -> None:
    program, num_opens = PROGRAMS[name], runs["plain"].opens.total()
    for kind in ("cold", "warm"):
        assert program.past in runs[kind].said
        assert ("bypassed the cache" in runs[kind].said) == bool(program.past)
        if not program.is_answered:
            assert "prefeed: no loaders served\n" in runs[kind].said
            continue
        num_reads, num_hits = runs[kind].summed_up
        if not program.is_endless:
            assert num_reads == pytest.approx(num_opens, rel=0.01)
    if program.is_answered:
        num_reads, num_hits = runs["warm"].summed_up
        assert num_reads - num_hits <= 0.01 * num_opens


def test_the_programs_read_what_was_written_for_them(data: Path) -> None:
    """Else a test that compares nothing with nothing would pass."""
    assert len(list((data / "classes").glob("*/*.jpg"))) == NUM_PICTURES
    assert (
        len(list((data / "pairs" / "imgs").iterdir())) == len(list((data / "pairs" / "masks").iterdir())) == NUM_PAIRS
    )
    assert len(list((data / "detection" / "images" / "val").iterdir())) == NUM_VALIDATED
