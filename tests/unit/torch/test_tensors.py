"""Tensors in entries of stage caches."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from prefeed.errors import CannotEncodeError, EntryFormatError
from prefeed.stage_cache.codec import Encoder, decode
from prefeed.torch.tensors import _NAMES
from stage_samples import Point, same

DTYPES = [getattr(torch, name) for name in _NAMES if hasattr(torch, name)]


def encoded(sample: Any) -> memoryview:
    return memoryview(bytes(Encoder().encode(sample)))


def tensor_of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Return a tensor of random bits, NaNs with payloads among them."""
    generator = torch.Generator().manual_seed(1)
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (num_bytes,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).view(shape)


@pytest.mark.filterwarnings("ignore:B?Complex(Half|32) support is experimental")
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_come_back_bit_by_bit(dtype: torch.dtype, copy: bool) -> None:
    tensor = tensor_of(dtype, 3, 4, 5)
    for shaped in (tensor, tensor.permute(2, 0, 1), tensor[::2, 1:], tensor[0, 0, 0], tensor[:0], tensor[:, :0]):
        back = decode(encoded({"a": [shaped]}), copy=copy)["a"][0]
        assert (back.dtype, back.shape, back.is_contiguous()) == (dtype, shaped.shape, True)
        assert same(back, shaped)


def test_every_dense_dtype_of_torch_has_a_name() -> None:
    every = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    without_a_meaning_of_their_own = re.compile(r"torch\.(u?int[1-7]|bits\w+|qu?int\w+|float4\w+)")

    assert {dtype for dtype in every - set(DTYPES) if not without_a_meaning_of_their_own.fullmatch(str(dtype))} == set()


def test_copies_own_their_memory_and_views_lie_in_the_entry() -> None:
    entry = bytearray(encoded((torch.arange(1000), 1)))
    copied, viewed = decode(memoryview(entry)), decode(memoryview(entry), copy=False)
    entry[-8:] = bytes(8)

    assert copied[0][-1] == 999
    assert viewed[0][-1] == 0
    assert copied[0].untyped_storage().resizable()


def test_a_view_keeps_its_entry() -> None:
    tensor = decode(encoded(torch.arange(100_000)), copy=False)
    held = [bytes(800_000) for _ in range(3)]

    assert len(held) == 3
    assert same(tensor, torch.arange(100_000))


def test_conjugated_and_negated_views_come_back_as_their_values() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j])

    assert decode(encoded(tensor.conj())).tolist() == [1 - 2j, 3 + 4j]
    assert decode(encoded(tensor.conj().imag)).tolist() == [-2.0, 4.0]


def test_requires_grad_stays() -> None:
    back = decode(encoded([torch.ones(2, requires_grad=True), torch.ones(2)]))

    assert [tensor.requires_grad for tensor in back] == [True, False]
    assert back[0].is_leaf


def test_sizes_stay_sizes() -> None:
    back = decode(encoded({"size": torch.ones(3, 4).shape}))

    assert type(back["size"]) is torch.Size
    assert back["size"] == (3, 4)


TV = [
    tv_tensors.Image(tensor_of(torch.uint8, 3, 4, 5)),
    tv_tensors.Video(tensor_of(torch.uint8, 2, 3, 4, 5)),
    tv_tensors.Mask(torch.zeros(4, 5, dtype=torch.bool)),
    tv_tensors.BoundingBoxes(torch.ones(2, 4), format="CXCYWH", canvas_size=(7, 9)),
]


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("sample", TV, ids=lambda sample: type(sample).__name__)
def test_tensors_of_torchvision_keep_class_and_metadata(sample: torch.Tensor, copy: bool) -> None:
    back = decode(encoded(Point(sample, 1)), copy=copy).x

    assert same(back, sample)
    assert vars(back) == vars(sample)


class Annotated(torch.Tensor):
    """A subclass about which nothing is known."""


def with_attribute() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.name_of_mine = "a"  # type: ignore[attr-defined]
    return tensor


REFUSED = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "sparse"),
    "meta": (lambda: torch.empty(3, device="meta"), "meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quint8"),
    "computed": (lambda: torch.ones(2, requires_grad=True) * 2, "detach"),
    "subclass": (lambda: torch.ones(2).as_subclass(Annotated), "Annotated"),
    "parameter": (lambda: torch.nn.Parameter(torch.ones(2)), "Parameter"),
    "attribute": (with_attribute, "name_of_mine"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_other_tensors_are_refused(name: str) -> None:
    make, words = REFUSED[name]

    with pytest.raises(CannotEncodeError, match=words) as caught:
        encoded({"a": make()})
    assert caught.value.details["where"] == "sample['a']"


def test_a_tensor_beyond_the_payload_is_refused() -> None:
    entry = bytearray(encoded(torch.zeros(2**16, dtype=torch.uint8)))
    at = bytes(entry).index(b"\xce\x00\x01\x00\x00")
    entry[at : at + 5] = b"\xce\xff\xff\xff\xff"

    for copy in (True, False):
        with pytest.raises(EntryFormatError, match="4294967295 bytes"):
            decode(memoryview(entry), copy=copy)
