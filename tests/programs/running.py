"""Runs a program three times on a directory that counts its opens: as it is, and twice under ``prefeed run``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prefeed
from slow_files import SlowDirectory, slow_files

SCRIPTS = Path(__file__).parent / "scripts"
KINDS = ("plain", "cold", "warm")
TIMEOUT_SECONDS = 600.0

_PASS = re.compile(
    r"prefeed: (?P<what>epoch (?P<epoch>\d+)|[a-z ]+) of (?P<loader>.+?)(, \d+( of \d+)? batches)?: "
    r"[\d.]+ % of [\d.]+ s spent waiting for data(; hit ratio (?P<ratio>[\d.]+) of (?P<reads>\d+) reads)?"
)
_SUMMARY = re.compile(r"prefeed: (?P<reads>[\d,]+) reads: (?P<hits>[\d,]+) hits ")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A script of ``scripts``.

    Attributes:
        line: Its name, and what follows the two directories.
        data: Folder of ``write_data`` that it reads.
        epochs: Of each of its loaders, passes that come to their end.
        num_beside: Opens of a run beside its loaders' samples.
        num_scanned: Files that are read there first, before the loaders begin.
        is_endless: Its loader reads on when the last epoch has ended, as far as it comes.
        is_answered: Its reads can be answered from the cache.
        past: What the run summary reports of opens that bypassed the cache; empty: nothing.
        environment: What ``prefeed run`` needs to be told.
    """

    line: Sequence[str]
    data: str
    epochs: Sequence[int] = (2,)
    num_beside: int = 0
    num_scanned: int = 0
    is_endless: bool = False
    is_answered: bool = True
    past: str = ""
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What the log says of one pass over a loader; an epoch has a number."""

    loader: str
    epoch: int | None
    reads: int
    hits: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a program.

    Attributes:
        seen: What ``seen.Seen`` wrote.
        opens: How often each file was opened meanwhile, by its path.
        said: Its standard error.
        num_foreseen: Reads of files that the node had, or was fetching, of this run and those before.
        num_unforeseen: Reads that nobody had asked for ahead of time, counted in the same way.
    """

    seen: Mapping[str, Any]
    opens: Counter[str]
    said: str
    num_foreseen: int
    num_unforeseen: int

    @property
    def passes(self) -> list[Pass]:
        return [
            Pass(
                loader=found["loader"],
                epoch=int(found["epoch"]) if found["epoch"] else None,
                reads=int(found["reads"] or 0),
                hits=float(found["ratio"] or 0) * int(found["reads"] or 0),
            )
            for found in _PASS.finditer(self.said)
        ]

    @property
    def num_reads(self) -> int:
        """Reads of all passes, as the log says."""
        return sum(one.reads for one in self.passes)

    @property
    def num_hits(self) -> float:
        """Hits of all passes, as the log says."""
        return sum(one.hits for one in self.passes)

    @property
    def summed_up(self) -> tuple[int, int]:
        """Reads and hits of the run summary."""
        found = _SUMMARY.search(self.said)
        assert found is not None, self.said
        return int(found["reads"].replace(",", "")), int(found["hits"].replace(",", ""))


def run_three_times(program: Program, data: Path, folder: Path) -> dict[str, Run]:
    """Return the runs by their kind: without prefeed, under it from an empty cache, and once more."""
    with slow_files(data / program.data) as slow:
        return {kind: _run(program, kind, slow, folder) for kind in KINDS}


def _run(program: Program, kind: str, slow: SlowDirectory, folder: Path) -> Run:
    script, *rest = program.line
    out = folder / kind
    under = [] if kind == "plain" else ["-m", "prefeed", "run", "--explain"]
    before = Counter(slow.opens_by_file())
    done = subprocess.run(
        [sys.executable, *under, str(SCRIPTS / script), str(slow.path), str(out), *rest],
        cwd=folder,
        env={**os.environ, **offline(folder), **(program.environment or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{kind}: {done.stdout}\n{done.stderr}"
    opens = Counter(slow.opens_by_file())
    opens.subtract(before)
    counts = prefeed.statistics()
    return Run(
        seen=json.loads((out / "seen.json").read_text()),
        opens=+opens,
        said=done.stderr,
        num_foreseen=counts.hits + counts.late,
        num_unforeseen=counts.misses + counts.direct_reads,
    )


def offline(folder: Path) -> dict[str, str]:
    """Return what keeps libraries from the network, and their files together."""
    return {
        "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "huggingface"),
        "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": str(folder),
        "FASTAI_HOME": str(folder / "fastai"), "TORCH_HOME": str(folder / "torch"), "MPLCONFIGDIR": str(folder),
        "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder / "extensions"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
