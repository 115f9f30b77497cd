"""What a leaner JPEG decoder saves on a job's own pictures. Needs the extra ``vision``."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from PIL import Image

from prefeed.vision.decoding import decode_jpeg

_SIDE: Final = 256
"""Pixels that most networks' preprocessing resizes the shorter side to: decoding more of them is for nothing."""
_ROUNDS: Final = 3


def saved_seconds(jpegs: Sequence[bytes]) -> float:
    """Return the seconds a picture that ``prefeed.vision.decode_jpeg`` is quicker than Pillow; never negative."""
    return max(0.0, _quickest(_decode_with_pillow, jpegs) - _quickest(_decode_lean, jpegs)) / len(jpegs)


def _decode_with_pillow(data: bytes) -> Any:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _decode_lean(data: bytes) -> Any:
    return decode_jpeg(data, min_size=_SIDE)


def _quickest(decode: Callable[[bytes], Any], jpegs: Sequence[bytes]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for data in jpegs:
            decode(data)
        best = min(best, time.perf_counter() - started)
    return best
