"""What leaner preprocessing saves on a job's own pictures. Needs the extra ``vision``."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from PIL import Image
from torchvision import transforms

from prefeed.vision.transforms import ResizeCropNormalize

_ROUNDS: Final = 3

_usual: Callable[[Any], Any] = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)
_lean = ResizeCropNormalize()


def saved_seconds(jpegs: Sequence[bytes], spent_seconds: float) -> float:
    """Return the seconds a picture that the lean way saves, never negative.

    What the job does with a picture is not known. It is taken to be ImageNet's usual preprocessing, or less of it when
    that would take longer than the job does.

    Args:
        jpegs: Some of the job's pictures.
        spent_seconds: What the job spends on one.
    """
    usual = _quickest(lambda data: _usual(Image.open(io.BytesIO(data)).convert("RGB")), jpegs)
    return max(0.0, min(usual, spent_seconds) - _quickest(_lean, jpegs))


def _quickest(make: Callable[[bytes], Any], jpegs: Sequence[bytes]) -> float:
    """Return the seconds a picture of the quickest of some rounds."""
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for data in jpegs:
            make(data)
        best = min(best, time.perf_counter() - started)
    return best / len(jpegs)
