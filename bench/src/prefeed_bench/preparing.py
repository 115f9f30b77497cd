"""Ways from an encoded picture to a network's input: torchvision's over Pillow, with and without ``draft``, and prefeed's."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from prefeed.vision.normalizing import IMAGENET_MEAN, IMAGENET_STD
from prefeed.vision.transforms import ResizeCropNormalize

Way = Callable[[bytes], torch.Tensor]

_SIDE: Final = 224
_SHORTER_SIDE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Three ways to the same kind of result.

    Attributes:
        pillow: What the examples of torchvision do.
        pillow_draft: The same, with Pillow told beforehand how small the picture may be.
        prefeed: ``ResizeCropNormalize``.
    """

    pillow: Way
    pillow_draft: Way
    prefeed: Way


def normalized() -> Ways:
    """Return the ways to float32, normalised: what an ImageNet script of torchvision does."""
    after = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
    return _ways([*_centre(), *after], ResizeCropNormalize(_SHORTER_SIDE, _SIDE))


def levels() -> Ways:
    """Return the ways to uint8, to be normalised on the device."""
    return _ways([*_centre(), transforms.PILToTensor()], ResizeCropNormalize(_SHORTER_SIDE, _SIDE, normalize=False))


def random_levels() -> Ways:
    """Return the ways to uint8 with a random crop and flip, as in training."""
    steps = [transforms.RandomResizedCrop(_SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return _ways(steps, ResizeCropNormalize(crop=_SIDE, train=True, normalize=False))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch and OpenCV to the calling thread, as workers of a loader do."""
    before = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        cv2.setNumThreads(before[1])


def differences(one: Way, other: Way, pictures: Sequence[bytes]) -> dict[str, float]:
    """Return how far apart two ways to uint8 are, in levels of 0 to 255: mean, 99.9th percentile, most."""
    counts = np.zeros(256, np.int64)  # counts[d]: values that are d apart
    for data in pictures:
        apart = np.abs(one(data).numpy().astype(np.int16) - other(data).numpy())
        counts += np.bincount(apart.ravel(), minlength=256)
    below = np.cumsum(counts) / counts.sum()
    return {
        "mean_abs_diff": float((counts * np.arange(256)).sum() / counts.sum()),
        "p999_abs_diff": float(np.searchsorted(below, 0.999)),
        "max_abs_diff": float(np.flatnonzero(counts).max()),
    }


def _centre() -> list[torch.nn.Module]:
    return [transforms.Resize(_SHORTER_SIDE), transforms.CenterCrop(_SIDE)]


def _ways(steps: Sequence[object], lean: Way) -> Ways:
    rest = transforms.Compose(steps)

    def pillow(data: bytes) -> torch.Tensor:
        with Image.open(io.BytesIO(data)) as image:
            result: torch.Tensor = rest(image.convert("RGB"))
        return result

    def pillow_draft(data: bytes) -> torch.Tensor:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("RGB", (_SHORTER_SIDE, _SHORTER_SIDE))
            result: torch.Tensor = rest(image.convert("RGB"))
        return result

    return Ways(pillow=pillow, pillow_draft=pillow_draft, prefeed=lean)
