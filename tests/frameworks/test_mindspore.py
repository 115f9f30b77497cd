"""The same cached dataset as the source of MindSpore's GeneratorDataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.feeding import assert_epoch, assert_made_once, cached_pictures, example, expected
from frameworks.running import assert_recipe_is_served, assert_the_node_reads_ahead, run_program

pytest.importorskip("mindspore", reason="MindSpore is not installed: make test-frameworks", exc_type=ImportError)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks(reason="MindSpore keeps threads and descriptors of its own to the end of the process"),
]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_generator_dataset(tmp_path: Path, num_workers: int) -> None:
    cached = cached_pictures(tmp_path / "pictures")
    pictures = expected(cached)
    pipeline = example("mindspore_generator").create_dataset(cached, num_workers=num_workers)
    epochs = [
        assert_epoch(
            (
                (batch["image"], batch["label"])
                for batch in pipeline.create_dict_iterator(num_epochs=1, output_numpy=True)
            ),
            pictures,
        )
        for _ in range(3)
    ]
    assert len({tuple(order) for order in epochs}) > 1
    assert_made_once(cached, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unchanged_program_is_served(tmp_path: Path, num_workers: int) -> None:
    answer = ["GeneratorDataset (Files)"]
    assert_the_node_reads_ahead("mindspore_epochs.py", tmp_path, num_workers=num_workers, answer=answer)


def test_readers_in_cpp_are_left_alone(tmp_path: Path) -> None:
    facts = run_program("mindspore_epochs.py", tmp_path, "cpp")
    assert (facts["served"], facts["hits"]) == ([], 0)


def test_the_recipe_is_served(tmp_path: Path) -> None:
    assert_recipe_is_served("mindspore", tmp_path)
