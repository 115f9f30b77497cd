"""JPEGs to a network's input: torchvision over Pillow, with and without ``draft``, against ``prefeed.vision``, one thread each."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import torch
from PIL import Image
from torchvision import transforms

from prefeed.vision import ResizeCropNormalize
from prefeed_bench.harness import BenchResult, Options, Samples
from prefeed_bench.loading import IMAGENET_MEAN, IMAGENET_STD
from prefeed_bench.photos import PHOTOGRAPHS, PhotoRecipe, make_photos

Way = Callable[[bytes], torch.Tensor]

_NUM_PICTURES = 400
"""Decoded in one run of one variant; twenty times fewer of the large ones, which are ten times as large."""

_LARGE_SIDE = 1600
_TURNS = 20

_SIDE: Final = 224
_SHORTER_SIDE: Final = 256


def run(options: Options) -> BenchResult:
    """Measure pictures per second from bytes in memory to a tensor, and how far apart the results are."""
    pictures, large = _pictures(options)
    floats, plain, random = normalized(), levels(), random_levels()
    small_ways: dict[str, Way] = {
        "pillow": floats.pillow,
        "pillow_draft": floats.pillow_draft,
        "prefeed": floats.prefeed,
        "u8_pillow": plain.pillow,
        "u8_prefeed": plain.prefeed,
        "train_u8_pillow": random.pillow,
        "train_u8_prefeed": random.prefeed,
    }
    large_ways: dict[str, Way] = {
        "large_pillow": floats.pillow,
        "large_pillow_draft": floats.pillow_draft,
        "large_prefeed": floats.prefeed,
    }
    with one_thread():
        runs: list[dict[str, float]] = []
        for number in range(options.runs + 1):
            options.say(f"run {number} of {options.runs}" if number else "warming up")
            runs.append(_race(small_ways, pictures) | _race(large_ways, large))
        apart = {
            **differences(plain.prefeed, plain.pillow, pictures),
            **_large(differences(plain.prefeed, plain.pillow, large)),
            **_large(differences(plain.pillow_draft, plain.pillow, large), "large_draft"),
        }
    return _result(runs[1:], apart, pictures, large)


def _pictures(options: Options) -> tuple[list[bytes], list[bytes]]:
    """Return small and large pictures, spread evenly over the classes."""
    small = options.photos().root
    options.say(f"pictures of {_LARGE_SIDE} pixels")
    recipe = PhotoRecipe(num_photos=(1 if options.quick else 2) * len(PHOTOGRAPHS), long_side=_LARGE_SIDE)
    large = make_photos(recipe, cache_dir=options.data_dir).root
    return _read(small, min(_NUM_PICTURES, options.num_photos)), _read(large, recipe.num_photos)


def _read(root: Path, num_pictures: int) -> list[bytes]:
    paths = sorted(root.glob("*/*.jpg"))
    return [path.read_bytes() for path in paths[:: len(paths) // num_pictures][:num_pictures]]


def _race(ways: dict[str, Way], pictures: Sequence[bytes]) -> dict[str, float]:
    """Return pictures per second by way; they take turns every few pictures, so that a slow moment hits all alike."""
    seconds = dict.fromkeys(ways, 0.0)
    names = list(ways)
    for turn in range(_TURNS):
        first = turn % len(names)  # another one each time: whom one follows matters to caches
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            for data in pictures[turn::_TURNS]:
                ways[name](data)
            seconds[name] += time.perf_counter() - started
    return {name: len(pictures) / spent for name, spent in seconds.items()}


def _large(figures: dict[str, float], prefix: str = "large") -> dict[str, float]:
    return {f"{prefix}_{name}": value for name, value in figures.items()}


def _result(
    runs: list[dict[str, float]], apart: dict[str, float], pictures: Sequence[bytes], large: Sequence[bytes]
) -> BenchResult:
    samples = Samples()
    for speed in runs:
        samples.add(
            **{f"{name}_img_s": value for name, value in speed.items()},
            ratio=speed["prefeed"] / speed["pillow"],
            u8_ratio=speed["u8_prefeed"] / speed["u8_pillow"],
            train_u8_ratio=speed["train_u8_prefeed"] / speed["train_u8_pillow"],
            large_ratio=speed["large_prefeed"] / speed["large_pillow"],
            large_draft_ratio=speed["large_prefeed"] / speed["large_pillow_draft"],
        )
    sizes = {"image_kb": _mean_kb(pictures), "large_image_kb": _mean_kb(large)}
    return samples.result(
        "decode",
        {name: [speed[name] for speed in runs] for name in runs[0]},
        "JPEGs in memory, 500 x 375 and (large_) 1600 x 1200 or upright; one thread; wall time; variants in turn, every twentieth of the pictures",
        "both: resize 256, centre crop 224, normalised float32; u8_: uint8; train_: RandomResizedCrop and flip, uint8",
        "pillow_draft: image.draft('RGB', (256, 256)) before it is converted; it scales only what is twice too large",
        "_abs_diff: of the uint8 results from those of Pillow without draft, in levels of 0 to 255",
        **apart,
        **sizes,
        images=len(pictures),
        large_images=len(large),
    )


def _mean_kb(pictures: Sequence[bytes]) -> float:
    return sum(map(len, pictures)) / len(pictures) / 1000


# ---------------------------------------------------------------- ways from bytes to a tensor


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
