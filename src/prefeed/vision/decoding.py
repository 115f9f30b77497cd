"""Decodes images: JPEGs with libjpeg-turbo through simplejpeg, all others with Pillow. Start with ``decode_jpeg``."""

from __future__ import annotations

import io
import os
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from prefeed.errors import ImageDecodeError
from prefeed.types import Buffer

try:
    import simplejpeg  # type: ignore[import-untyped]
    from PIL import Image, UnidentifiedImageError
except ImportError as err:
    raise ImportError(f"prefeed.vision needs {err.name}: pip install 'prefeed[vision]'") from err

Pixels = npt.NDArray[np.uint8]
"""RGB pixels of shape (height, width, 3)."""

_DIVISORS: Final = (8, 4, 2)
"""Scales at which libjpeg-turbo decodes faster than at full size.

It also has 3/8, 5/8, 3/4 and 7/8, without vector instructions: 3/8 takes 7.3 ms of a 1600 x 1200 picture, 1/2 takes
6.6, 5/8 to 7/8 take 10 to 14, full size 7.9. (libjpeg-turbo 3 in simplejpeg 1.9, November 2026)
"""

_REFUSALS: Final = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Exceptions of Pillow for bytes that it cannot decode."""

_PILLOWS: Final = ("CMYK", "YCCK")
"""Colour spaces that simplejpeg and Pillow convert to RGB with a difference of one level."""


def decode_jpeg(data: Buffer, min_size: int | tuple[int, int] | None = None) -> Pixels:
    """Decode an image, at the smallest scale of libjpeg that is large enough.

    At full size, the pixels are identical to those of Pillow's ``convert("RGB")``. As with Pillow, the orientation in EXIF data is
    not applied. Images that are not JPEGs, are in CMYK, or are damaged are decoded by Pillow at full size. PNG therefore works as
    well, and Pillow decides whether a damaged file is refused.

    Args:
        data: Encoded image, as bytes or a view of a cache. It is neither copied nor kept.
        min_size: Minimum size in pixels, of the shorter side or as (height, width). The smallest sufficient one of the scales 1,
            1/2, 1/4 and 1/8 is used. None for full size, which is also used if the image is smaller.

    Returns:
        RGB pixels of shape (height, width, 3), writable and not shared. A scaled side is rounded up.

    Raises:
        ImageDecodeError: The data is not an image, is truncated or damaged, or has more than twice
            ``PIL.Image.MAX_IMAGE_PIXELS``. An ``OSError``, like Pillow's own error.
        ValueError: ``min_size`` is not positive.

    **Threads and processes**: any number; the GIL is released while a JPEG is decoded.
    """
    picture = Encoded(data)
    min_height, min_width = (min_size, min_size) if isinstance(min_size, int) else (min_size or (None, None))
    return picture.decode(min_height, min_width)


class Encoded:
    """Encoded image, which is decoded once the required size is known.

    Args:
        data: Encoded image, which must not change before it is decoded.
        name: Name of the file, for errors.

    Raises:
        ImageDecodeError: The data is not an image.

    Attributes:
        height: Height at full size, in pixels.
        width: Width at full size, in pixels.
    """

    height: int
    width: int

    def __init__(self, data: Buffer, name: str | None = None) -> None:
        view = memoryview(data)
        self._data = view if view.c_contiguous else memoryview(bytes(view))  # simplejpeg ignores strides.
        self._name = name
        self._pillow: Image.Image | None = None
        self.height, self.width = self._size()

    def decode(self, min_height: float | None = None, min_width: float | None = None) -> Pixels:
        """Decode at the smallest scale that has at least these sides; at full size by default.

        Raises:
            ImageDecodeError: The image is truncated or damaged.
            ValueError: A side is not positive.
        """
        if self._pillow is None:
            by = self._divisor(min_height, min_width)
            try:
                return self._decode_scaled(by)
            except (
                ValueError
            ):  # Also raised for harmless faults, such as bytes between two segments, which Pillow accepts.
                self._open_in_pillow()
        return self._decode_in_pillow()

    def _size(self) -> tuple[int, int]:
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(self._data)
        except ValueError:  # Not a JPEG.
            height, width, colours = 0, 0, ""
        if not colours or colours in _PILLOWS:
            width, height = self._open_in_pillow().size
        most = Image.MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:  # The limit of Pillow, which libjpeg-turbo does not check.
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
            raise ValueError(f"min_size must be positive, not {min_height:g} x {min_width:g}")
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
        reason = "its bytes are not an image" if isinstance(err, UnidentifiedImageError) else str(err)
        return ImageDecodeError(
            f"{self._name or 'an image'} of {self._data.nbytes} bytes cannot be decoded: {reason}. Replace or remove it; "
            "PIL.ImageFile.LOAD_TRUNCATED_IMAGES = True reads the existing part of truncated files",
            name=self._name,
            size_bytes=self._data.nbytes,
        )


class Decoded:
    """Image that is already decoded.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
    """

    height: Any
    width: Any

    def __init__(self, pixels: Pixels) -> None:
        self.height, self.width = pixels.shape[:2]
        self._pixels = pixels

    def decode(self, min_height: float | None = None, min_width: float | None = None) -> Pixels:
        """Return the pixels at full size. Do not modify them, because they may belong to the caller."""
        return self._pixels


def picture_of(image: Any) -> Encoded | Decoded:
    """Convert any representation of an image to ``Encoded`` or ``Decoded``.

    Args:
        image: Bytes of a file; its path; the file, opened in binary mode; a PIL image; or a uint8 array, of
            shape (size,) for the bytes of a file and (height, width, 3) for RGB pixels.

    Raises:
        ImageDecodeError: The bytes are not an image.
        OSError: The file cannot be read.
        TypeError: The object has another type.
    """
    if isinstance(image, bytes | bytearray | memoryview):
        return Encoded(image)
    if isinstance(image, str | os.PathLike):
        with open(image, "rb") as file:  # With open(), which reads from the cache in loaders of prefeed.
            return Encoded(file.read(), os.fspath(image))
    if isinstance(image, Image.Image):
        return Decoded(np.array(image.convert("RGB")))
    if isinstance(image, np.ndarray):
        return _picture_of_array(image)
    if hasattr(image, "read"):
        name = getattr(image, "name", None)
        return Encoded(image.read(), name if isinstance(name, str) else None)
    raise TypeError(
        f"an image must be bytes, a path, a binary file, a PIL image or a numpy array, not {type(image).__qualname__}"
    )


def _picture_of_array(array: np.ndarray[Any, Any]) -> Encoded | Decoded:
    if array.dtype == np.uint8 and array.ndim == 1:
        return Encoded(array.data)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise TypeError(
            "an array must be uint8 of shape (height, width, 3) for pixels, or (size,) for the bytes of a file; "
            f"this is {array.dtype} of shape {array.shape}"
        )
    return Decoded(np.require(array, requirements=["C", "W"]))  # torch copies or warns otherwise.
