"""From an encoded picture to a network's input in as few steps as there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
import PIL
import simplejpeg  # type: ignore[import-untyped]
import torch
import torchvision
from torchvision.transforms import RandomHorizontalFlip, RandomResizedCrop
from torchvision.transforms.v2 import functional

from prefeed.vision.decoding import Decoded, Encoded, Pixels, picture_of
from prefeed.vision.normalizing import IMAGENET_MEAN, IMAGENET_STD, checked_dtype, normalized_levels

__all__ = ["ResizeCropNormalize"]

_MADE_WITH: Final = tuple(f"{module.__name__} {module.__version__}" for module in (simplejpeg, PIL, cv2, torchvision))
"""Whose results these are: other versions may round in other ways."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A box of a whole picture and the size to which it is resized, in pixels.

    Attributes:
        top: First row of the box, of the whole picture's pixels; left, height and width likewise.
        size: Height and width of the result.
        is_flipped: Left and right change places.
    """

    top: int
    left: int
    height: int
    width: int
    size: tuple[int, int]
    is_flipped: bool = False


class ResizeCropNormalize:
    """Makes a tensor of a picture: resize, crop and normalise, as torchvision's transforms on a PIL image do.

    ``train=False`` is ``Resize(resize)``, ``CenterCrop(crop)``; ``train=True`` is ``RandomResizedCrop(crop, scale,
    ratio)``, ``RandomHorizontalFlip(flip)``, drawing the same numbers from torch's generator in the same order, so that
    a seeded run sees the same crops; both then ``ToTensor()``, ``Normalize(mean, std)``.

    **How equal**: with ``reducing_gap=None`` a level of 0 to 255 differs by at most 2, on average by less than 0.1, and
    by less than 0.01 when it is made smaller by a third or more. With the default of 2.0 pictures that are at least
    four times too large in each direction are decoded at a smaller scale. They differ by less than 0.5 on average and
    99.9 % of the levels by at most 4; random crops, which then begin up to a quarter of a pixel elsewhere, by less
    than 1 on average and 99.9 % by at most 24. Of other pictures nothing changes.

    As ``transform=`` or ``loader=`` of torchvision's and prefeed's ``ImageFolder``, as ``decode=`` of
    ``prefeed.datasets.Objects``, or called. As a loader it gets the file and decodes it itself, which is most of the
    gain; as a transform it gets a PIL image.

    Args:
        resize: The shorter side, or (height, width), in pixels. With ``train=True`` not used.
        crop: The result's side, or (height, width), in pixels. Larger than what is resized: padded with black.
        mean: Of each channel, of values between 0 and 1; default: ImageNet's.
        std: Likewise.
        dtype: Of the result: float32, float16 or bfloat16.
        train: Crop at random.
        scale: Least and most share of the picture's area that a random crop has.
        ratio: Least and most width / height of a random crop.
        flip: How likely a random crop is flipped; 0 leaves the flip out, and draws no number for it.
        normalize: False: the result is uint8, for ``prefeed.vision.Normalize`` on the device.
        channels_last: Lay the result out as (height, width, 3); its shape stays (3, height, width).
        reducing_gap: A JPEG may be decoded at 1/2, 1/4 or 1/8 when what is resized then still has this many times the
            pixels of the result in each direction. None: always at full size. As Pillow's ``thumbnail``.

    Raises:
        ValueError: A size, ``mean``, ``std``, ``dtype``, ``flip`` or ``reducing_gap`` that cannot be.

    **Threads and processes**: any number at once; can be pickled.
    """

    def __init__(  # noqa: PLR0913 - torchvision's own parameters, of four transforms
        self,
        resize: int | tuple[int, int] = 256,
        crop: int | tuple[int, int] = 224,
        *,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        dtype: torch.dtype = torch.float32,
        train: bool = False,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        normalize: bool = True,
        channels_last: bool = False,
        reducing_gap: float | None = 2.0,
    ) -> None:
        _sides("resize", resize)
        self.resize = resize
        self.crop: tuple[int, int] = _sides("crop", crop)
        if len(mean) != 3:
            raise ValueError(f"mean and std must have three values: {tuple(mean)}")
        if not 0 <= flip <= 1:
            raise ValueError(f"flip must be a probability: {flip}")
        if reducing_gap is not None and reducing_gap < 1:
            raise ValueError(f"reducing_gap must be at least 1, or None: {reducing_gap}")
        self.dtype: Any = checked_dtype(dtype) if normalize else torch.uint8
        self.channels_last = channels_last
        self.reducing_gap = reducing_gap
        # torchvision's own: random draws in them are found by those that look, such as the caches of stages.
        self.random_crop: Any = RandomResizedCrop(self.crop, scale, ratio) if train else None
        self.random_flip: Any = RandomHorizontalFlip(flip) if train and flip else None
        self._table = _table(mean, std, dtype, channels_last) if normalize else None

    def __call__(self, image: Any) -> torch.Tensor:
        """Return the tensor of a picture, shape (3, height, width), in memory of its own.

        Args:
            image: The bytes of a file; its path; the file, opened in binary mode; a PIL image; or a uint8 array, of
                shape (size,) for a file's bytes and (height, width, 3) for RGB pixels.

        Raises:
            ImageDecodeError: It is no picture, or a damaged one; an ``OSError``.
            OSError: The file cannot be read.
            TypeError: It is none of these.
        """
        picture = picture_of(image)
        cut = self._draw_cut(picture) if self.random_crop is not None else self._whole(picture)
        resized = _resized(self._decoded(picture, cut), picture, cut)
        if self.random_crop is None:
            resized = functional.center_crop(resized, list(self.crop))
        pixels = resized.permute(1, 2, 0).numpy()
        return self._laid_out(np.asarray(cv2.flip(pixels, 1)) if cut.is_flipped else pixels)

    def __repr__(self) -> str:
        crop = (
            f"{self.random_crop}, {self.random_flip}" if self.random_crop else f"resize={self.resize}, crop={self.crop}"
        )
        return f"{type(self).__name__}({crop}, dtype={self.dtype}, reducing_gap={self.reducing_gap})"

    def prefeed_state(self) -> dict[str, Any]:
        """Return what its results depend on, for the caches of stages."""
        return {**vars(self), "made_with": _MADE_WITH}

    def _whole(self, picture: Encoded | Decoded) -> _Cut:
        height, width = picture.height, picture.width
        size = _size_of_shorter_side(height, width, self.resize) if isinstance(self.resize, int) else self.resize
        return _Cut(0, 0, height, width, size)

    def _draw_cut(self, picture: Encoded | Decoded) -> _Cut:
        """Draw from torch's generator what torchvision's transforms draw."""
        assert self.random_crop is not None
        shaped = torch.empty((3, picture.height, picture.width), device="meta")  # its size is all that is asked for
        top, left, height, width = self.random_crop.get_params(shaped, self.random_crop.scale, self.random_crop.ratio)
        is_flipped = self.random_flip is not None and bool(torch.rand(1) < self.random_flip.p)
        return _Cut(top, left, height, width, self.crop, is_flipped)

    def _decoded(self, picture: Encoded | Decoded, cut: _Cut) -> Pixels:
        if self.reducing_gap is None:
            return picture.decode()
        height, width = cut.size
        return picture.decode(
            self.reducing_gap * height * picture.height / cut.height,
            self.reducing_gap * width * picture.width / cut.width,
        )

    def _laid_out(self, pixels: Pixels) -> torch.Tensor:
        """Return pixels of shape (height, width, 3) as they are wanted: one allocation, one pass."""
        height, width, _ = pixels.shape
        shape = (height, width, 3) if self.channels_last else (3, height, width)
        out = torch.empty(shape, dtype=self.dtype)
        # numpy knows no bfloat16, and a table of 16 bits is looked up whatever they mean
        target = (out.view(torch.int16) if out.dtype.itemsize == 2 else out).numpy()
        if self._table is None:
            np.copyto(target, pixels) if self.channels_last else cv2.split(pixels, list(target))
        elif self.channels_last:
            cv2.LUT(pixels, self._table, dst=target)
        else:
            for plane, table, levels in zip(target, self._table, cv2.split(pixels), strict=True):
                cv2.LUT(levels, table, dst=plane)
        return out.permute(2, 0, 1) if self.channels_last else out


def _resized(pixels: Pixels, picture: Encoded | Decoded, cut: _Cut) -> torch.Tensor:
    """Return the box of a picture, of whose pixels there may be fewer than the whole has; (3, height, width)."""
    rows = _span(cut.top, cut.height, pixels.shape[0] / picture.height)
    columns = _span(cut.left, cut.width, pixels.shape[1] / picture.width)
    # torchvision's resize of bytes, not OpenCV's: Pillow's result within one level, and no slower. It takes 0.32 ms from
    # 500 x 375 to 341 x 256, Pillow 1.36, INTER_AREA 1.24; INTER_LINEAR takes 0.2 and lets through what aliases. (2026-11)
    box = np.ascontiguousarray(pixels[rows, columns])  # a view is resized in twice the time
    resized: torch.Tensor = functional.resize(torch.from_numpy(box).permute(2, 0, 1), list(cut.size), antialias=True)
    return resized


def _span(first: int, length: int, by: float) -> slice:
    """Return the pixels of a scaled side that show these pixels of the whole one; at least one."""
    start = round(first * by)
    return slice(start, max(round((first + length) * by), start + 1))


def _size_of_shorter_side(height: int, width: int, side: int) -> tuple[int, int]:
    """Return height and width when the shorter side becomes ``side``, rounded as torchvision does."""
    return (side, int(side * width / height)) if height <= width else (int(side * height / width), side)


def _table(mean: Sequence[float], std: Sequence[float], dtype: torch.dtype, channels_last: bool) -> npt.NDArray[Any]:
    """Return what ``cv2.LUT`` looks up: shape (3, 256), or (1, 256, 3) for pixels of three channels at once."""
    table = normalized_levels(mean, std, dtype)
    numbers = (table.view(torch.int16) if dtype.itemsize == 2 else table).numpy()
    return np.ascontiguousarray(numbers.T[None]) if channels_last else numbers


def _sides(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """Return height and width, where one number stands for both."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or min(sides) < 1:
        raise ValueError(f"{name} must be a positive number of pixels, or (height, width): {size}")
    return sides
