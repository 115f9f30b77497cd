"""Whatever a data set hands over, as a picture: its size first, its pixels when they are asked for."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from PIL import Image

from prefeed.vision.decoding import Encoded, Pixels

__all__ = ["Decoded", "picture_of"]


class Decoded:
    """A picture whose pixels are there.

    Attributes:
        height: In pixels.
        width: Likewise.
    """

    def __init__(self, pixels: Pixels) -> None:
        self.height, self.width = pixels.shape[:2]
        self._pixels = pixels

    def decode(self, min_height: float | None = None, min_width: float | None = None) -> Pixels:
        """Return the pixels, always at full size; they may be the caller's own and are not to be written."""
        return self._pixels


def picture_of(image: Any) -> Encoded | Decoded:
    """Return the picture that something is or holds.

    Args:
        image: The bytes of a file; its path; the file, opened in binary mode; a PIL image; or an array of bytes, of
            shape (size,) for a file's bytes and (height, width, 3) for RGB pixels.

    Raises:
        ImageDecodeError: The bytes are no picture.
        OSError: The file cannot be read.
        TypeError: It is none of these.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return Encoded(image)
    if isinstance(image, str | os.PathLike):
        with open(image, "rb") as file:  # by open(), which prefeed's loaders answer from the cache
            return Encoded(file.read(), os.fspath(image))
    if isinstance(image, Image.Image):
        return Decoded(np.array(image.convert("RGB")))
    if isinstance(image, np.ndarray):
        return _picture_of_array(image)
    if hasattr(image, "read"):
        name = getattr(image, "name", None)
        return Encoded(image.read(), name if isinstance(name, str) else None)
    raise TypeError(
        f"a picture is bytes, a path, a binary file, a PIL image or a numpy array, not {type(image).__qualname__}"
    )


def _picture_of_array(array: np.ndarray[Any, Any]) -> Encoded | Decoded:
    if array.dtype == np.uint8 and array.ndim == 1:
        return Encoded(array.data)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise TypeError(
            "an array of pixels must be uint8 of shape (height, width, 3), or (size,) for a file's bytes; "
            f"this is {array.dtype} of shape {array.shape}"
        )
    return Decoded(np.require(array, requirements=["C", "W"]))  # torch takes no other without a copy or a warning
