"""Normalises uint8 images, as ``ToTensor`` and ``Normalize`` of torchvision do, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "Normalize", "checked_dtype", "normalized_levels"]

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16)


class Normalize(torch.nn.Module):
    """Module that normalises the images of a batch on their device, so that they are transferred as uint8, a quarter of the size.

    Computes ``(x / 255 - mean) / std`` with one multiply-add that reads uint8 and writes ``dtype``. In float32, the result differs
    from torchvision's ``ToTensor`` and ``Normalize`` by at most 1e-6 of the larger of 1 and the result.

    Call the module with a batch, or pass it to ``prefeed.DevicePrefetcher(transform=...)``. A batch is any nesting of tuples, lists
    and dicts. Each uint8 tensor of shape (batch, channels, height, width) with as many channels as ``mean`` has values is
    normalised. Everything else, such as labels and masks of one channel, is returned unchanged.

    Args:
        mean: Mean of each channel, for values between 0 and 1. Default: ImageNet's.
        std: Standard deviation of each channel. Default: ImageNet's.
        dtype: Type of the result: float32, float16 or bfloat16. The computation is in float32.
        channels_last: Use torch's ``channels_last`` layout for the result. False keeps the layout of the input.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length, ``std`` is not positive, or ``dtype`` is not supported.

    **Devices**: computes on the device of the batch. The module has no parameters and no entry in ``state_dict``, and is not
    changed by ``half()`` or ``to()`` of a model that contains it.
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        super().__init__()
        _check(mean, std)
        self.mean: tuple[float, ...] = tuple(mean)
        self.std: tuple[float, ...] = tuple(std)
        self.dtype: Any = checked_dtype(dtype)
        self.channels_last = channels_last
        self._constants: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def forward(self, batch: Any) -> Any:
        """Return the batch with normalised images.

        Raises:
            ValueError: The batch contains no images, for example because they were normalised before.
        """
        num_done = 0

        def normalized(leaf: Any) -> Any:
            nonlocal num_done
            if not self._is_picture(leaf):
                return leaf
            num_done += 1
            return self._normalized(leaf)

        result = tree_map(normalized, batch)
        if num_done == 0:
            raise ValueError(
                f"no images to normalise: expected a uint8 tensor of shape (batch, {len(self.mean)}, height, width), "
                f"got {_shown(batch)}; make samples with ResizeCropNormalize(normalize=False) or PILToTensor"
            )
        return result

    def extra_repr(self) -> str:
        """Format the arguments for the ``repr`` of the module."""
        return f"mean={self.mean}, std={self.std}, dtype={self.dtype}, channels_last={self.channels_last}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}  # The other process may not have this device.

    def _is_picture(self, leaf: Any) -> bool:
        is_batch = isinstance(leaf, torch.Tensor) and leaf.dtype == torch.uint8 and leaf.ndim == 4
        return is_batch and leaf.shape[1] == len(self.mean)

    def _normalized(self, images: torch.Tensor) -> torch.Tensor:
        # images: (batch, channels, height, width)
        scale, shift = self._constants_on(images.device)
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        out = torch.empty_like(images, dtype=self.dtype, memory_format=layout)
        return torch.addcmul(shift, images, scale, out=out)

    def _constants_on(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale and shift of shape (channels, 1, 1), computed once per device."""
        if device not in self._constants:
            std = torch.tensor(self.std, dtype=torch.float64)
            scale, shift = 1 / (255 * std), -torch.tensor(self.mean, dtype=torch.float64) / std
            self._constants[device] = (
                scale.float().view(-1, 1, 1).to(device),
                shift.float().view(-1, 1, 1).to(device),
            )
        return self._constants[device]


def normalized_levels(mean: Sequence[float], std: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Compute the normalised value of each level, shape (channels, 256), identical to torchvision's values.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length, ``std`` is not positive, or ``dtype`` is not supported.
    """
    _check(mean, std)
    levels = torch.arange(256, dtype=torch.float32).div(255)  # As in ToTensor.
    table = levels.repeat(len(mean), 1).sub_(torch.tensor(mean).view(-1, 1)).div_(torch.tensor(std).view(-1, 1))
    return table.to(checked_dtype(dtype))


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype if it is supported.

    Raises:
        ValueError: The dtype is not float32, float16 or bfloat16.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, _DTYPES))}, not {dtype}")
    return dtype


def _check(mean: Sequence[float], std: Sequence[float]) -> None:
    if len(mean) != len(std) or not mean or min(std) <= 0:
        raise ValueError(
            f"mean and std must have the same length and std must be positive: {tuple(mean)}, {tuple(std)}"
        )


def _shown(batch: Any) -> str:
    if isinstance(batch, torch.Tensor):
        return f"{batch.dtype} of shape {tuple(batch.shape)}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ", ".join(map(_shown, batch)) + ")"
    return type(batch).__name__
