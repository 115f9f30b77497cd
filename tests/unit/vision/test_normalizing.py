"""A batch of bytes becomes what torchvision makes of its samples."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from torchvision.transforms import Normalize as TorchvisionNormalize

import prefeed
from prefeed.vision import Normalize
from prefeed.vision.normalizing import IMAGENET_MEAN, IMAGENET_STD, normalized_levels

Pair = namedtuple("Pair", ["image", "label"])


def levels(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def by_torchvision(images: torch.Tensor) -> torch.Tensor:
    return TorchvisionNormalize(IMAGENET_MEAN, IMAGENET_STD)(images.to(torch.float32).div(255))


def every_level() -> torch.Tensor:
    """Every level in every channel, shape (2, 3, 16, 16)."""
    return torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(2, 3, 1, 1)


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float(((found - wanted).abs() / wanted.abs().clamp(min=1)).max())


def test_differs_from_torchvision_by_a_millionth() -> None:
    found = Normalize()(every_level())

    assert found.dtype == torch.float32
    assert difference(found, by_torchvision(every_level())) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    found = Normalize(dtype=dtype)(every_level())

    assert found.dtype == dtype
    assert torch.equal(found, Normalize()(every_level()).to(dtype))


@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_layout_stays_or_becomes_channels_last(given: torch.memory_format) -> None:
    images = levels(2, 3, 5, 7).contiguous(memory_format=given)

    assert Normalize()(images).is_contiguous(memory_format=given)
    last = Normalize(channels_last=True)(images)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, Normalize()(images))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda images, label, mask: (images, label),
        lambda images, label, mask: [images, label],
        lambda images, label, mask: {"image": images, "rest": (label, mask, "name", None)},
        lambda images, label, mask: Pair(images, label),
        lambda images, label, mask: (label, {"pair": [mask, images, images]}),
    ],
    ids=["tuple", "list", "dict", "named tuple", "nested"],
)
def test_pictures_of_any_nesting_and_nothing_else(wrap: Any) -> None:
    images, label, mask = levels(2, 3, 4, 4), levels(2), levels(2, 1, 4, 4)
    batch = wrap(images, label, mask)

    done = Normalize()(batch)

    flat, wanted = (torch.utils._pytree.tree_flatten(value) for value in (done, batch))
    assert flat[1] == wanted[1]  # the same nesting
    for found, given in zip(flat[0], wanted[0], strict=True):
        if given is images:
            assert torch.equal(found, Normalize()(images))
        else:
            assert found is given
    assert torch.equal(images, levels(2, 3, 4, 4))


@pytest.mark.parametrize("batch", [torch.zeros(2, 3, 4, 4), levels(2, 3, 4), (levels(2, 1, 4, 4), levels(2)), {}, None])
def test_a_batch_without_pictures_is_an_error(batch: Any) -> None:
    with pytest.raises(ValueError, match=r"no images to normalise: expected a uint8 tensor .* got"):
        Normalize()(batch)


def test_in_a_device_prefetcher() -> None:
    batches = [(levels(2, 3, 4, 4), torch.tensor([1, 2]))]

    [(images, labels)] = prefeed.DevicePrefetcher(batches, "cpu", transform=Normalize())

    assert torch.equal(images, Normalize()(levels(2, 3, 4, 4)))
    assert labels.tolist() == [1, 2]


def test_other_numbers_of_channels() -> None:
    found = Normalize(mean=[0.5], std=[0.25])(levels(2, 1, 4, 4))

    assert difference(found, (levels(2, 1, 4, 4) / 255 - 0.5) / 0.25) <= 1e-6


def test_part_of_a_model_in_half_precision() -> None:
    model = torch.nn.Sequential(Normalize(), torch.nn.Conv2d(3, 1, 1)).half()

    assert torch.equal(model[0](every_level()), Normalize()(every_level()))
    assert [name for name in model.state_dict() if name.startswith("0")] == []


def test_can_be_pickled_after_use() -> None:
    normalize = Normalize(dtype=torch.float16)
    before = normalize(every_level())

    copied = pickle.loads(pickle.dumps(normalize))

    assert torch.equal(copied(every_level()), before)
    assert "float16" in repr(copied)


@pytest.mark.parametrize("wrong", [{"mean": [0.5]}, {"std": [1, 1, 0]}, {"mean": [], "std": []}])
def test_means_and_deviations_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="mean and std must have the same length"):
        Normalize(**wrong)


def test_dtypes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of .*, not torch\.float64"):
        Normalize(dtype=torch.float64)


def test_the_table_is_torchvisions_bit_by_bit() -> None:
    table = normalized_levels(IMAGENET_MEAN, IMAGENET_STD, torch.float32)

    assert torch.equal(table, by_torchvision(every_level())[0].view(3, 256))
