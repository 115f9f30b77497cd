"""Starts training scripts of this directory, one process or several, and collects what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision import datasets

from e2e.hashed import Hashed, write_hashed
from e2e.images import Pixels, make_image_folder

KINDS = ("declared", "learned")


def write_data(root: Path, kind: str, length: int) -> Path:
    """Write what ``make_dataset`` reads; return the root."""
    if kind == "declared":
        return make_image_folder(root, num_images=length)
    return write_hashed(root, Hashed(root, length))


def make_dataset(root: str, kind: str, length: int) -> Dataset[Any]:
    """Return a dataset with one file a sample, that lists its files or does not."""
    if kind == "declared":
        dataset: Dataset[Any] = datasets.ImageFolder(root, Pixels())
        return dataset
    return Tensors(Path(root), length)


class Tensors(Hashed):
    """Samples that torch's own collate function takes: index, number of bytes, checksum."""

    def __getitem__(self, index: int) -> Any:
        _, (data,) = super().__getitem__(index)
        return torch.tensor([index, len(data), sum(place * byte for place, byte in enumerate(data))])


def run_job(script: str, out: Path, *arguments: str, processes: int = 1) -> list[Any]:
    """Run ``e2e.<script>`` in so many processes of one node; return what each rank saw.

    Args:
        script: Module of this directory.
        out: Where the ranks write; must not exist.
        *arguments: Of the script, after ``out``.
        processes: Ranks, started by torchrun if there are several.
    """
    out.mkdir()
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    line = [sys.executable, "-m", *(launcher if processes > 1 else []), f"e2e.{script}", str(out), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    job = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert job.returncode == 0, job.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)]


def save(out: str, seen: Any) -> None:
    """Leave what this rank saw for ``run_job``."""
    rank = os.environ.get("RANK", "0")
    (Path(out) / f"{rank}.json").write_text(json.dumps(seen))
