"""The same cached dataset behind Paddle's DataLoader."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.feeding import assert_epoch, assert_made_once, cached_pictures, example, expected
from frameworks.running import assert_recipe_is_served, assert_the_node_reads_ahead

pytest.importorskip("paddle", reason="Paddle is not installed: make test-frameworks", exc_type=ImportError)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks(reason="Paddle keeps threads and descriptors of its own to the end of the process"),
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader(tmp_path: Path, num_workers: int) -> None:
    cached = cached_pictures(tmp_path / "pictures")
    pictures = expected(cached)
    loader = example("paddle_loader").create_loader(cached, num_workers=num_workers)
    epochs = [assert_epoch(((images.numpy(), labels.numpy()) for images, labels in loader), pictures) for _ in range(3)]
    assert len({tuple(order) for order in epochs}) > 1
    assert_made_once(cached, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unchanged_program_is_served(tmp_path: Path, num_workers: int) -> None:
    answer = ["paddle.io.DataLoader (Files)", "paddle.io.DataLoader (Files) #2"]
    assert_the_node_reads_ahead("paddle_epochs.py", tmp_path, num_workers=num_workers, answer=answer)


def test_the_recipe_is_served(tmp_path: Path) -> None:
    assert_recipe_is_served("paddle", tmp_path)
