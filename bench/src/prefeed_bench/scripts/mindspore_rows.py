"""Warm epochs of MindSpore's cache: pictures that a cached map has decoded, cut and normalised.

Prints a line of JSON per way of taking the rows: rows per second of the warm epochs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

BATCH = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure rows that MindSpore puts into batches, and single rows that are copied into one reused batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--session", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=5, help="warm ones, after two that are not counted")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)

    batched = pictures(options).batch(BATCH, drop_remainder=True)
    report("batched", batched, options)
    report("single", pictures(options), options)


def pictures(options: argparse.Namespace) -> Any:
    """Return float32 rows of 3 x 224 x 224, cached after the last step, in random order."""
    import mindspore.dataset as ds  # where this module is only looked at, it need not be there
    from mindspore.dataset import vision

    cache = ds.DatasetCache(session_id=options.session, size=0, spilling=False, port=options.port)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    steps = [
        vision.Decode(),
        vision.Resize(256),
        vision.CenterCrop(224),
        vision.Normalize([255 * value for value in mean], [255 * value for value in std]),
        vision.HWC2CHW(),
    ]
    order = ds.SubsetRandomSampler(list(range(options.rows)))  # the same pictures each epoch
    files = ds.ImageFolderDataset(options.data, sampler=order, num_parallel_workers=options.workers)
    return files.map(steps, input_columns="image", num_parallel_workers=options.workers, cache=cache)


def report(way: str, data: Any, options: argparse.Namespace) -> None:
    """Read all epochs and print the rate of the warm ones together."""
    epochs = options.epochs + 2
    iterator = data.create_dict_iterator(num_epochs=epochs, output_numpy=True)
    into = np.zeros((BATCH, 3, 224, 224), np.float32)
    rows = 0
    started = 0.0
    for epoch in range(epochs):
        if epoch == 2:
            rows, started = 0, time.perf_counter()
        for sample in iterator:
            image = sample["image"]
            if image.ndim == 3:
                into[rows % BATCH] = image
                rows += 1
            else:
                rows += len(image)
    seconds = time.perf_counter() - started
    sys.stdout.write(json.dumps({"way": way, "rows_s": rows / seconds, "rows": rows}) + "\n")


if __name__ == "__main__":
    main()
