"""A training script as people write it, with Paddle and Pillow alone, and without a model.

Prints a line of JSON per epoch: images, seconds, and a checksum of every batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image


class Pictures:
    """Pictures of a directory per class, decoded and scaled, and their labels."""

    def __init__(self, root: str, num_images: int) -> None:
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        found = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(self.classes)
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.samples = found[:num_images]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB").resize((224, 224)), dtype=np.float32)
        return (pixels / 255 - 0.45) / 0.225, np.array(label)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the pictures epoch by epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)

    from paddle.io import DataLoader  # where this module is only looked at, it need not be there

    np.random.seed(0)
    dataset: Any = Pictures(options.data, options.images)
    loader = DataLoader(dataset, batch_size=options.batch_size, shuffle=True, num_workers=options.workers)
    for _ in range(options.epochs):
        checksums: list[int] = []
        num_images = 0
        started = time.perf_counter()
        for images, labels in loader:
            # images: (batch, height, width, channels); every 32nd pixel tells pictures apart and costs nothing
            pixels = np.ascontiguousarray(images.numpy()[:, ::32, ::32]).tobytes()
            checksums.append(zlib.crc32(labels.numpy().tobytes(), zlib.crc32(pixels)))
            num_images += len(labels)
        line = {"images": num_images, "seconds": time.perf_counter() - started, "checksums": checksums}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
