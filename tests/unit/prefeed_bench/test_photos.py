"""The pictures: sizes, layout, the same bytes twice, and nothing half done under a finished name."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from prefeed_bench import photos as module
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.photos import INDEX_NAME, PHOTOGRAPHS, PhotoRecipe, make_photos

pytestmark = pytest.mark.usefixtures("sandbox")


def indexed(root: Path) -> dict[str, int]:
    lines = (line.split("\t") for line in (root / INDEX_NAME).read_text().splitlines())
    return {path: int(size) for path, size in lines}


def test_pictures_are_what_imagenet_is_like(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    folder = make_photos(
        PhotoRecipe(num_photos=100), cache_dir=tmp_path, num_processes=1, progress=lambda *so_far: told.append(so_far)
    )

    sizes = indexed(folder.root)
    assert len(sizes) == folder.num_photos == 100
    assert sum(sizes.values()) == folder.total_bytes
    assert 60_000 <= folder.mean_bytes <= 120_000
    assert {path.split("/")[0] for path in sizes} == set(PHOTOGRAPHS)
    for path, size in sizes.items():
        data = (folder.root / path).read_bytes()
        assert len(data) == size
        with Image.open(io.BytesIO(data)) as picture:
            assert sorted(picture.size) == [375, 500]
            assert picture.mode == "RGB"
    assert told[-1] == (100, 100)


def test_equal_recipes_give_equal_bytes_from_any_writer(tmp_path: Path) -> None:
    recipe = PhotoRecipe(num_photos=60)

    alone = make_photos(recipe, cache_dir=tmp_path / "a", num_processes=1)
    together = make_photos(recipe, cache_dir=tmp_path / "b", num_processes=2)

    assert indexed(alone.root) == indexed(together.root)
    for path in indexed(alone.root):
        assert (alone.root / path).read_bytes() == (together.root / path).read_bytes()


def test_another_seed_gives_other_pictures(tmp_path: Path) -> None:
    one = make_photos(PhotoRecipe(num_photos=10, seed=1), cache_dir=tmp_path, num_processes=1)
    two = make_photos(PhotoRecipe(num_photos=10, seed=2), cache_dir=tmp_path, num_processes=1)

    assert one.root != two.root
    assert indexed(one.root) != indexed(two.root)


def test_second_call_finds_the_first_ones_pictures(tmp_path: Path) -> None:
    recipe = PhotoRecipe(num_photos=10)
    first = make_photos(recipe, cache_dir=tmp_path, num_processes=1)
    written: list[tuple[int, int]] = []

    second = make_photos(recipe, cache_dir=tmp_path, num_processes=1, progress=lambda *so_far: written.append(so_far))

    assert second == first
    assert written == []


def test_interrupted_call_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_photos(PhotoRecipe(num_photos=10), cache_dir=tmp_path, num_processes=1, progress=interrupt)

    assert list(tmp_path.iterdir()) == []


def test_photograph_that_is_not_shipped_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PHOTOGRAPHS, "astronaut", "no-such-photograph.png")
    module._photograph_paths.cache_clear()

    with pytest.raises(MissingRequirementError, match=r"does not ship .*no-such-photograph.png"):
        make_photos(PhotoRecipe(num_photos=10), cache_dir=tmp_path, num_processes=1)


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 10, one per class: 3"):
        PhotoRecipe(num_photos=3)
