"""Decode, resize to 256, crop to 224: torchvision over Pillow against ``prefeed.vision``, one thread each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefeed_bench.harness import BenchResult, Options, Samples
from prefeed_bench.photos import PHOTOGRAPHS, PhotoRecipe, make_photos
from prefeed_bench.requirements import MissingRequirementError

if TYPE_CHECKING:
    from prefeed_bench.preparing import Way

_NUM_PICTURES = 400
"""Decoded in one run of one variant; twenty times fewer of the large ones, which are ten times as large."""

_LARGE_SIDE = 1600
_TURNS = 20


def run(options: Options) -> BenchResult:
    """Measure pictures a second from bytes in memory to a tensor, and how far apart the results are."""
    preparing = _preparing()
    pictures, large = _pictures(options)
    floats, levels, random = preparing.normalized(), preparing.levels(), preparing.random_levels()
    small_ways: dict[str, Way] = {
        "pillow": floats.pillow,
        "pillow_draft": floats.pillow_draft,
        "prefeed": floats.prefeed,
        "u8_pillow": levels.pillow,
        "u8_prefeed": levels.prefeed,
        "train_u8_pillow": random.pillow,
        "train_u8_prefeed": random.prefeed,
    }
    large_ways: dict[str, Way] = {
        "large_pillow": floats.pillow,
        "large_pillow_draft": floats.pillow_draft,
        "large_prefeed": floats.prefeed,
    }
    with preparing.one_thread():
        runs: list[dict[str, float]] = []
        for number in range(options.runs + 1):
            options.say(f"run {number} of {options.runs}" if number else "warming up")
            runs.append(_race(small_ways, pictures) | _race(large_ways, large))
        apart = {
            **preparing.differences(levels.prefeed, levels.pillow, pictures),
            **_large(preparing.differences(levels.prefeed, levels.pillow, large)),
            **{
                f"large_draft_{k}": v
                for k, v in preparing.differences(levels.pillow_draft, levels.pillow, large).items()
            },
        }
    return _result(runs[1:], apart, pictures, large)


def _preparing() -> Any:
    try:
        from prefeed_bench import preparing
    except ImportError as err:
        raise MissingRequirementError(f"{err}; this benchmark needs prefeed[torch,vision,demo]") from err
    return preparing


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
    """Return pictures a second by way; they take turns every few pictures, so that a slow moment hits all alike."""
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


def _large(figures: dict[str, float]) -> dict[str, float]:
    return {f"large_{name}": value for name, value in figures.items()}


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
    return BenchResult(
        name="decode",
        fields={**samples.medians(), **apart, **sizes, "images": len(pictures), "large_images": len(large)},
        spread=samples.spread(),
        runs={name: [speed[name] for speed in runs] for name in runs[0]},
        notes=(
            "JPEGs in memory, 500 x 375 and (large_) 1600 x 1200 or upright; one thread; wall time; variants in turn, every twentieth of the pictures",
            "both: resize 256, centre crop 224, normalised float32; u8_: uint8; train_: RandomResizedCrop and flip, uint8",
            "pillow_draft: image.draft('RGB', (256, 256)) before it is converted; it scales only what is twice too large",
            "_abs_diff: of the uint8 results from those of Pillow without draft, in levels of 0 to 255",
        ),
    )


def _mean_kb(pictures: Sequence[bytes]) -> float:
    return sum(map(len, pictures)) / len(pictures) / 1000
