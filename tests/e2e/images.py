"""Small image folders, and transforms that draw from every random generator there is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

NUM_IMAGES = 26
"""Not a multiple of any batch size used: the last batch is short."""


def make_image_folder(root: Path, *, num_images: int = NUM_IMAGES, num_classes: int = 3, seed: int = 0) -> Path:
    """Write PNGs of noise in class folders; return the root."""
    rng = np.random.default_rng(seed)
    for index in range(num_images):
        folder = root / f"class{index % num_classes}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{index:03}.png")
    return root


def image_files(root: Path) -> list[Path]:
    """Return the images in the order of torchvision's samples."""
    return sorted(root.glob("*/*.png"))


class Augment:
    """Shift pixels by numbers from torch's, numpy's and random's global generators."""

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image, dtype=np.int64))
        shift = int(torch.randint(1000, ())) + random.randrange(1000) + int(np.random.randint(1000))
        return pixels + shift


class Pixels:
    """The image as a tensor, nothing random."""

    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(image))


def load_by_path(path: str) -> Any:
    """Open the file by its path, as loaders of ``DatasetFolder`` do."""
    with open(path, "rb") as file:
        return Image.open(file).convert("RGB")


def load_with_numpy(path: str) -> torch.Tensor:
    """Read the file by a way that is not ``open``: nothing of it can be served."""
    return torch.from_numpy(np.fromfile(path, dtype=np.uint8)[:60].copy())
