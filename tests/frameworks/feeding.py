"""What the tests of other frameworks share: the examples' module, the pictures, and what must come out."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples" / "frameworks"
NUM_PICTURES = 12


def example(name: str) -> Any:
    """Import a module of ``examples/frameworks``."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(name)


def cached_pictures(root: Path) -> Any:
    """Return a cached dataset over pictures that were just made."""
    common = example("common")
    return common.cached_pictures(common.make_pictures(root, NUM_PICTURES))


def expected(cached: Any) -> dict[int, Any]:
    """Return the picture of each label, made without the cache."""
    return {int(label): image for image, label in (cached.dataset[index] for index in range(NUM_PICTURES))}


def assert_epoch(batches: Iterable[tuple[Any, Any]], pictures: dict[int, Any]) -> list[int]:
    """Check that every picture came once, as it should be; return the labels in their order."""
    seen = []
    for images, labels in batches:
        for image, label in zip(np.asarray(images), np.asarray(labels).ravel().tolist(), strict=True):
            assert image.dtype == np.float32
            assert np.array_equal(image, pictures[label])
            seen.append(label)
    assert sorted(seen) == sorted(pictures)
    return seen


def assert_made_once(cached: Any, epochs: int) -> None:
    found = cached.get_stat()
    assert (found.num_mem_cached, found.misses) == (NUM_PICTURES, NUM_PICTURES)
    assert found.hits == (epochs - 1) * NUM_PICTURES
