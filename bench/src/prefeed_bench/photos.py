"""A folder of JPEGs made from the photographs that scikit-image ships: real pictures, no download.

Every picture is a random crop of one photograph, flipped, brightened and grained by a generator seeded with
(seed, number of the picture), so that the same parameters give the same bytes whatever wrote them.
"""

from __future__ import annotations

import importlib.resources
import io
import json
import multiprocessing
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from prefeed.places import default_home
from prefeed_bench.errors import MissingRequirementError

PHOTOGRAPHS: Final = {
    "astronaut": "astronaut.png",
    "camera": "camera.png",
    "cat": "chelsea.png",
    "cells": "ihc.png",
    "coffee": "coffee.png",
    "grass": "grass.png",
    "gravel": "gravel.png",
    "hubble": "hubble_deep_field.jpg",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}
"""Class name to file in scikit-image's data folder; all are public domain, CC0 or without known restrictions."""

INDEX_NAME: Final = "index.txt"
_FORMAT: Final = 1
_CHUNK: Final = 50

PhotoProgress = Callable[[int, int], None]
"""Called with (pictures written so far, pictures in all)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoRecipe:
    """What decides every byte of a folder of pictures.

    Attributes:
        num_photos: Pictures in all, spread evenly over ten classes.
        long_side: Longer side in pixels; the shorter one is three quarters of it.
        quality: JPEG quality, 1 to 95.
        grain: Standard deviation of the noise added to the brightness, 0 to 255.
        seed: Seed of the crops.
    """

    num_photos: int = 6000
    long_side: int = 500
    quality: int = 94
    grain: float = 5.0
    seed: int = 1

    def __post_init__(self) -> None:
        if self.num_photos < len(PHOTOGRAPHS):
            raise ValueError(f"num_photos must be at least {len(PHOTOGRAPHS)}, one per class: {self.num_photos}")

    @property
    def folder_name(self) -> str:
        """Name that two recipes share only if they give the same bytes."""
        return f"photos-v{_FORMAT}-n{self.num_photos}-{self.long_side}px-q{self.quality}-g{self.grain:g}-s{self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotoFolder:
    """Pictures on disk, in torchvision's folder layout, with an index file beside the classes.

    Attributes:
        root: Directory with one folder per class and the index file.
        num_photos: Pictures in it.
        total_bytes: Size of the pictures together.
    """

    root: Path
    num_photos: int
    total_bytes: int

    @property
    def mean_bytes(self) -> float:
        """Mean size of a picture in bytes."""
        return self.total_bytes / self.num_photos

    @property
    def sizes(self) -> dict[str, int]:
        """Path below the root to size in bytes, of every picture."""
        lines = (line.split("\t") for line in (self.root / INDEX_NAME).read_text().splitlines())
        return {path: int(size) for path, size in lines}

    def read_once(self) -> None:
        """Read every file, so that the first variant finds them in the page cache as the others do."""
        for path in self.sizes:
            (self.root / path).read_bytes()


def default_photo_cache() -> Path:
    """Return the directory that keeps pictures between benchmarks."""
    return default_home().with_name("prefeed-bench")


def make_photos(
    recipe: PhotoRecipe,
    *,
    cache_dir: Path | None = None,
    num_processes: int = 2,
    progress: PhotoProgress | None = None,
) -> PhotoFolder:
    """Write the pictures of ``recipe``, or find them from last time.

    The folder appears under its name only when it is complete: an interrupted call leaves nothing that a later
    one would take for finished.

    Args:
        recipe: What to make.
        cache_dir: Where folders are kept; ``default_photo_cache()`` if not given.
        num_processes: Processes that write.
        progress: Told how far it is.

    Raises:
        MissingRequirementError: scikit-image does not ship a photograph.
    """
    cache_dir = default_photo_cache() if cache_dir is None else cache_dir
    final = cache_dir / recipe.folder_name
    if not (final / "photos.json").exists():
        cache_dir.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".making-", dir=cache_dir))
        try:
            _fill(scratch, recipe, num_processes, progress)
            _publish(scratch, final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    facts = json.loads((final / "photos.json").read_text())
    return PhotoFolder(root=final / "images", num_photos=facts["num_photos"], total_bytes=facts["total_bytes"])


def _publish(scratch: Path, final: Path) -> None:
    try:
        scratch.rename(final)
    except OSError:
        if not (final / "photos.json").exists():  # somebody else may have finished the same folder meanwhile
            raise


def _fill(scratch: Path, recipe: PhotoRecipe, num_processes: int, progress: PhotoProgress | None) -> None:
    images = scratch / "images"
    for name in PHOTOGRAPHS:
        (images / name).mkdir(parents=True)
    _photograph_paths()  # a missing photograph is said here, not by a child process
    lines: list[tuple[str, int]] = []
    for written in _write_all(images, recipe, num_processes):
        lines.extend(written)
        if progress is not None:
            progress(len(lines), recipe.num_photos)
    lines.sort()
    (images / INDEX_NAME).write_text("".join(f"{path}\t{size}\n" for path, size in lines))
    facts = {"num_photos": len(lines), "total_bytes": sum(size for _, size in lines), "recipe": asdict(recipe)}
    (scratch / "photos.json").write_text(json.dumps(facts, indent=1))


def _write_all(images: Path, recipe: PhotoRecipe, num_processes: int) -> Iterator[list[tuple[str, int]]]:
    chunks = [range(i, min(i + _CHUNK, recipe.num_photos)) for i in range(0, recipe.num_photos, _CHUNK)]
    if num_processes <= 1:
        yield from (_write_chunk(images, recipe, chunk) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, mp_context=context, initializer=_ignore_interrupts)
    try:
        futures = [pool.submit(_write_chunk, images, recipe, chunk) for chunk in chunks]
        for future in futures:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends its writers by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _write_chunk(images: Path, recipe: PhotoRecipe, numbers: range) -> list[tuple[str, int]]:
    written = []
    names = list(PHOTOGRAPHS)
    for number in numbers:
        name = names[number % len(names)]
        path = f"{name}/{number:06d}.jpg"
        data = _picture(name, recipe, number)
        (images / path).write_bytes(data)
        written.append((path, len(data)))
    return written


def _picture(name: str, recipe: PhotoRecipe, number: int) -> bytes:
    """Return the JPEG of one random crop."""
    rng = np.random.default_rng([recipe.seed, number])
    sides = (recipe.long_side, recipe.long_side * 3 // 4)
    width, height = sides if rng.random() < 0.7 else sides[::-1]
    photograph = _photograph(name)
    scale = min(photograph.width / width, photograph.height / height) * rng.uniform(0.5, 1.0)
    left = rng.uniform(0, photograph.width - width * scale)
    top = rng.uniform(0, photograph.height - height * scale)
    box = (left, top, left + width * scale, top + height * scale)
    crop = photograph.resize((width, height), Image.Resampling.BICUBIC, box=box)
    pixels = _grained(np.asarray(crop, dtype=np.float32), recipe.grain, rng)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=recipe.quality)
    return out.getvalue()


def _grained(pixels: NDArray[np.float32], grain: float, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Flip, brighten and add grain; shape (height, width, 3) in and out."""
    if rng.random() < 0.5:
        pixels = pixels[:, ::-1]
    height, width = pixels.shape[:2]
    y, x = (int(v) for v in rng.integers(0, 256, size=2))
    noise = _noise(y + height, x + width)[y : y + height, x : x + width, None]
    bright = pixels * np.float32(rng.uniform(0.75, 1.25)) + noise * np.float32(grain)
    return np.clip(bright, 0, 255).astype(np.uint8)


@lru_cache(maxsize=1)
def _noise_tile(side: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((side, side), dtype=np.float32)


def _noise(height: int, width: int) -> NDArray[np.float32]:
    side = 1 << (max(height, width) - 1).bit_length()
    return _noise_tile(max(side, 1024))


@lru_cache(maxsize=len(PHOTOGRAPHS))
def _photograph(name: str) -> Image.Image:
    with Image.open(_photograph_paths()[name]) as opened:
        return opened.convert("RGB")


@lru_cache(maxsize=1)
def _photograph_paths() -> dict[str, Path]:
    data = Path(str(importlib.resources.files("skimage"))) / "data"
    paths = {name: data / file for name, file in PHOTOGRAPHS.items()}
    missing = sorted(str(path) for path in paths.values() if not path.exists())
    if missing:
        raise MissingRequirementError(f"scikit-image does not ship {missing[0]}: install scikit-image 0.24 to 0.26")
    return paths
