"""Real photographs, encoded in the ways in which JPEGs come."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from prefeed_bench.photos import PhotoRecipe, make_photos

SIDES = {"small": 500, "large": 1600}


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """Ten JPEGs of 500 x 375 and ten of 1600 x 1200 pixels, upright or not."""
    cache = tmp_path_factory.mktemp("photos")
    return {name: _encoded(cache, side) for name, side in SIDES.items()}


@pytest.fixture(scope="session")
def photo(photos: dict[str, list[bytes]]) -> Image.Image:
    """One of the small ones, not encoded."""
    return Image.open(io.BytesIO(photos["small"][0])).convert("RGB")


def _encoded(cache: Path, side: int) -> list[bytes]:
    made = make_photos(PhotoRecipe(num_photos=10, long_side=side), cache_dir=cache, num_processes=1)
    return [path.read_bytes() for path in sorted(made.root.glob("*/*.jpg"))]
