"""Pillow's images in entries of stage caches."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.stage_cache.codec import Encoder, decode

MODES = [
    "1",
    "L",
    "P",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "LA",
    "PA",
    "RGBX",
    "RGBa",
    "La",
    "I;16",
]


def round_trip(sample: Any, *, copy: bool = True) -> Any:
    return decode(memoryview(bytes(Encoder().encode(sample))), copy=copy)


def picture(mode: str, size: tuple[int, int] = (13, 7)) -> Image.Image:
    image = Image.new(mode, size)
    num_bytes = len(image.tobytes())
    image.frombytes(np.random.default_rng(1).bytes(num_bytes) if mode != "F" else bytes(num_bytes))
    return image


@pytest.mark.parametrize("mode", MODES)
def test_images_of_every_mode_come_back(mode: str) -> None:
    image = picture(mode)
    back = round_trip([image], copy=False)[0]

    assert type(back) is Image.Image
    assert (back.mode, back.size, back.tobytes()) == (mode, image.size, image.tobytes())
    assert back == image


def test_palettes_come_back() -> None:
    image = picture("P")
    image.putpalette(list(range(256)) * 3)
    with_alpha = picture("P")
    with_alpha.putpalette([value % 256 for value in range(1024)], "RGBA")

    for one in (image, with_alpha, image.quantize(7)):
        back = round_trip(one)
        assert back == one
        assert back.getpalette("RGBA") == one.getpalette("RGBA")
        assert back.convert("RGBA").tobytes() == one.convert("RGBA").tobytes()


def test_transparency_and_orientation_matter_to_later_steps_and_come_back() -> None:
    image = picture("P")
    image.putpalette(list(range(256)) * 3)
    image.info = {"transparency": 3, "dpi": (72, 72), "odd": object()}
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = picture("RGB")
    turned.info["exif"] = exif.tobytes()

    back = round_trip([image, turned])

    assert back[0].info == {"transparency": 3, "dpi": (72, 72)}
    assert back[0].convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    assert back[1].getexif()[0x0112] == 6
    assert ImageOps.exif_transpose(back[1]).size == (7, 13)


def test_an_opened_file_comes_back_as_a_plain_image() -> None:
    data = io.BytesIO()
    picture("RGB").save(data, "PNG")

    with Image.open(data) as opened:
        back = round_trip({"image": opened})["image"]

    assert type(back) is Image.Image
    assert back.tobytes() == picture("RGB").tobytes()


def test_images_can_be_written_to() -> None:
    back = round_trip(picture("RGB"), copy=False)
    back.putpixel((0, 0), (1, 2, 3))

    assert back.getpixel((0, 0)) == (1, 2, 3)


def test_images_without_pixels_come_back() -> None:
    assert round_trip(Image.new("RGB", (0, 3))).size == (0, 3)


def test_a_file_that_cannot_be_read_is_refused() -> None:
    data = io.BytesIO()
    picture("RGB", (200, 200)).save(data, "PNG")
    with Image.open(io.BytesIO(data.getvalue()[:2000])) as cut, pytest.raises(CannotEncodeError, match="has no pixels"):
        round_trip(cut)


def test_a_size_beyond_the_payload_is_refused() -> None:
    entry = bytearray(Encoder().encode(picture("RGB", (1000, 3))))
    at = bytes(entry).index(b"\xcd\x03\xe8")
    entry[at : at + 3] = b"\xcd\xff\xff"

    with pytest.raises(EntryFormatError, match="65535 x 3"):
        decode(memoryview(entry))
