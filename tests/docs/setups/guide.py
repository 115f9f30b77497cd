"""Creates pictures and titles for the guides: ``data/train``, a folder per class, and ``data/pairs``."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

for number in range(0 if Path("data").exists() else 24):  # the second run of a page reads the same files
    pixels = Image.fromarray(np.random.default_rng(number).integers(0, 255, (300, 300, 3), dtype=np.uint8))
    folder = Path("data/train") / ("cat", "dog")[number % 2]
    pairs = Path("data/pairs")
    for directory in (folder, pairs / "images", pairs / "titles"):
        directory.mkdir(parents=True, exist_ok=True)
    pixels.save(folder / f"{number}.jpg")
    pixels.save(pairs / "images" / f"{number:02}.jpg")
    torch.save(torch.arange(number, number + 5), pairs / "titles" / f"{number:02}.pt")
