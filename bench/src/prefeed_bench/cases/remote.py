"""The comparison of Paddle's sample sets: an epoch of ResNet-50's preprocessing over ImageNet in an object store.

The data set has the document's layout, ``train/`` and ``train_list.txt``, and lies behind 20 ms of latency per request. It is
read through a FUSE mount of the store, through prefeed from the same endpoint, and from a local directory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefeed_bench.fuse_mount import CacheMode, rclone_mount
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.home import temporary_home
from prefeed_bench.loading import EpochOutcome, LoadingJob, LoadingOutcome, check_same_batches, run_loading
from prefeed_bench.photos import PhotoFolder
from prefeed_bench.plain import LIST_NAME
from prefeed_bench.s3_origin import Bucket, environment, s3_bucket

_LATENCY_SECONDS: Final = 0.02
_BUCKET: Final = "imagenet"
_DEMO_PHOTOS: Final = 20

NOTES: Final = (
    "one S3 endpoint for the mount and for prefeed: nginx with 20 ms per request, objects and listings; moto gives 240 objects per second and would be what is measured",
    "decode, RandomResizedCrop 224, flip, normalise; batch 64, 2 workers, every variant with the same order, crops and batches",
    "an epoch is timed from iter(loader) on, the start of the workers included; fuse and cold: the first, warm and local: the second",
    "fuse: a new rclone mount per run, --vfs-cache-mode=off (its default; one request per file), with what its documentation advises for S3 and read-only data",
    "fuse_full: the same with --vfs-cache-mode=full, which asks twice per file and keeps files on disk: first epoch, second epoch",
    "zero_code: the data set that reads the mount, unchanged, in prefeed.DataLoader with PREFEED_ROOTS=<mount>: the first epoch teaches",
    "local: the same files in a directory, in the page cache",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the data set lies: as a bucket, and as a directory."""

    bucket: Bucket
    directory: Path


def run(options: Options) -> BenchResult:
    """Measure images per second: FUSE mount, prefeed cold and warm, local directory."""
    with _laid_out(options.photos()) as place:
        variants: dict[str, Callable[[], LoadingOutcome]] = {
            "fuse": lambda: _fuse(place, "off", epochs=1),
            "prefeed": lambda: _prefeed(place),
            "local": lambda: run_loading(_job("torch", str(place.directory), epochs=2)),
            "fuse_full": lambda: _fuse(place, "full", epochs=2),
            "zero_code": lambda: _zero_code(place),
        }
        runs = alternate(variants, runs=options.runs, say=options.say)
    check_same_batches(outcome for outcomes in runs.values() for outcome in outcomes)
    return _result(runs)


@contextlib.contextmanager
def _laid_out(photos: PhotoFolder) -> Iterator[_Place]:
    """Lay pictures out as the document has them, and serve them; prefeed's servers find the endpoint in the environment."""
    with tempfile.TemporaryDirectory(prefix="prefeed-bench-") as scratch:
        directory = Path(scratch, _BUCKET)
        lay_out(photos, directory)
        with s3_bucket(Path(scratch), _BUCKET, _LATENCY_SECONDS) as bucket, environment(bucket.env):
            yield _Place(bucket=bucket, directory=directory)


def lay_out(photos: PhotoFolder, directory: Path) -> None:
    """Make the document's layout of links: ``demo/``, ``train/``, and ``train_list.txt`` with a path and a label per line."""
    (directory / "demo").mkdir(parents=True)
    (directory / "train").symlink_to(photos.root.resolve())
    pictures = sorted(photos.root.glob("*/*.jpg"), key=lambda picture: picture.name)
    for picture in pictures[:_DEMO_PHOTOS]:
        (directory / "demo" / picture.name).symlink_to(picture.resolve())
    labels = {name: label for label, name in enumerate(sorted({picture.parent.name for picture in pictures}))}
    lines = [f"train/{p.parent.name}/{p.name} {labels[p.parent.name]}\n" for p in pictures]
    (directory / LIST_NAME).write_text("".join(lines))


def _job(loader: Any, data: str, *, epochs: int, origin_url: str = "", torchvision: bool = False) -> LoadingJob:
    return LoadingJob(
        loader=loader, data=data, sample="listed", epochs=epochs, origin_url=origin_url, torchvision=torchvision
    )


def _fuse(place: _Place, cache_mode: CacheMode, *, epochs: int) -> LoadingOutcome:
    with rclone_mount(place.bucket, cache_mode) as mount:
        return run_loading(_job("torch", str(mount), epochs=epochs, origin_url=place.bucket.origin.url))


def _prefeed(place: _Place) -> LoadingOutcome:
    with temporary_home() as home:
        job = _job("prefeed", place.bucket.url, epochs=2, origin_url=place.bucket.origin.url)
        return run_loading(job, env=home.env)


def _zero_code(place: _Place) -> LoadingOutcome:
    with rclone_mount(place.bucket, "off") as mount, temporary_home() as home:
        job = _job("prefeed", str(mount), epochs=2, origin_url=place.bucket.origin.url, torchvision=True)
        return run_loading(job, env={**home.env, "PREFEED_ROOTS": str(mount)})


def _result(runs: Mapping[str, Sequence[LoadingOutcome]]) -> BenchResult:
    samples = Samples()
    for number in range(len(runs["local"])):
        done = {name: outcomes[number].epochs for name, outcomes in runs.items()}
        samples.add(**_figures(done))
    return samples.result("remote", runs, *NOTES)


def _figures(done: Mapping[str, Sequence[EpochOutcome]]) -> dict[str, float]:
    fuse, (cold, warm), (_, local) = _rate(done["fuse"][0]), map(_rate, done["prefeed"]), map(_rate, done["local"])
    full, zero_code = done["fuse_full"], done["zero_code"]
    return {
        "fuse_img_s": fuse,
        "prefeed_cold_img_s": cold,
        "prefeed_warm_img_s": warm,
        "local_img_s": local,
        "cold_over_fuse": cold / fuse,
        "warm_of_local": warm / local,
        "fuse_requests_per_image": _requests(done["fuse"][0]),
        "prefeed_cold_requests_per_image": _requests(done["prefeed"][0]),
        "prefeed_warm_requests_per_image": _requests(done["prefeed"][1]),
        "fuse_full_first_img_s": _rate(full[0]),
        "fuse_full_second_img_s": _rate(full[1]),
        "fuse_full_requests_per_image": _requests(full[0]),
        "zero_code_first_img_s": _rate(zero_code[0]),
        "zero_code_second_img_s": _rate(zero_code[1]),
        "zero_code_requests_per_image": sum(map(_requests, zero_code)),
    }


def _rate(epoch: EpochOutcome) -> float:
    return epoch.samples / epoch.seconds


def _requests(epoch: EpochOutcome) -> float:
    return epoch.origin_requests / epoch.samples
