"""The benchmarks of stage caches: each runs at its smallest size, and finds what would spoil its figures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from prefeed_bench.cases import run_case
from prefeed_bench.cases.loader_ceiling import CeilingOutcome, _check_same_batches, _figures
from prefeed_bench.cases.multi import PhaseOutcome, SharingJob, _check_samples, sharing_process
from prefeed_bench.cases.stage_hit import VARIABLE, HitOutcome, _result, mindspore_python
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.harness import Options
from prefeed_bench.photos import PhotoRecipe, make_photos
from prefeed_bench.rows import SHAPE, DType, LoggedPictures, MadeRows, ReadyRows, row_bytes, times_made

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_PHOTOS = 20
FIELDS = {
    "stage_fill": {
        "first_epoch_ratio",
        "first_epoch_ratio_own_loader",
        "torch_epoch_s",
        "own_loader_epoch_s",
        "cached_first_epoch_s",
        "warm_epoch_s",
    },
    "stage_hit": {"rows_s", "gb_s", "of_memcpy"},
    "loader_ceiling": {
        f"{name}_{dtype}_batches_s" for name in ("torch", "prefeed", "torch_cached") for dtype in ("f32", "u8")
    },
    "eval": {"without_cache_s", "with_cache_s", "speedup", "first_pass_s"},
}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("photos")
    make_photos(PhotoRecipe(num_photos=NUM_PHOTOS), cache_dir=directory, num_processes=1)
    return directory


@pytest.mark.parametrize("name", FIELDS)
def test_benchmark_gives_its_fields(name: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    found = run_case(name, Options(runs=1, num_photos=NUM_PHOTOS, quick=True, data_dir=data_dir)).to_json()

    assert found["bench"] == name
    assert FIELDS[name] <= set(found)
    assert all(found[field] > 0 for field in FIELDS[name])
    assert set(found["spread"]) >= FIELDS[name]


def test_samples_that_processes_share_are_made_once(data_dir: Path) -> None:
    found = run_case("multi", Options(runs=1, num_photos=NUM_PHOTOS, quick=True, data_dir=data_dir)).to_json()

    made = {name: found[f"{name}_computed_per_object"] for name in ("disjoint", "same_order", "shuffled")}
    assert found["objects"] == NUM_PHOTOS
    assert made["disjoint"] == 1
    assert found["computed_per_object"] == max(made.values())


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_rows_differ_and_are_the_same_in_memory(dtype: DType) -> None:
    made = MadeRows(5, dtype)
    ready = ReadyRows.of(made)

    assert len(ready) == len(made) == 5
    assert made[0].shape == SHAPE
    assert made[0].nbytes == row_bytes(dtype)
    assert not torch.equal(made[3], made[4])
    assert all(torch.equal(made[index], ready[index]) for index in range(5))


def test_who_makes_a_sample_writes_it_down(tmp_path: Path) -> None:
    pictures = LoggedPictures([(torch.full((1,), value), "label") for value in range(10)], 5, str(tmp_path))

    samples = [pictures[index] for index in (0, 3, 3)]

    assert [(int(picture), number) for picture, number in samples] == [(0, 0), (6, 3), (6, 3)]
    assert times_made(str(tmp_path)) == {0: 1, 3: 2}


# ---------------------------------------------------------------- what spoils figures


def test_loaders_that_bring_different_batches_are_an_error() -> None:
    one, other = CeilingOutcome(batches_s=1, digest="a"), CeilingOutcome(batches_s=2, digest="b")

    _check_same_batches([one, one])
    with pytest.raises(BenchFailedError, match="different batches"):
        _check_same_batches([one, other])


@pytest.mark.parametrize(
    ("order", "checksums"),
    [("disjoint", [2**63, 2**63 + 4]), ("same_order", [5, 5]), ("shuffled", [5, 4])],
)
def test_processes_that_read_something_else_are_an_error(order: str, checksums: list[int]) -> None:
    outcomes = [PhaseOutcome(samples=1, seconds=1, checksum=checksum) for checksum in checksums]
    whole = 4 if order == "disjoint" else 5
    if order == "shuffled":
        with pytest.raises(BenchFailedError, match="shuffled: the processes read other samples"):
            _check_samples(order, outcomes, whole)
    else:
        _check_samples(order, outcomes, whole)


def test_process_that_fails_says_what_it_said(tmp_path: Path) -> None:
    job = SharingJob(data=str(tmp_path / "nothing"), num_samples=4, rank=1, world_size=2)
    with (
        sharing_process(job, env={}) as process,
        pytest.raises(BenchFailedError, match=r"^rank 1 ended with status 1:\n(.|\n)*FileNotFoundError"),
    ):
        process.wait_ready()


# ---------------------------------------------------------------- figures


def hits(cached_seconds: float, memory_seconds: float) -> HitOutcome:
    return HitOutcome(
        cached_seconds=cached_seconds, memory_seconds=memory_seconds, owned_seconds=4, rows=1000, bytes=8 * 10**9
    )


def test_a_hit_is_compared_with_a_copy_and_with_the_faster_way_of_mindspore() -> None:
    runs = {
        "prefeed": [hits(2, 1), hits(1, 0.75), hits(4, 4)],
        "mindspore": [
            {"batched": 100, "single": 125},
            {"batched": 250, "single": 200},
            {"batched": 125, "single": 50},
        ],
    }

    found = _result(runs).to_json()

    assert (found["rows_s"], found["gb_s"], found["of_memcpy"]) == (500, 4, 0.75)
    assert found["mindspore_rows_s"] == 125
    assert found["of_mindspore"] == 4
    assert found["spread"]["of_mindspore"] == [2, 4]


def test_mindspore_that_is_not_here_is_said() -> None:
    found = _result({"prefeed": [hits(2, 1)]}).to_json()

    assert found["mindspore_rows_s"] is None
    assert found["of_mindspore"] is None
    assert any(VARIABLE in note for note in found["notes"])


def test_loaders_are_compared_within_a_round() -> None:
    rates = {"torch_f32": 50.0, "prefeed_f32": 300.0, "torch_cached_f32": 40.0}

    found = _figures("f32", {name: CeilingOutcome(batches_s=rate, digest="") for name, rate in rates.items()})

    assert found == {
        "torch_f32_batches_s": 50,
        "prefeed_f32_batches_s": 300,
        "f32_ratio": 6,
        "torch_cached_f32_batches_s": 40,
    }


def test_python_with_mindspore_is_named_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert mindspore_python() is None

    python = tmp_path / "python"
    monkeypatch.setenv(VARIABLE, str(python))
    with pytest.raises(MissingRequirementError, match=r"no dataset-cache beside it: `.*pip install mindspore`"):
        mindspore_python()

    (tmp_path / "dataset-cache").touch()
    assert mindspore_python() == python
