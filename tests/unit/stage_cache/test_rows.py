"""Rows of stage caches: kinds of values that pickle alone would copy, change or refuse."""

from __future__ import annotations

import io
import math
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torchvision import tv_tensors

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.stage_cache.rows import Row, encode
from stage_samples import Point, Shape, Slotted, same


def row_of(sample: Any) -> Row:
    return Row.open(memoryview(b"".join(encode(sample))))


def round_trip(sample: Any, *, copy: bool = True) -> Any:
    return row_of(sample).load(copy=copy)


# ---------------------------------------------------------------- tensors

DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor of random bits, NaNs with payloads among them."""
    generator = torch.Generator().manual_seed(1)
    num_bytes = math.prod(shape) * dtype.itemsize
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).view(shape)


def has_elements(dtype: torch.dtype) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of experimental ones
        try:
            tensor_of(dtype, 2).clone()
        except (RuntimeError, NotImplementedError, TypeError):
            return False
    return True


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support is experimental")
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if has_elements(dtype)], ids=str)
def test_tensors_of_every_dtype_come_back_bit_by_bit(dtype: torch.dtype, copy: bool) -> None:
    tensor = tensor_of(dtype, 3, 40, 50)
    for shaped in (tensor, tensor.permute(2, 0, 1), tensor[::2, 1:], tensor[0, 0, 0], tensor[:0], tensor[:, :0]):
        back = round_trip({"a": [shaped]}, copy=copy)["a"][0]
        assert (back.dtype, back.shape) == (dtype, shaped.shape)
        assert same(back, shaped)


def test_the_order_of_dimensions_stays_and_gaps_do_not() -> None:
    tensor = torch.rand(2, 3, 40, 50)
    last = tensor.to(memory_format=torch.channels_last)

    assert round_trip(last).stride() == last.stride()
    assert round_trip(tensor[:, ::2]).is_contiguous()
    assert row_of(tensor[0]).layout.row_bytes < tensor.nbytes


def test_elements_are_written_from_the_memory_of_the_sample() -> None:
    tensor, array = torch.rand(3, 50, 50), np.ones((50, 50))
    parts = encode((tensor, array))

    addresses = [np.frombuffer(part, np.uint8).ctypes.data for part in parts]
    assert tensor.data_ptr() in addresses
    assert array.ctypes.data in addresses


@pytest.mark.parametrize("copy", [True, False])
def test_copies_can_be_written_to_and_views_are_over_the_row(copy: bool) -> None:
    data = bytearray(b"".join(encode((torch.arange(1000), np.arange(1000)))))
    tensor, array = Row.open(memoryview(data)).load(copy=copy)
    data[-8:] = bytes(8)

    assert array.flags.writeable is copy
    assert array[-1] == (999 if copy else 0)
    if copy:
        tensor += 1
        assert tensor[-1] == 1000


def test_requires_grad_stays() -> None:
    back = round_trip([torch.ones(2, requires_grad=True), torch.ones(2), torch.nn.Parameter(torch.ones(500))])

    assert [tensor.requires_grad for tensor in back] == [True, False, True]
    assert type(back[2]) is torch.nn.Parameter


TV = [
    tv_tensors.Image(tensor_of(torch.uint8, 3, 40, 50)),
    tv_tensors.Mask(torch.zeros(4, 5, dtype=torch.bool)),
    tv_tensors.BoundingBoxes(torch.ones(2, 4), format="CXCYWH", canvas_size=(7, 9)),
]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("sample", TV, ids=lambda sample: type(sample).__name__)
def test_tensors_of_torchvision_keep_class_and_metadata(sample: torch.Tensor, copy: bool) -> None:
    back = round_trip(Point(sample, 1), copy=copy).x

    assert same(back, sample)
    assert vars(back) == vars(sample)


class Annotated(torch.Tensor):
    """A subclass of the user's."""


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds_are_pickled_as_torch_does() -> None:
    annotated = torch.rand(400).as_subclass(Annotated)
    annotated.name_of_mine = "a"  # type: ignore[attr-defined]
    conjugated = torch.rand(400, dtype=torch.complex64).conj()
    quantized = torch.quantize_per_tensor(torch.rand(400), 0.1, 0, torch.quint8)
    sparse = torch.eye(300).to_sparse()
    back = round_trip([annotated, conjugated, quantized, sparse, torch.empty(3, device="meta"), annotated.shape])

    assert type(back[0]) is Annotated
    assert back[0].name_of_mine == "a"
    assert torch.equal(back[0], annotated)
    assert torch.equal(back[1], conjugated)
    assert torch.equal(back[2].int_repr(), quantized.int_repr())
    assert torch.equal(back[3].to_dense(), sparse.to_dense())
    assert back[4].is_meta
    assert type(back[5]) is torch.Size


