"""The same cached dataset as a random-access source of Grain."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.feeding import assert_epoch, assert_made_once, cached_pictures, example, expected

pytest.importorskip("grain", reason="Grain is not installed: make test-frameworks", exc_type=ImportError)

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.leaks(reason="Grain keeps threads and descriptors of its own to the end of the process"),
]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_source(tmp_path: Path, num_workers: int) -> None:
    cached = cached_pictures(tmp_path / "pictures")
    pictures = expected(cached)
    create_loader = example("grain_source").create_loader
    for _ in range(3):
        assert_epoch(create_loader(cached, num_workers=num_workers), pictures)
    assert_made_once(cached, 3)


def test_source_names_what_it_holds(tmp_path: Path) -> None:
    """Grain's checkpoints compare the source's text: the same data are the same text, in another process too."""
    source = example("grain_source").Cached
    assert repr(source(cached_pictures(tmp_path / "a"))) == repr(source(cached_pictures(tmp_path / "a")))
