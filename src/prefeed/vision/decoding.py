"""Encoded pictures to pixels: libjpeg-turbo through simplejpeg, and Pillow for all that is no plain JPEG."""

from __future__ import annotations

import io
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from prefeed.errors import ImageDecodeError
from prefeed.types import Buffer

try:
    import simplejpeg  # type: ignore[import-untyped]
    from PIL import Image, UnidentifiedImageError
except ImportError as err:
    raise ImportError(f"prefeed.vision needs {err.name}: pip install 'prefeed[vision]' pillow") from err

Pixels = npt.NDArray[np.uint8]
"""RGB, shape (height, width, 3)."""

_DIVISORS: Final = (8, 4, 2)
"""Scales at which libjpeg-turbo decodes faster than at full size.

It also has 3/8, 5/8, 3/4 and 7/8, without vector instructions: 3/8 takes 7.3 ms of a 1600 x 1200 picture, 1/2 takes
6.6, 5/8 to 7/8 take 10 to 14, full size 7.9. (libjpeg-turbo 3 in simplejpeg 1.9, November 2026)
"""

_REFUSALS: Final = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""What Pillow raises for bytes that it does not decode."""

_PILLOWS: Final = ("CMYK", "YCCK")
"""Colours that simplejpeg converts to RGB in another way than Pillow, by one level."""


def decode_jpeg(data: Buffer, min_size: int | tuple[int, int] | None = None) -> Pixels:
    """Return a picture's pixels, at a scale that libjpeg decodes without computing the rest.

    At full size the pixels are those of Pillow's ``convert("RGB")``, bit by bit. Not applied, as by Pillow: the
    orientation in EXIF data. What is no JPEG, is in CMYK, or has something wrong with it is decoded by Pillow, at full
    size; so PNG works, too, and whether a damaged file is read or refused is for Pillow to say.

    Args:
        data: The encoded picture; bytes, or a view of a cache: it is not copied, nor kept.
        min_size: In pixels. An int: the smallest of the scales 1, 1/2, 1/4, 1/8 at which the shorter side is not
            below it. A pair: (height, width), neither below its own. None, and a picture that is smaller: full size.

    Returns:
        Shape (height, width, 3), RGB, writable and not shared. A scaled side is rounded up.

    Raises:
        ImageDecodeError: It is no picture, or one that is truncated or damaged, or has more than twice
            ``PIL.Image.MAX_IMAGE_PIXELS``; an ``OSError``, as Pillow's own.
        ValueError: ``min_size`` is not positive.

    **Threads and processes**: any number; the GIL is released while a JPEG is decoded.
    """
    picture = Encoded(data)
    min_height, min_width = (min_size, min_size) if isinstance(min_size, int) else (min_size or (None, None))
    return picture.decode(min_height, min_width)


class Encoded:
    """A picture that is decoded when it is known how large it must be.

    Args:
        data: The encoded picture; must not change until it is decoded.
        name: Its file, for errors.

    Raises:
        ImageDecodeError: It is no picture.

    Attributes:
        height: Of the whole picture in pixels.
        width: Likewise.
    """

    height: int
    width: int

    def __init__(self, data: Buffer, name: str | None = None) -> None:
        view = memoryview(data)
        self._data = view if view.c_contiguous else memoryview(bytes(view))  # simplejpeg does not look at strides
        self._name = name
        self._pillow: Image.Image | None = None
        self.height, self.width = self._size()

    def decode(self, min_height: float | None = None, min_width: float | None = None) -> Pixels:
        """Return the pixels, at the smallest scale whose sides are not below these; full size by default.

        Raises:
            ImageDecodeError: It is truncated or damaged.
            ValueError: A side is not positive.
        """
        if self._pillow is None:
            by = self._divisor(min_height, min_width)
            try:
                return self._decode_scaled(by)
            except ValueError:  # also for what others read without a word, such as bytes between two segments
                self._open_in_pillow()
        return self._decode_in_pillow()

    def _size(self) -> tuple[int, int]:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(self._data)
        except ValueError:  # no JPEG
            height, width, colours = 0, 0, ""
        if not colours or colours in _PILLOWS:
            width, height = self._open_in_pillow().size
        most = Image.MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:  # Pillow's own rule, which libjpeg-turbo does not know
            raise self._undecodable(
                Image.DecompressionBombError(
                    f"its {width} x {height} pixels are more than 2 x PIL.Image.MAX_IMAGE_PIXELS"
                )
            )
        return height, width

    def _divisor(self, min_height: float | None, min_width: float | None) -> int:
        if min_height is None or min_width is None:
            return 1
        if min_height <= 0 or min_width <= 0:
            raise ValueError(f"the least size of a picture must be positive: {min_height:g} x {min_width:g}")
        return next(
            (by for by in _DIVISORS if -(-self.height // by) >= min_height and -(-self.width // by) >= min_width), 1
        )

    def _decode_scaled(self, by: int) -> Pixels:
        height, width = -(-self.height // by), -(-self.width // by)
        pixels: Pixels = simplejpeg.decode_jpeg(self._data, min_height=height, min_width=width)
        return pixels

    def _open_in_pillow(self) -> Image.Image:
        try:
            self._pillow = Image.open(io.BytesIO(self._data))
        except _REFUSALS as err:
            raise self._undecodable(err) from err
        return self._pillow

    def _decode_in_pillow(self) -> Pixels:
        assert self._pillow is not None
        try:
            return np.array(self._pillow.convert("RGB"))
        except _REFUSALS as err:
            raise self._undecodable(err) from err

    def _undecodable(self, err: Exception) -> ImageDecodeError:
        what = "its bytes are not a picture" if isinstance(err, UnidentifiedImageError) else str(err)
        return ImageDecodeError(
            f"{self._name or 'a picture'} of {self._data.nbytes} bytes cannot be decoded: {what}. Replace or remove it; "
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True reads as much of truncated files as there is",
            name=self._name,
            size_bytes=self._data.nbytes,
        )


class Decoded:
    """A picture whose pixels are there.

    Attributes:
        height: In pixels.
        width: Likewise.
    """

    height: Any
    width: Any

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
