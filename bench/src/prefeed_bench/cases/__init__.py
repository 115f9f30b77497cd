"""The benchmarks, each a function of ``(options) -> BenchResult``; a module is imported only when one of its own is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from prefeed_bench.harness import BenchResult, Options

CASES: Final = {
    "hit": "Reading from the memory tier, against reading files from the page cache.",
    "small": "A million values of 100 and of 1,000 bytes in memory, next to LMDB and files in a tmpfs.",
    "readers": "What a hit costs with 1, 8 and 64 processes that read at random.",
    "fetch": "Origin to memory tier, without added latency: objects per second and processor time per object.",
    "cold": "An epoch of ResNet preprocessing from an empty cache at 20 ms latency.",
    "cold_bytes": "An epoch of raw bytes from an empty cache at 3 ms latency.",
    "remote": "An epoch from an object store at 20 ms: through a FUSE mount, prefeed cold and warm, local files.",
    "mount": "Small files and a large one on `prefeed mount`, against rclone's mount and plain files.",
    "tokens": "Random windows of a mapped file of tokens on `prefeed mount`, against tmpfs and rclone's mount.",
    "refill": "The cost of filling the cache when the origin is a local directory.",
    "partial": "Origin requests of an epoch when half the data set fits in the cache.",
    "epoch_start": "Time to the first batch of later epochs when half the data set fits.",
    "quick": "Epochs over small files in the page cache under prefeed run, against plain torch.",
    "start": "The first epoch of 300 files at 5 ms an open, with no server there, against plain torch.",
    "changed": "Epochs over touched files, a mount made again, and the next run of a learned dataset, at 20 ms an open.",
    "zero_code": "An unmodified script under prefeed run, on a directory whose opens take 20 ms.",
    "programs": "Scripts of timm, datasets, MONAI, a U-Net and fastai under prefeed run, opens of 20 ms.",
    "paddle": "An unmodified Paddle script under prefeed run, on a directory whose opens take 20 ms.",
    "slices": "Slices of 4 KB out of files of 60 MB that are cached, against plain local files.",
    "large_files": "Files of 96 MiB that are opened by path, at 20 ms an open and in the page cache, against plain reads.",
    "shards": "WebDataset's tar shards from an object store at 20 ms: one reader, two ranks, second epoch.",
    "parquet": "Hugging Face's streaming of Parquet from an object store at 20 ms, against s3fs and local files.",
    "peers": "Raw bytes from an object store at 3 and 20 ms, cold and warm, beside seven ways of others; draws charts.",
    "stage_fill": "The cost of filling a stage cache, against the same epoch without one.",
    "stage_hit": "Warm rows of a stage cache into a reused batch, against a plain copy and MindSpore's cache.",
    "loader_ceiling": "Warm stage entries through two workers, against torch's loader over memory.",
    "bytes": "Warm raw bytes through two workers, against torch's loader over the same bytes in memory.",
    "eval": "A pass of evaluation during training, with and without a stage cache.",
    "multi": "Four processes that share a stage cache: how often a sample is made.",
    "decode": "From JPEGs to tensors of 224 x 224: torchvision over Pillow against prefeed.vision, one thread each.",
    "loader": "What engineers do by hand for a loader, each and together; draws charts.",
    "doctor": "What prefeed doctor predicts for three jobs, beside what its cure brings.",
    "pool": "Four nodes with memory for a tenth of the data each, and a pool: what they ask the origin for.",
    "pool_read": "From a full pool into memory: objects per second and processor time per object.",
    "pool_fault": "One of three memcached killed in the middle of an epoch: the longest wait, wrong bytes, errors.",
    "pod": "Epochs in a pod with a sidecar and in two pods of a node with a cache, against the same without pods.",
    "scale": "A manifest of ten million objects: opening it, planning an epoch, memory of the server.",
    "listing": "Making a dataset of 100,000 local files, against torchvision's ImageFolder.",
    "sync": "Objects per second of a sync, from an HTTP origin with 20 ms latency to a directory.",
    "background": "Cost per item of a background generator, against prefetch_generator, and what it hides.",
    "operator": "1,000 sample sets and 1,000 jobs in the operator: requests per change, processor time, memory.",
    "device": "Batches to a CUDA device while it computes; not run without one.",
}
"""Name to what it measures."""

_PLACES: Final = {
    "cold_bytes": "cold.run_bytes",
    "refill": "cold.run_refill",
    "tokens": "mount.run_tokens",
    "bytes": "raw_bytes.run",
    "epoch_start": "partial.run_epoch_start",
    "parquet": "shards.run_parquet",
    "eval": "stage_fill.run_eval",
    "start": "quick.run_start",
    "pool_read": "pool.run_read",
    "pool_fault": "pool.run_fault",
}
"""Where those are that are not the function ``run`` of the module of their name."""


def run_case(name: str, options: Options) -> BenchResult:
    """Run one benchmark.

    Raises:
        ValueError: No benchmark has this name.
        MissingRequirementError: This machine lacks something that it needs.
        BenchFailedError: A variant failed, or two variants saw different data.
    """
    if name not in CASES:
        raise ValueError(f"no benchmark is called {name!r}; choose one of {', '.join(CASES)}")
    return case_of(name)(options)


def case_of(name: str) -> Callable[[Options], BenchResult]:
    """Return the function that runs a benchmark."""
    module, _, function = _PLACES.get(name, f"{name}.run").partition(".")
    found: Callable[[Options], BenchResult] = getattr(
        importlib.import_module(f"prefeed_bench.cases.{module}"), function
    )
    return found
