"""Makes ``data/train``, a folder a class, for the lines of the page."""

from pathlib import Path

import numpy as np
from PIL import Image

for number in range(16):
    folder = Path("data/train") / ("cat", "dog")[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.jpg")
