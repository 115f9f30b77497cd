"""The benchmarks: what they compute themselves, and that those without torch run at their smallest size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from prefeed_bench.cases import CASES, case_of, run_case
from prefeed_bench.cases.partial import lru_requests_per_epoch
from prefeed_bench.cases.scale import write_synthetic_manifest
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import Options
from prefeed_bench.loading import EpochOutcome, LoadingJob, LoadingOutcome, check_same_batches, run_loading
from prefeed_bench.photos import PhotoRecipe, make_photos

pytestmark = pytest.mark.usefixtures("sandbox")

FIELDS = {
    "hit": {"us_per_sample", "page_cache_us_per_sample", "ratio", "read_median_us", "read_p99_us"},
    "fetch": {"objects_per_s", "cpu_us_per_object", "limit_objects_per_s", "limit_cpu_us", "of_limit"},
    "small": {
        "prefeed_100_us_per_put",
        "prefeed_1000_us_per_hit",
        "prefeed_1000_bytes_per_value",
        "lmdb_100_us_per_hit",
    },
    "readers": {"of_1_us_per_hit", "of_4_us_per_hit", "of_1_hits_s", "of_4_hits_s"},
    "sync": {"objects_per_s", "cpu_us_per_object", "compared_per_s"},
    "pool_read": {"objects_per_s", "cpu_us_per_object"},
    "slices": {"plain_us_per_slice", "prefeed_us_per_slice", "over_plain"},
    "scale": {"open_s", "server_rss_mib", "plan_register_s", "order_s"},
}


@pytest.mark.parametrize("name", CASES)
def test_every_benchmark_can_be_run(name: str) -> None:
    assert callable(case_of(name))


def test_unknown_benchmark_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no benchmark is called 'speed'; choose one of hit, "):
        run_case("speed", Options())


@pytest.mark.parametrize("name", FIELDS)
def test_benchmark_gives_its_fields(name: str, tmp_path: Path) -> None:
    make_photos(PhotoRecipe(num_photos=40), cache_dir=tmp_path, num_processes=1)

    found = run_case(name, Options(runs=2, num_photos=40, quick=True, data_dir=tmp_path)).to_json()

    assert FIELDS[name] <= set(found)
    assert all(found[field] > 0 for field in FIELDS[name])
    assert set(found["spread"]) >= FIELDS[name]


def test_variant_in_a_process_of_its_own_sees_every_picture(tmp_path: Path) -> None:
    photos = make_photos(PhotoRecipe(num_photos=20), cache_dir=tmp_path, num_processes=1)
    job = LoadingJob(loader="torch", data=str(photos.root), sample="bytes", epochs=2, batch_size=8)

    outcome = run_loading(job)

    assert [epoch.samples for epoch in outcome.epochs] == [20, 20]
    assert all(0 < epoch.first_batch_seconds <= epoch.seconds for epoch in outcome.epochs)
    assert outcome.statistics == {}


def test_variant_that_fails_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(BenchFailedError, match=r"ended with status 1(.|\n)*FileNotFoundError"):
        run_loading(LoadingJob(loader="torch", data=str(tmp_path / "nothing")))


def loading(*digests: str) -> LoadingOutcome:
    epochs = [
        EpochOutcome(samples=1, seconds=1, first_batch_seconds=1, origin_requests=-1, digest=digest)
        for digest in digests
    ]
    return LoadingOutcome(open_seconds=0, epochs=epochs, digest=digests[-1], statistics={})


def test_different_batches_are_an_error() -> None:
    check_same_batches([loading("a"), loading("a", "b"), loading("a", "b", "c")])
    with pytest.raises(BenchFailedError, match="different batches in epoch 2: digests b, c"):
        check_same_batches([loading("a"), loading("a", "b"), loading("a", "c")])


def test_different_first_batches_are_an_error() -> None:
    with pytest.raises(BenchFailedError, match="different batches in epoch 1: digests a, b"):
        check_same_batches([loading("a"), loading("b")])


def test_lru_needs_what_the_formula_says() -> None:
    # Hit ratio of LRU under fresh shuffles: c + (1 - c) ln(1 - c).
    expected = 1 - (0.5 + 0.5 * np.log(0.5))

    assert lru_requests_per_epoch(4000, 2000, epochs=6) / 4000 == pytest.approx(expected, abs=0.02)
    assert lru_requests_per_epoch(100, 100, epochs=3) == 0


def test_synthetic_manifest_is_a_manifest(tmp_path: Path) -> None:
    manifest = write_synthetic_manifest(tmp_path, "http://localhost:1/", 2345)

    assert len(manifest) == 2345
    assert [manifest.path(i) for i in (0, 999, 1000, 2344)] == [
        "0000000/0000.jpg",
        "0000000/0999.jpg",
        "0000001/0000.jpg",
        "0000002/0344.jpg",
    ]
    assert manifest.index_of("0000002/0344.jpg") == 2344
