"""Whatever a data set hands over is the same picture."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from prefeed.errors import ImageDecodeError
from prefeed.vision.decoding import picture_of

FORMS: dict[str, Callable[[Path], Any]] = {
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "view": lambda path: memoryview(path.read_bytes()),
    "str": str,
    "path": lambda path: path,
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "PIL image": lambda path: Image.open(io.BytesIO(path.read_bytes())),
    "array of the file": lambda path: np.frombuffer(path.read_bytes(), np.uint8),
    "array of pixels": lambda path: np.asarray(Image.open(io.BytesIO(path.read_bytes()))),
    "array read backwards": lambda path: np.asarray(Image.open(io.BytesIO(path.read_bytes())))[:, ::-1][:, ::-1],
}


@pytest.fixture
def path(photos: dict[str, list[bytes]], tmp_path: Path) -> Path:
    path = tmp_path / "photo.jpg"
    path.write_bytes(photos["small"][0])
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_picture(form: str, path: Path) -> None:
    wanted = np.asarray(Image.open(io.BytesIO(path.read_bytes())))

    picture = picture_of(FORMS[form](path))

    assert (picture.height, picture.width, 3) == wanted.shape
    assert np.array_equal(picture.decode(), wanted)


def test_an_open_file_is_read_from_where_it_is(path: Path, tmp_path: Path) -> None:
    with open(path, "rb") as file:
        assert picture_of(file).height in (375, 500)
    (tmp_path / "packed").write_bytes(b"head" + path.read_bytes())
    with open(tmp_path / "packed", "rb") as file:
        file.seek(4)
        assert picture_of(file).decode().shape[2] == 3


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
def test_images_of_other_modes_become_rgb(mode: str, photo: Image.Image) -> None:
    image = photo.convert(mode)

    assert np.array_equal(picture_of(image).decode(), np.asarray(image.convert("RGB")))


def test_errors_name_the_file(path: Path) -> None:
    path.write_bytes(b"no picture")

    with pytest.raises(ImageDecodeError, match=f"^{path} of 10 bytes"):
        picture_of(path)
    with pytest.raises(ImageDecodeError, match=f"^{path} of 10 bytes"), open(path, "rb") as file:
        picture_of(file)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        picture_of("nowhere.jpg")


@pytest.mark.parametrize("wrong", [None, 3, torch.zeros(3, 4, 4), ["a.jpg"]])
def test_what_is_no_picture_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="an image must be bytes, a path"):
        picture_of(wrong)


@pytest.mark.parametrize("shape", [(4, 4), (3, 4, 4), (4, 4, 4), (0, 4, 3)])
def test_arrays_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match=r"must be uint8 of shape \(height, width, 3\)"):
        picture_of(np.zeros(shape, np.uint8))
    with pytest.raises(TypeError, match="this is float32"):
        picture_of(np.zeros((4, 4, 3), np.float32))