# ---------------------------------------------------------------- arrays and others


def test_mapped_arrays_come_back_as_arrays(tmp_path: Path) -> None:
    np.arange(1000).tofile(tmp_path / "tokens")
    mapped = np.memmap(tmp_path / "tokens", np.int64, "r")

    for back in (round_trip(mapped), round_trip(mapped[3:500:2])):
        assert type(back) is np.ndarray
    assert round_trip(mapped)[-1] == 999


def test_gaps_between_fields_do_not_count() -> None:
    dtype = np.dtype({"names": ["a", "b"], "formats": ["u1", "i8"], "offsets": [0, 16], "itemsize": 32})
    one, other = (np.frombuffer(bytes([filler]) * 3200, dtype).copy() for filler in (1, 2))
    for array in (one, other):
        array["a"], array["b"] = 1, range(100)

    assert row_of(one).has_bytes_of(row_of(other))
    assert same(round_trip(one)["b"], one["b"].copy())


def test_arrays_of_objects_and_dates_come_back() -> None:
    for array in (np.array(["2020"], "M8[Y]").repeat(500), np.zeros(900, ">f8")):
        assert same(round_trip(array), array)
    assert round_trip(np.array([None, "a"])).tolist() == [None, "a"]


def test_classes_keep_their_state_and_shared_objects_stay_one() -> None:
    shared = [1]
    back = round_trip([shared, shared, Shape("a", [Point(1, shared)]), Slotted(1, (shared,))])

    assert back[0] is back[1] is back[2].points[0].y is back[3].b[0]
    assert same(back[2], Shape("a", [Point(1, shared)]))


@pytest.mark.parametrize("sample", [threading.Lock(), [lambda: None], {"a": (1, io.BytesIO().getbuffer())}])
def test_a_sample_that_cannot_be_pickled_is_refused_with_its_type(sample: Any) -> None:
    with pytest.raises(CannotEncodeError, match="cannot be pickled") as caught:
        encode(sample)
    assert caught.value.details["type"].rpartition(".")[2] == type(sample).__name__


class Vanishing:
    """A class that another process does not have."""


def test_a_class_that_no_longer_exists_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    row = row_of(Vanishing())
    monkeypatch.delattr(f"{__name__}.Vanishing")

    with pytest.raises(EntryFormatError, match="Vanishing"):
        row.load()


# ---------------------------------------------------------------- images

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


def picture(mode: str, size: tuple[int, int] = (43, 37)) -> Image.Image:
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
    image.info = {"transparency": 3, "dpi": (72, 72)}
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = picture("RGB")
    turned.info["exif"] = exif.tobytes()
    back = round_trip([image, turned])

    assert back[0].info == image.info
    assert back[0].convert("RGBA").tobytes() == image.convert("RGBA").tobytes()
    assert ImageOps.exif_transpose(back[1]).size == (37, 43)


def test_an_opened_file_comes_back_as_a_plain_image_that_can_be_written_to() -> None:
    data = io.BytesIO()
    picture("RGB").save(data, "PNG")
    with Image.open(data) as opened:
        back = round_trip({"image": opened}, copy=False)["image"]

    assert type(back) is Image.Image
    assert back.tobytes() == picture("RGB").tobytes()
    back.putpixel((0, 0), (1, 2, 3))
    assert back.getpixel((0, 0)) == (1, 2, 3)


def test_an_image_that_cannot_be_read_is_refused() -> None:
    data = io.BytesIO()
    picture("RGB", (200, 200)).save(data, "PNG")
    with Image.open(io.BytesIO(data.getvalue()[:2000])) as cut, pytest.raises(CannotEncodeError, match="truncated"):
        encode(cut)


def test_images_without_pixels_come_back() -> None:
    assert round_trip(Image.new("RGB", (0, 3))).size == (0, 3)
