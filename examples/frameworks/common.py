"""What the three examples feed to their frameworks: a cached dataset of pictures, made with NumPy and Pillow alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import prefeed

Sample = tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.int64]]]


class Pictures:
    """Files of a directory: sample i is the content of the i-th and its number."""

    def __init__(self, root: Path | str) -> None:
        self.paths = [str(path) for path in sorted(Path(root).iterdir())]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        with open(self.paths[index], "rb") as file:
            return file.read(), index


def prepare(sample: tuple[bytes, int]) -> Sample:
    """Decode and resize a picture; the expensive step, taken once.

    The label is an array of no dimensions: MindSpore 2.10 takes nothing else where NumPy 2 is installed.
    """
    data, label = sample
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((32, 32))
    return np.asarray(image, np.float32) / np.float32(255), np.array(label)


def cached_pictures(root: Path | str) -> prefeed.CachedDataset:
    """Return the prepared pictures, kept in the node's default session."""
    return prefeed.CachedDataset(prefeed.mapped(Pictures(root), prepare))


def make_pictures(root: Path, count: int = 12) -> Path:
    """Write some pictures; return their directory."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"{number:03}.png")
    return root
