"""Starts training scripts of this directory, one process or several, and collects what they saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision import datasets

from e2e.hashed import Hashed, write_hashed
from e2e.images import Pixels, make_image_folder
from servers import free_port

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
        processes: Ranks; several are told of each other as torchrun does it.
    """
    out.mkdir()
    line = [sys.executable, "-m", f"e2e.{script}", str(out), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    told: list[dict[str, str]] = [{}] if processes == 1 else torchruns_variables(processes)
    said = [out / f"{rank}.err" for rank in range(processes)]
    with ExitStack() as stack:
        jobs = []
        for variables, errors in zip(told, said, strict=True):
            stderr = stack.enter_context(errors.open("w"))
            job = subprocess.Popen(line, env=environment | variables, stdout=subprocess.DEVNULL, stderr=stderr)
            stack.callback(job.wait)
            stack.callback(job.kill)
            jobs.append(job)
        is_well = all(job.wait() == 0 for job in jobs)  # after the first that failed the others are not waited for
    assert is_well, "\n".join(errors.read_text() for errors in said)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)]


def torchruns_variables(processes: int) -> list[dict[str, str]]:
    """Return what torchrun puts into the environment of each rank of one node."""
    common = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_RUN_ID": "tests",
        "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
    }  # fmt: skip
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


def save(out: str, seen: Any) -> None:
    """Leave what this rank saw for ``run_job``."""
    rank = os.environ.get("RANK", "0")
    (Path(out) / f"{rank}.json").write_text(json.dumps(seen))
