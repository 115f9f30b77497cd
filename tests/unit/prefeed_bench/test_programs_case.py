"""The benchmark of scripts of other libraries: what it does where some are missing, and its figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from prefeed_bench.cases import programs
from prefeed_bench.cases.zero_code import Run
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import Options
from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos
from prefeed_bench.processes import run_program

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_PHOTOS = 12


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> PhotoFolder:
    recipe = PhotoRecipe(num_photos=NUM_PHOTOS, long_side=240)
    return make_photos(recipe, cache_dir=tmp_path_factory.mktemp("photos"), num_processes=1)


def run_of(seconds: float, *checksums: int) -> Run:
    return Run(epochs=[{"images": 100, "seconds": seconds, "checksums": list(checksums)}])


def runs_of(name: str, *, plain: float, local: float, prefeed: float) -> dict[str, list[Run]]:
    return {
        f"{name}_plain": [run_of(plain, 1)],
        f"{name}_local": [run_of(local, 1, 2)],
        f"{name}_prefeed": [run_of(prefeed, 1, 2)],
    }


def test_each_library_has_its_own_ratios() -> None:
    runs = runs_of("timm", plain=10, local=1, prefeed=2) | runs_of("unet", plain=6, local=3, prefeed=3)
    found = programs._result(["timm", "unet"], runs).to_json()

    assert (found["timm_of_local"], found["timm_over_plain"]) == (0.5, 5)
    assert (found["unet_of_local"], found["unet_over_plain"]) == (1, 2)


def test_a_library_that_is_not_installed_has_a_note_and_no_field() -> None:
    found = programs._result(["unet"], runs_of("unet", plain=6, local=3, prefeed=3)).to_json()

    assert {name for name in found if name.endswith(("_of_local", "_over_plain"))} == {
        "unet_of_local",
        "unet_over_plain",
    }
    assert "huggingface: not measured, datasets is not installed" in found["notes"]
    assert "pip install 'prefeed-bench[programs]' brings the libraries" in found["notes"]


def test_different_batches_are_an_error_that_names_the_library() -> None:
    runs = runs_of("timm", plain=1, local=1, prefeed=1) | {"timm_prefeed": [run_of(1, 1, 3)]}
    with pytest.raises(BenchFailedError, match="timm: the variants saw different batches in epoch 1"):
        programs._result(["timm"], runs)


def test_pairs_are_pictures_and_masks_of_their_size(photos: PhotoFolder) -> None:
    with programs._pairs(photos, Options()) as pairs:
        images, masks = (sorted((pairs / folder).iterdir()) for folder in ("imgs", "masks"))
        assert [mask.name for mask in masks] == [f"{image.stem}_mask.png" for image in images]
        assert len(images) == NUM_PHOTOS
        with Image.open(images[0]) as image, Image.open(masks[0]) as mask:
            assert mask.size == image.size
            assert set(np.unique(np.asarray(mask))) <= {0, 1}
        (epoch,) = run_program("library.py", [str(pairs), "--library", "unet"])
    assert (epoch["images"], len(epoch["checksums"])) == (NUM_PHOTOS, 1)
    assert not Path(pairs).exists()
