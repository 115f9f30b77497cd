"""Pixels are Pillow's; scales are libjpeg's; whatever is no plain JPEG has a defined outcome."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile

from prefeed.errors import ImageDecodeError
from prefeed.vision import decode_jpeg
from prefeed.vision.decoding import Encoded

pytestmark = pytest.mark.usefixtures("sandbox")


def encoded(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def upright_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x112] = 6  # to be turned by 90 degrees
    return exif


def with_bytes_between_segments(image: Image.Image) -> bytes:
    data = bytearray(encoded(image))
    middle = data.index(b"\xff\xda") + 300
    data[middle:middle] = b"\xff\x00\x00"
    return bytes(data)


FORMS = {
    "plain": encoded,
    "progressive": lambda image: encoded(image, progressive=True),
    "colours at full size": lambda image: encoded(image, subsampling=0),
    "colours at half width": lambda image: encoded(image, subsampling=1),
    "restart markers": lambda image: encoded(image, restart_marker_blocks=4),
    "kept in RGB": lambda image: encoded(image, keep_rgb=True),
    "grey": lambda image: encoded(image.convert("L")),
    "CMYK": lambda image: encoded(image.convert("CMYK")),
    "to be turned": lambda image: encoded(image, exif=upright_exif()),
    "something after the end": lambda image: encoded(image) + b"more",
    "something between": with_bytes_between_segments,
    "PNG": lambda image: encoded(image, "PNG"),
    "PNG with transparency": lambda image: encoded(image.convert("RGBA"), "PNG"),
    "PNG with a palette": lambda image: encoded(image.quantize(16), "PNG"),
    "PNG of 16 bits": lambda image: encoded(image.convert("I;16"), "PNG"),
    "WebP": lambda image: encoded(image, "WEBP"),
}


@pytest.mark.parametrize("form", FORMS)
def test_pixels_are_pillows_bit_by_bit(form: str, photo: Image.Image) -> None:
    data = FORMS[form](photo)

    pixels = decode_jpeg(data)

    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert np.array_equal(pixels, by_pillow(data))


def test_photographs_are_pillows_bit_by_bit(photos: dict[str, list[bytes]]) -> None:
    for data in photos["small"] + photos["large"][:2]:
        assert np.array_equal(decode_jpeg(data), by_pillow(data))


@pytest.mark.parametrize("wrap", [bytearray, memoryview, lambda data: memoryview(data + data)[: len(data)]])
def test_any_buffer_will_do(wrap: Any, photo: Image.Image) -> None:
    data = encoded(photo)

    assert np.array_equal(decode_jpeg(wrap(data)), by_pillow(data))


def test_a_view_with_gaps_is_read_as_what_it_shows(photo: Image.Image) -> None:
    data = encoded(photo)
    spread = bytes(byte for pair in zip(data, bytes(len(data)), strict=True) for byte in pair)

    assert np.array_equal(decode_jpeg(memoryview(spread)[::2]), by_pillow(data))


# ---------------------------------------------------------------- scales


@pytest.mark.parametrize(
    ("min_size", "shape"),
    [
        (None, (375, 500)),
        (1, (47, 63)),
        (47, (47, 63)),
        (48, (94, 125)),
        (94, (94, 125)),
        (95, (188, 250)),
        (188, (188, 250)),
        (189, (375, 500)),
        (375, (375, 500)),
        (1000, (375, 500)),
        ((94, 125), (94, 125)),
        ((94, 126), (188, 250)),
        ((95, 1), (188, 250)),
    ],
)
def test_the_smallest_scale_that_is_not_below(min_size: Any, shape: tuple[int, int], photo: Image.Image) -> None:
    landscape = photo.resize((500, 375))

    assert decode_jpeg(encoded(landscape), min_size).shape == (*shape, 3)


@pytest.mark.parametrize("form", ["plain", "progressive", "grey", "colours at full size", "colours at half width"])
@pytest.mark.parametrize("by", [2, 4, 8])
def test_a_scaled_picture_shows_the_whole(form: str, by: int, photo: Image.Image) -> None:
    data = FORMS[form](photo.crop((0, 0, 368, 368)))  # whole blocks
    height, width = 368 // by, 368 // by

    pixels = decode_jpeg(data, (height, width))

    averaged = Image.fromarray(by_pillow(data)).resize((width, height), Image.Resampling.BOX)
    assert pixels.shape == (height, width, 3)
    assert np.abs(pixels.astype(int) - np.asarray(averaged)).mean() < 5


def test_what_pillow_decodes_is_at_full_size(photo: Image.Image) -> None:
    for form in ("CMYK", "PNG", "WebP"):
        assert decode_jpeg(FORMS[form](photo), 10).shape == (photo.height, photo.width, 3)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (1, 700), (17, 9)])
def test_tiny_pictures_have_scales_too(size: tuple[int, int], photo: Image.Image) -> None:
    width, height = size
    data = encoded(photo.resize(size))

    assert decode_jpeg(data).shape == (height, width, 3)
    assert decode_jpeg(data, 1).shape == (-(-height // 8), -(-width // 8), 3)


@pytest.mark.parametrize("min_size", [0, -1, (0, 5)])
def test_a_size_that_cannot_be_is_refused(min_size: Any, photo: Image.Image) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        decode_jpeg(encoded(photo), min_size)


# ---------------------------------------------------------------- damage


def damaged(photo: Image.Image) -> dict[str, bytes]:
    data = encoded(photo)
    return {
        "nothing": b"",
        "no picture": b"<html>not found</html>",
        "the first bytes": data[:100],
        "half": data[: len(data) // 2],
        "all but the end": data[:-2],
        "half a PNG": encoded(photo, "PNG")[:5000],
    }


@pytest.mark.parametrize("what", damaged(Image.new("RGB", (64, 64))))
@pytest.mark.parametrize("min_size", [None, 10])
def test_what_cannot_be_decoded_is_an_error_with_its_size(what: str, min_size: int | None, photo: Image.Image) -> None:
    data = damaged(photo)[what]

    with pytest.raises(
        ImageDecodeError, match=rf"an image of {len(data)} bytes cannot be decoded: .*Replace"
    ) as caught:
        decode_jpeg(data, min_size)

    assert isinstance(caught.value, OSError)  # as Pillow's own
    assert caught.value.details == {"name": None, "size_bytes": len(data)}


def claiming(data: bytes, form: str, width: int, height: int) -> bytes:
    """Return a picture whose header tells another size."""
    at, sizes = {
        "JPEG": (data.find(b"\xff\xc0") + 5, struct.pack(">HH", height, width)),
        "PNG": (16, struct.pack(">II", width, height)),
        "BMP": (18, struct.pack("<ii", width, height)),
    }[form]
    return data[:at] + sizes + data[at + len(sizes) :]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "BMP"])
@pytest.mark.parametrize("min_size", [None, 10])
def test_no_memory_is_taken_for_a_size_that_pillow_refuses(form: str, min_size: int | None, photo: Image.Image) -> None:
    data = claiming(encoded(photo, form), form, 65500, 65500)

    with pytest.raises(ImageDecodeError, match="cannot be decoded"):
        decode_jpeg(data, min_size)


def test_how_large_a_picture_may_be_is_pillows_to_say(photo: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photo)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", photo.width * photo.height // 2 - 1)
    with pytest.raises(ImageDecodeError, match="MAX_IMAGE_PIXELS"):
        decode_jpeg(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert decode_jpeg(data).shape == (photo.height, photo.width, 3)


def test_the_error_names_the_file(photo: Image.Image) -> None:
    with pytest.raises(
        ImageDecodeError, match=r"^cats/1\.jpg of 22 bytes cannot be decoded: its bytes are not an image"
    ):
        Encoded(b"<html>not found</html>", "cats/1.jpg")


def test_truncated_files_are_read_where_pillow_is_told_to(photo: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photo)[:-3000]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)

    assert np.array_equal(decode_jpeg(data), by_pillow(data))


def test_works_without_torch() -> None:
    code = "import sys; from prefeed.vision import decode_jpeg; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
