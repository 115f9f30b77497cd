"""Makes pictures for the recipes: ``data/train``, a folder a class; and what ultralytics wants, ``data.yaml`` and its folders."""

from pathlib import Path

import numpy as np
from PIL import Image

for number in range(24):
    pixels = Image.fromarray(np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8))
    folder = Path("data/train") / ("cat", "dog")[number % 2]
    part = Path("data/detection") / "images" / ("train", "val")[number % 3 == 0]
    label = Path("data/detection") / "labels" / part.name / f"{number:02}.txt"
    for directory in (folder, part, label.parent):
        directory.mkdir(parents=True, exist_ok=True)
    pixels.save(folder / f"{number:02}.jpg")
    pixels.save(part / f"{number:02}.jpg")
    label.write_text(f"{number % 2} 0.5 0.5 0.4 0.5\n")
root = Path("data/detection").absolute()
Path("data.yaml").write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: {{0: cat, 1: dog}}\n")
