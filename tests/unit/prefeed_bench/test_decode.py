"""``prefeed bench decode`` at its smallest size, and what it computes itself."""

from __future__ import annotations

from pathlib import Path

import cv2
import pytest
import torch

from prefeed_bench.cases import run_case
from prefeed_bench.cases.decode import differences, levels, normalized, one_thread, random_levels
from prefeed_bench.harness import Options
from prefeed_bench.photos import PhotoRecipe, make_photos

pytestmark = pytest.mark.usefixtures("sandbox")

FIELDS = {
    *("pillow_img_s", "pillow_draft_img_s", "prefeed_img_s", "ratio", "u8_ratio", "train_u8_ratio"),
    *("large_pillow_img_s", "large_pillow_draft_img_s", "large_prefeed_img_s", "large_ratio", "large_draft_ratio"),
    *("mean_abs_diff", "max_abs_diff", "p999_abs_diff", "large_mean_abs_diff", "large_max_abs_diff"),
}


def test_benchmark_gives_its_fields(tmp_path: Path) -> None:
    make_photos(PhotoRecipe(num_photos=20), cache_dir=tmp_path, num_processes=1)

    found = run_case("decode", Options(runs=1, num_photos=20, quick=True, data_dir=tmp_path)).to_json()

    assert set(found) >= FIELDS
    assert all(found[field] > 0 for field in FIELDS)
    assert found["max_abs_diff"] <= 2
    assert (found["images"], found["large_images"]) == (20, 10)
    assert len(found["runs"]["prefeed"]) == 1  # the warm-up is not counted


def test_every_way_has_the_same_kind_of_result(tmp_path: Path) -> None:
    root = make_photos(PhotoRecipe(num_photos=10), cache_dir=tmp_path, num_processes=1).root
    data = next(root.glob("*/*.jpg")).read_bytes()

    for ways, dtype in ((normalized(), torch.float32), (levels(), torch.uint8), (random_levels(), torch.uint8)):
        for way in (ways.pillow, ways.pillow_draft, ways.prefeed):
            assert (way(data).shape, way(data).dtype) == ((3, 224, 224), dtype)


def test_differences_are_counted_over_all_values() -> None:
    def blank(data: bytes) -> torch.Tensor:
        return torch.zeros(1000, dtype=torch.uint8)

    def spotted(data: bytes) -> torch.Tensor:
        return torch.tensor([200] + [3] * 9 + [0] * 990, dtype=torch.uint8)

    found = differences(blank, spotted, [b"", b""])

    assert found == {"mean_abs_diff": pytest.approx(0.227), "p999_abs_diff": 3, "max_abs_diff": 200}
    assert differences(spotted, spotted, [b""]) == {"mean_abs_diff": 0, "p999_abs_diff": 0, "max_abs_diff": 0}


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads(), cv2.getNumThreads()

    with pytest.raises(RuntimeError), one_thread():
        assert (torch.get_num_threads(), cv2.getNumThreads()) == (1, 1)
        raise RuntimeError

    assert (torch.get_num_threads(), cv2.getNumThreads()) == before
