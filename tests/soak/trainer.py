"""A trainer of the soak: epoch after epoch, every byte of every sample compared; never ends by itself.

trainer.py KIND WORK SLOT NUM_OBJECTS URL

KIND is ``paths``: an unchanged loop over files that its dataset opens, ``objects``: ``prefeed.datasets.Objects`` of a store,
listed anew each epoch, or ``stage``: a cached stage over files.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import prefeed
import prefeed.auto
from soak.origin import LEAST_BYTES, Table, body, name_of, version_of

SAMPLES, EPOCHS, WRONG, ERRORS, WORKERS_LOST = range(5)
COUNTS = 5
"""What a trainer counts, in a table that outlives it, shape (num_slots, COUNTS)."""

BATCH_SIZE = 8
FILES, STORE = range(2)
KILLED = ("is killed by signal", "exited unexpectedly")
"""What torch says of a loader whose worker somebody has killed."""


class Files(Dataset[Any]):
    """Opens its files as user code does; knows nothing of prefeed."""

    def __init__(self, root: Path, num_objects: int) -> None:
        self.paths = [str(root / name_of(number)) for number in range(num_objects)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        with open(self.paths[index], "rb") as file:
            return index, file.read()


class Inverted(Files):
    """A step that is worth keeping: the same number of bytes of each file, as an array, each bit turned round."""

    def __getitem__(self, index: int) -> Any:
        _, data = super().__getitem__(index)
        return index, np.invert(np.frombuffer(data[:LEAST_BYTES], np.uint8))


def loader_of(kind: str, root: Path, num_objects: int, url: str, epoch: int) -> Any:
    options: dict[str, Any] = {"batch_size": BATCH_SIZE, "shuffle": True, "num_workers": epoch % 3}
    if kind == "objects":
        return prefeed.DataLoader(prefeed.datasets.Objects(url), collate_fn=list, **options)
    if kind == "stage":
        return DataLoader(prefeed.CachedDataset(Inverted(root, num_objects)), **options)
    return DataLoader(Files(root, num_objects), collate_fn=list, **options)


def samples_of(kind: str, batch: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each sample of a batch; the number is -1 where the bytes alone tell it."""
    if kind == "objects":
        for data in batch:
            yield -1, data
    elif kind == "stage":
        for number, row in zip(*batch, strict=True):
            yield int(number), np.invert(row.numpy()).tobytes()
    else:
        yield from batch


def version_in(kind: str, number: int, data: bytes) -> tuple[int, int]:
    """Return which object these bytes are, and of which version; -1 where they are none."""
    if number < 0:
        number = int.from_bytes(data[4:8], "little")
    if kind != "stage":
        return number, version_of(data, number)
    version = int.from_bytes(data[8:12], "little")
    return number, version if data == body(number, version)[:LEAST_BYTES] else -1


def main() -> None:
    kind, work, slot, num_objects, url = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
    counts = np.memmap(work / "counts", np.uint64, "r+").reshape(-1, COUNTS)[slot]
    table = Table(work / "table", num_objects)
    row = STORE if kind == "objects" else FILES
    seed = torch.initial_seed() % 2**31 ^ os.getpid()
    torch.manual_seed(seed)
    epoch = seed
    loader: Any = None
    while not (work / "over").exists():
        epoch += 1
        first = table.settled[row].copy()
        try:
            if loader is None or kind == "objects" or epoch % 4 == 0:
                loader = loader_of(kind, work / "files", num_objects, url, epoch)
            seen = []
            for batch in loader:
                for told, data in samples_of(kind, batch):
                    number, version = version_in(kind, told, data)
                    seen.append(number)
                    if not 0 <= number < num_objects or not first[number] <= version <= table.coming[row, number]:
                        counts[WRONG] += np.uint64(1)
                        last = table.coming[row, number] if 0 <= number < num_objects else -1
                        earliest = first[number] if 0 <= number < num_objects else -1
                        report(work, f"{kind}: {number} has version {version}, not {earliest} to {last}")
                counts[SAMPLES] += np.uint64(len(batch) if kind != "stage" else len(batch[0]))
                if (work / "over").exists():
                    return
            if sorted(seen) != list(range(num_objects)):
                counts[WRONG] += np.uint64(1)
                report(work, f"{kind}: an epoch of {len(seen)} samples, {len(set(seen))} different ones")
            counts[EPOCHS] += np.uint64(1)
        except RuntimeError as err:
            if not any(words in str(err) for words in KILLED):
                raise
            counts[WORKERS_LOST] += np.uint64(1)
            loader = None
        except Exception:  # noqa: BLE001 - whatever it is, it is counted, and the next epoch begins
            counts[ERRORS] += np.uint64(1)
            report(work, f"{kind}: {traceback.format_exc()}")
            loader = None


def report(work: Path, text: str) -> None:
    """Add a line to what went wrong."""
    descriptor = os.open(work / "failures", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{time.strftime('%H:%M:%S')} {text}\n".encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
