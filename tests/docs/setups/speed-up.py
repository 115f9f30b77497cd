"""Makes pictures for the page's lines: ``data/train``, a folder a class."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

os.environ["PREFEED_MEMORY"] = "64MiB"
for number in range(24):
    pixels = Image.fromarray(np.random.default_rng(number).integers(0, 255, (300, 300, 3), dtype=np.uint8))
    folder = Path("data/train") / ("cat", "dog")[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels.save(folder / f"{number}.jpg")
