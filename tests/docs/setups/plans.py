"""Makes pictures for the page's lines, in ``data/train``."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

os.environ["PREFEED_MEMORY"] = "64MiB"
Path("data/train").mkdir(parents=True)
for number in range(12):
    pixels = Image.fromarray(np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    pixels.save(f"data/train/{('cat', 'dog')[number % 2]}-{number:02}.jpg")
