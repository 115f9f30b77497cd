"""The same pictures as raw bytes from an object store at 3 and 20 ms, through the libraries that people use for it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed_bench.charts import write_bars
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import statistics_of, temporary_home
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.processes import run_program
from prefeed_bench.s3_origin import Bucket, environment, s3_bucket

_SCRIPT: Final = "peers.py"
_PHOTOS: Final = "photos"
_LATENCIES_MS: Final = (3, 20)
_NUM_SHARDS: Final = 16
_MOST_SHARD_BYTES: Final = 64_000_000


@dataclass(frozen=True, slots=True)
class _Peer:
    """A library: what charts call it, the package it needs, and whether it reads a format of its own."""

    label: str
    package: str
    converts: bool = False


PEERS: Final = {
    "plain": _Peer("torch, obstore", "obstore"),
    "s3torchconnector": _Peer("s3torchconnector", "s3torchconnector"),
    "litdata_raw": _Peer("LitData, raw", "litdata"),
    "msc": _Peer("Multi-Storage Client", "multistorageclient"),
    "webdataset": _Peer("WebDataset, tars", "webdataset", converts=True),
    "litdata": _Peer("LitData, chunks", "litdata", converts=True),
    "mds": _Peer("MosaicML, MDS", "streaming", converts=True),
    "prefeed": _Peer("prefeed", "prefeed"),
}
"""By the name that ``peers.py`` has for them."""
_OURS: Final = ("plain", "prefeed")
"""Those whose failure is a failure of the benchmark."""

NOTES: Final = (
    "raw bytes, batches of 64 in random order, 2 workers, an S3 endpoint (nginx) on the same cores with 3 and 20 ms per request",
    "cold: the first epoch from iter(loader) on, the start of the workers included, caches empty; warm: the second, by the same workers",
    "requests: at the origin per picture, for both epochs and the listing; disk and memory: what a library keeps, by the bytes of the pictures",
    "convert_s: writing the library's format from local files, not counted in any epoch; shards are a sixteenth of the pictures, at most 64 MB",
    "over_unconverted, over_converted: prefeed's first epoch over the best first one of the others; warm_over_best: second epochs",
    "random order means the library's own: chunks, shards and tars are shuffled in part, the others wholly",
)

Outcome = dict[str, Any]


def run(options: Options) -> BenchResult:
    """Measure each installed library, at each latency in turn, and draw the charts."""
    found = [name for name, peer in PEERS.items() if importlib.util.find_spec(peer.package) is not None]
    photos = options.photos()
    with _buckets(photos, found, options) as (root, convert_seconds):
        runs: dict[str, list[Outcome]] = {}
        for latency in _LATENCIES_MS:
            with s3_bucket(root, _PHOTOS, latency / 1000) as bucket, environment(bucket.env):
                variants: dict[str, Callable[[], Outcome]] = {
                    f"{name}_{latency}ms": functools.partial(_attempt, name, bucket, root, photos) for name in found
                }
                runs |= alternate(variants, runs=options.runs, say=options.say)
    result = _result(found, runs, convert_seconds)
    for path in write_charts(result, options.charts_dir):
        options.say(f"chart: {path}")
    return result


@contextlib.contextmanager
def _buckets(photos: PhotoFolder, found: Sequence[str], options: Options) -> Iterator[tuple[Path, dict[str, float]]]:
    """Give a directory of buckets, one of the pictures and one of each format, and how long it took to convert them."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as scratch:
        root = Path(scratch, "buckets")
        (root / _PHOTOS).mkdir(parents=True)
        for folder in sorted(entry for entry in photos.root.resolve().iterdir() if entry.is_dir()):
            (root / _PHOTOS / folder.name).symlink_to(folder)  # the index file beside them is no picture
        shard_bytes = min(photos.total_bytes // _NUM_SHARDS, _MOST_SHARD_BYTES)
        seconds = {}
        for name in found:
            if PEERS[name].converts:
                options.say(f"converting: {PEERS[name].label}")
                line = ["--library", name, "--shard-bytes", str(shard_bytes)]
                line += ["--convert", str(root / _PHOTOS), str(root / name)]
                with environment({"DATA_OPTIMIZER_CACHE_FOLDER": f"{scratch}/litdata"}):
                    (converted,) = run_program(_SCRIPT, line)
                seconds[name] = float(converted["seconds"])
        yield root, seconds


def _attempt(name: str, bucket: Bucket, root: Path, photos: PhotoFolder) -> Outcome:
    """Measure a library; if one of the others fails, say how instead: it must not end the benchmark."""
    try:
        return _measure(name, bucket, root, photos)
    except BenchFailedError as err:
        if name in _OURS:
            raise
        return {"failed": str(err)}


def _measure(name: str, bucket: Bucket, root: Path, photos: PhotoFolder) -> Outcome:
    """Run two epochs of a library in a process of its own, with empty caches."""
    counter = bucket.origin.counter()
    with contextlib.ExitStack() as opened:
        work = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="prefeed-bench-")))
        line = ["--library", name, "--bucket", bucket.name, "--work", str(work)]
        if PEERS[name].converts:
            line += ["--shards", name, "--names", *sorted(entry.name for entry in (root / name).iterdir())]
        else:
            line += ["--names", *photos.sizes]
        home = opened.enter_context(temporary_home()) if name == "prefeed" else None
        opened.enter_context(environment(home.env if home is not None else {}))
        epochs = run_program(_SCRIPT, line)
        memory_bytes = statistics_of(home).resident_bytes if home is not None else 0
        disk_bytes = _bytes_below(work)
    if {(epoch["samples"], epoch["bytes"]) for epoch in epochs} != {(photos.num_photos, photos.total_bytes)}:
        raise BenchFailedError(f"{PEERS[name].label} gave other samples than {photos.num_photos} pictures: {epochs}")
    return {
        "epochs": epochs,
        "cold_img_s": epochs[0]["samples"] / epochs[0]["seconds"],
        "warm_img_s": epochs[1]["samples"] / epochs[1]["seconds"],
        "requests": counter.count() / photos.num_photos,
        "disk": disk_bytes / photos.total_bytes,
        "memory": memory_bytes / photos.total_bytes,
    }


