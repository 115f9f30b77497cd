"""The data of the programs: small pieces of real photographs, made once a session, in the layouts that they want."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from prefeed_bench.photos import PhotoRecipe, make_photos

NUM_PICTURES = 40
NUM_PAIRS = 24
NUM_VALIDATED = 8
"""Of a detector's pictures; the others are trained on."""

_LONG_SIDE, _SIDE = 96, 64
_NUM_TOKENS = 4096


def write_data(root: Path) -> Path:
    """Write ``classes``, ``pairs``, ``detection`` and ``tokens`` below ``root``; return it.

    ``classes`` has a folder a class; ``pairs`` pictures in ``imgs`` and their masks, black, grey and white, in ``masks``;
    ``detection`` what ultralytics wants, a box a picture; ``tokens`` 16-bit numbers.
    """
    recipe = PhotoRecipe(num_photos=NUM_PICTURES, long_side=_LONG_SIDE)
    made = make_photos(recipe, cache_dir=root / "photos", num_processes=1)
    pictures = sorted(made.root.glob("*/*.jpg"), key=lambda path: path.name)
    for path in pictures:
        _copy(path, root / "classes" / path.parent.name / path.name)
    for path in pictures[:NUM_PAIRS]:
        _write_pair(path, root / "pairs" / "imgs" / path.name, root / "pairs" / "masks" / f"{path.stem}_mask.png")
    for number, path in enumerate(pictures[:NUM_PAIRS]):
        part = "val" if number < NUM_VALIDATED else "train"
        _copy(path, root / "detection" / "images" / part / path.name)
        label = root / "detection" / "labels" / part / f"{path.stem}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text(f"{number % 2} 0.5 0.5 {0.3 + 0.02 * number:.2f} 0.5\n")
    tokens = np.random.default_rng(0).integers(0, 256, _NUM_TOKENS, dtype=np.uint16)
    (root / "tokens").mkdir()
    for part in ("train", "val"):
        tokens.tofile(root / "tokens" / f"{part}.bin")
    return root


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, to)


def _write_pair(picture: Path, image: Path, mask: Path) -> None:
    """Write a square piece of a picture, and which of its points are black, grey and white."""
    with Image.open(picture) as opened:
        piece = opened.crop((0, 0, _SIDE, _SIDE))
    for path in (image, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    piece.save(image)
    Image.fromarray(np.digitize(np.asarray(piece.convert("L")), [85, 170]).astype(np.uint8) * 127).save(mask)
