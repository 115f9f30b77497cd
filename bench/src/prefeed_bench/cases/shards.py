"""Tar shards and Parquet files in an object store at 20 ms, streamed by two workers, beside what people use."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from prefeed.client.node import NodeClient
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.processes import run_program
from prefeed_bench.s3_origin import Bucket, environment, s3_bucket

_LATENCY_SECONDS: Final = 0.02
_BUCKET: Final = "shards"
_NUM_SHARDS: Final = 4
_SHARD_BYTES: Final = 64_000_000
_SAMPLE_BYTES: Final = 100_000
_CONNECTION_BYTES: Final = 90_000_000
_QUICK: Final = 40
"""So much smaller are the shards of the quick variant."""

Epochs = list[dict[str, Any]]
Outcome = dict[str, Any]

_NOTES: Final = (
    "4 shards of 64 MB, samples of 100 KB of random bytes, an S3 endpoint (nginx) with 20 ms per request, DataLoader with 2 workers",
    "an epoch is timed from iter(loader) on, the start of the workers included; the origin shares the cores",
)


def run(options: Options) -> BenchResult:
    """Measure WebDataset over tar shards: prefeed beside pipe:curl and WebDataset's cache_dir, one reader and two ranks."""
    _require("webdataset", "curl")
    with _shards(options, _write_tar, "tar") as (bucket, names):
        urls = [f"prefeed:{bucket.url}/{name}" for name in names]
        curl = [f"pipe:curl -s -f {bucket.endpoint}/{bucket.name}/{name}" for name in names]
        variants: dict[str, Callable[[], Outcome]] = {
            "curl": lambda: _plain(curl, ranks=1),
            "cache_dir": lambda: _with_cache_dir(curl, ranks=1),
            "prefeed": lambda: _prefeed(urls, ranks=1),
            "curl_ranks": lambda: _plain(curl, ranks=2),
            "cache_dir_ranks": lambda: _with_cache_dir(curl, ranks=2),
            "prefeed_ranks": lambda: _prefeed(urls, ranks=2),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        done = {name: outcomes[number] for name, outcomes in runs.items()}
        _check_same(done.values())
        first = {name: outcome["seconds"][0] for name, outcome in done.items()}
        samples.add(
            prefeed_cold_mb_s=done["prefeed"]["bytes"] / first["prefeed"] / 1e6,
            curl_mb_s=done["curl"]["bytes"] / first["curl"] / 1e6,
            cache_dir_mb_s=done["cache_dir"]["bytes"] / first["cache_dir"] / 1e6,
            cold_of_best=min(first["curl"], first["cache_dir"]) / first["prefeed"],
            second_of_best=min(done["cache_dir"]["seconds"][1], done["curl"]["seconds"][1])
            / done["prefeed"]["seconds"][1],
            two_ranks_of_best=min(first["curl_ranks"], first["cache_dir_ranks"]) / first["prefeed_ranks"],
            origin_bytes_ratio=done["prefeed_ranks"]["origin_bytes"] / done["prefeed_ranks"]["file_bytes"],
        )
    return samples.result(
        "shards", runs, *_NOTES,
        "curl: pipe:curl per shard; cache_dir: the same with WebDataset's cache_dir; best: the faster of the two",
        "ranks: two programs at the same time, both read all shards; their time is the slower one's",
    )  # fmt: skip


def run_parquet(options: Options) -> BenchResult:
    """Measure Hugging Face's streaming of Parquet: prefeed beside s3fs and local files.

    The origin gives a connection as much as the machine does, and then what Amazon's gives one.
    """
    _require("datasets", "s3fs", "pyarrow")
    with (
        _shards(options, _write_parquet, "parquet") as (bucket, names),
        s3_bucket(
            bucket_directory(bucket).parent, _BUCKET, _LATENCY_SECONDS, connection_bytes_per_second=_CONNECTION_BYTES
        ) as limited,
    ):
        local = [str(bucket_directory(bucket) / name) for name in names]
        variants: dict[str, Callable[[], Outcome]] = {
            "s3fs": lambda: _s3fs(bucket, names),
            "prefeed": lambda: _prefeed_parquet(bucket, names),
            "local": lambda: _plain(local, "--parquet", ranks=1),
            "s3fs_limited": lambda: _s3fs(limited, names),
            "prefeed_limited": lambda: _prefeed_parquet(limited, names),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        done = {name: outcomes[number] for name, outcomes in runs.items()}
        _check_same(done.values())
        first = {name: outcome["seconds"][0] for name, outcome in done.items()}
        samples.add(
            prefeed_cold_mb_s=done["prefeed"]["bytes"] / first["prefeed"] / 1e6,
            s3fs_mb_s=done["s3fs"]["bytes"] / first["s3fs"] / 1e6,
            cold_over_s3fs=first["s3fs"] / first["prefeed"],
            local_over_s3fs=first["s3fs"] / first["local"],
            second_of_local=done["local"]["seconds"][1] / done["prefeed"]["seconds"][1],
            limited_cold_over_s3fs=first["s3fs_limited"] / first["prefeed_limited"],
        )
    return samples.result(
        "parquet", runs, *_NOTES,
        "local: the same files in the page cache; local_over_s3fs: first epochs, what nothing can exceed by reading ahead",
        f"limited: the origin gives {_CONNECTION_BYTES / 1e6:g} MB/s per connection, as Amazon says of S3 (85 to 90 MB/s per request)",
    )  # fmt: skip


def _s3fs(bucket: Bucket, names: Sequence[str]) -> Outcome:
    options = {"key": "bench", "secret": "bench-secret", "endpoint_url": bucket.endpoint}
    urls = [f"{bucket.url}/{name}" for name in names]
    return _plain(urls, "--parquet", "--storage-options", json.dumps(options), ranks=1)


def _prefeed_parquet(bucket: Bucket, names: Sequence[str]) -> Outcome:
    with environment(bucket.env):
        return _prefeed([f"prefeed://{bucket.url}/{name}" for name in names], "--parquet", ranks=1)


def bucket_directory(bucket: Bucket) -> Path:
    """Return where the objects of the bucket lie as files."""
    return Path(_roots[bucket.name])


_roots: dict[str, str] = {}


def _require(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None and shutil.which(name) is None:
            raise MissingRequirementError(f"{name} is not installed")


@contextlib.contextmanager
def _shards(
    options: Options, write: Callable[[Path, int, int], None], suffix: str
) -> Iterator[tuple[Bucket, list[str]]]:
    """Write shards and serve them for the time of the block."""
    size = _SHARD_BYTES // (_QUICK if options.quick else 1)
    names = [f"{number}.{suffix}" for number in range(_NUM_SHARDS)]
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as scratch:
        root = Path(scratch, _BUCKET)
        root.mkdir()
        _roots[_BUCKET] = str(root)
        for number, name in enumerate(names):
            write(root / name, number, size // _SAMPLE_BYTES)
        with s3_bucket(Path(scratch), _BUCKET, _LATENCY_SECONDS) as bucket, environment(bucket.env):
            yield bucket, names


def _write_tar(path: Path, seed: int, num_samples: int) -> None:
    rng = np.random.default_rng(seed)
    with tarfile.open(path, "w") as tar:
        for number in range(num_samples):
            member = tarfile.TarInfo(f"{seed:03}-{number:06}.bin")
            member.size = _SAMPLE_BYTES
            tar.addfile(member, io.BytesIO(rng.bytes(_SAMPLE_BYTES)))


def _write_parquet(path: Path, seed: int, num_samples: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    table = pa.table({"data": [rng.bytes(_SAMPLE_BYTES) for _ in range(num_samples)]})
    pq.write_table(table, path, row_group_size=100, compression="none")


def _plain(urls: Sequence[str], *arguments: str, ranks: int) -> Outcome:
    return _outcome(_run(urls, arguments, ranks, None))


def _with_cache_dir(urls: Sequence[str], *, ranks: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as directory:
        return _outcome(_run(urls, ["--cache-dir", directory], ranks, None))


def _prefeed(urls: Sequence[str], *arguments: str, ranks: int) -> Outcome:
    with temporary_home(4 * _NUM_SHARDS * _SHARD_BYTES) as home:
        outcome = _outcome(_run(urls, arguments, ranks, home.env))
        with NodeClient.connect(home.config) as node:
            outcome["origin_bytes"] = node.statistics().origin_bytes
    outcome["file_bytes"] = sum(file.stat().st_size for file in Path(_roots[_BUCKET]).iterdir())
    return outcome


def _run(urls: Sequence[str], arguments: Sequence[str], ranks: int, env: Mapping[str, str] | None) -> list[Epochs]:
    """Run the program once per rank, at the same time; return the epochs of each."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as meeting, ThreadPoolExecutor(ranks) as pool:
        command = [*urls, *arguments, "--epochs", "2", "--together", meeting, str(ranks)]
        return list(pool.map(lambda _: run_program("shards.py", command, prefeed_env=env), range(ranks)))


def _outcome(programs: Sequence[Epochs]) -> Outcome:
    seconds = [max(epoch["seconds"] for epoch in epochs) for epochs in zip(*programs, strict=True)]
    return {
        "seconds": seconds,
        "bytes": programs[0][0]["bytes"],
        "checksums": sorted({epoch["checksum"] for epochs in programs for epoch in epochs}),
    }


def _check_same(outcomes: Any) -> None:
    if len({tuple(outcome["checksums"]) for outcome in outcomes}) != 1:
        raise BenchFailedError("the variants saw different samples")