def _bytes_below(directory: Path) -> int:
    """Return what the files below a directory take on disk."""
    files = (Path(folder, file) for folder, _, files in os.walk(directory) for file in files)
    return sum(file.lstat().st_blocks * 512 for file in files)


def _result(
    found: Sequence[str], runs: Mapping[str, Sequence[Outcome]], convert_seconds: Mapping[str, float]
) -> BenchResult:
    """Sum the runs up. A library that failed, or gave other pictures than plain torch, has no figures, and a note.

    Raises:
        BenchFailedError: prefeed gave other pictures.
    """
    expected = runs[f"plain_{_LATENCIES_MS[0]}ms"][0]["epochs"][0]["checksum"]
    errors = {_library(variant): error for variant, done in runs.items() if (error := _error(done, expected))}
    for name in _OURS:
        if name in errors:
            raise BenchFailedError(f"{name}: {errors[name]}")
    found = [name for name in found if name not in errors]
    runs = {variant: done for variant, done in runs.items() if _library(variant) in found}
    samples = Samples()
    for latency in _LATENCIES_MS:
        for number in range(len(runs[f"{found[0]}_{latency}ms"])):
            of_run = {name: runs[f"{name}_{latency}ms"][number] for name in found}
            for name, outcome in of_run.items():
                figures = ("cold_img_s", "warm_img_s", "requests", "disk", "memory")
                samples.add(**{f"{name}_{latency}ms_{figure}": outcome[figure] for figure in figures})
            samples.add(**{f"{figure}_{latency}ms": value for figure, value in _comparisons(of_run).items()})
    failed = [f"{name}: not measured: {error}" for name, error in errors.items()]
    missing = [
        f"{name}: not measured, {peer.package} is not installed"
        for name, peer in PEERS.items()
        if importlib.util.find_spec(peer.package) is None
    ]
    notes = [
        *NOTES,
        *failed,
        *missing,
        *(["pip install 'prefeed-bench[peers]' brings the libraries"] if missing else []),
    ]
    return samples.result(
        "peers", runs, *notes, **{f"{name}_convert_s": took for name, took in convert_seconds.items()}
    )


def _error(outcomes: Sequence[Outcome], expected: int) -> str:
    """Return what was wrong with a variant; empty: nothing."""
    for outcome in outcomes:
        if "failed" in outcome:
            return f"it failed: {outcome['failed'].strip().splitlines()[-1]}"
        if any(epoch["checksum"] != expected for epoch in outcome["epochs"]):
            return "it gave other pictures than the store holds"
    return ""


def _library(variant: str) -> str:
    """Return whose a variant is: its name without the latency."""
    return variant.rpartition("_")[0]


def _comparisons(of_run: Mapping[str, Outcome]) -> dict[str, float]:
    """Return prefeed's rates over the best of the others."""
    others = {name: outcome for name, outcome in of_run.items() if name != "prefeed"}
    groups = {
        "over_unconverted": ("cold_img_s", [outcome for name, outcome in others.items() if not PEERS[name].converts]),
        "over_converted": ("cold_img_s", [outcome for name, outcome in others.items() if PEERS[name].converts]),
        "warm_over_best": ("warm_img_s", list(others.values())),
    }
    return {
        name: of_run["prefeed"][figure] / max(outcome[figure] for outcome in group)
        for name, (figure, group) in groups.items()
        if group
    }


def write_charts(result: BenchResult, directory: Path) -> list[Path]:
    """Draw a bar chart of first epochs and one of second epochs for each latency; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for latency in _LATENCIES_MS:
        for figure, epoch in (("cold", "first epoch, empty caches"), ("warm", "second epoch")):
            bars = []
            for name in PEERS:
                field = f"{name}_{latency}ms_{figure}_img_s"
                if field not in result.fields:
                    continue
                value = result.fields[field]
                assert isinstance(value, float)
                bars.append((PEERS[name].label, value, result.spread[field]))
            title = f"Raw bytes from an object store at {latency} ms per request: {epoch}"
            path = directory / f"peers-{latency}ms-{figure}.png"
            paths.append(write_bars(title, "pictures per second", bars, path, digits=0, plain=PEERS["plain"].label))
    return paths
