"""The pictures of a benchmark as an S3 bucket: a listing with versions, which a pool needs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prefeed.bench.photos import PhotoFolder
from prefeed.bench.s3_origin import Bucket, s3_bucket

_NAME: Final = "photos"


@contextlib.contextmanager
def photo_bucket(photos: PhotoFolder, latency_seconds: float = 0.0) -> Iterator[Bucket]:
    """Serve the pictures for the time of the block; servers started meanwhile find them by the environment.

    Args:
        photos: What is in the bucket.
        latency_seconds: Added to each answer, listings included.

    Raises:
        MissingRequirementError: nginx or its echo module is not installed.
        BenchFailedError: nginx does not start.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-bucket-") as scratch:
        (Path(scratch) / _NAME).symlink_to(photos.root.resolve())
        with s3_bucket(Path(scratch), _NAME, latency_seconds) as bucket, _environment(bucket.env):
            yield bucket


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
