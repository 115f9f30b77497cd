"""Makes CIFAR-10's binary directory, a folder of pictures, and a session for the page's lines."""

import os
from pathlib import Path

import numpy as np
from PIL import Image

from e2e.parity import make_session

RECORDS_OF_FILE = 20
names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
directory = Path("cifar-10-batches-bin")
directory.mkdir(exist_ok=True)
(directory / "batches.meta.txt").write_text("\n".join(names) + "\n")
for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
    generator = np.random.default_rng(seed)
    records = generator.integers(0, 256, (RECORDS_OF_FILE, 3073), dtype=np.uint8)
    records[:, 0] = generator.integers(0, 10, RECORDS_OF_FILE)
    records.tofile(directory / f"{name}.bin")

for number in range(8):
    folder = Path("data/train") / ("cat", "dog")[number % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (48, 44, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.jpg")

os.environ["PREFEED_MEMORY"] = "64MiB"
os.environ["SESSION_ID"] = str(make_session())
