"""The pictures of a benchmark as an S3 bucket: a listing with versions, which a pool needs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prefeed_bench.photos import PhotoFolder
from prefeed_bench.s3_origin import Bucket, environment, s3_bucket

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
        with s3_bucket(Path(scratch), _NAME, latency_seconds) as bucket, environment(bucket.env):
            yield bucket
