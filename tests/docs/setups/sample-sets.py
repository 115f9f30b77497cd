"""Makes the layout of the page, and applies the set: ``demo``, ``train`` and ``train_list.txt``."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

lines = []
for number in range(12):
    for part in ("train", "demo"):
        file = Path("data") / part / f"n{number % 2:08}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (80, 90, 3), dtype=np.uint8)).save(file)
    lines.append(f"train/n{number % 2:08}/{number}.jpg {number % 2}")
Path("data/train_list.txt").write_text("\n".join(lines) + "\n")
Path("imagenet.yaml").write_text(
    "apiVersion: batch.paddlepaddle.org/v1alpha1\nkind: SampleSet\nmetadata: {name: imagenet}\n"
    f"spec: {{partitions: 1, source: {{uri: {Path('data').absolute()}}}}}\n"
)
subprocess.run([sys.executable, "-m", "prefeed", "sampleset", "apply", "-f", "imagenet.yaml", "--wait"], check=True)
