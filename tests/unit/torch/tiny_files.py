"""One tiny file of each format that torchvision's data sets are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse
from PIL import Image


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), "white").save(path)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def mat(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, content)


def flo(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PIEH" + np.array([2, 2], dtype="<i4").tobytes() + np.zeros(8, dtype="<f4").tobytes())


def pfm(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PF\n2 2\n-1.0\n" + np.zeros(12, dtype="<f4").tobytes())


def flow_png(path: Path) -> None:
    """Three channels of 16 bits, which torchvision decodes and Pillow cannot write."""
    image(path)  # 8 bits will do: the decoder widens


def folder(root: Path, name: str = "folder") -> Path:
    for label in ("cat", "dog"):
        for number in range(2):
            image(root / name / label / f"{number}.png")
    return root / name
