"""Levels of 0 to 255 to what a network is trained on: ``ToTensor`` and ``Normalize`` of torchvision in one step."""

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
    """Normalises the pictures of a batch where they are: they travel to the device as bytes, a quarter of the size.

    ``(x / 255 - mean) / std`` by one multiply-add that reads uint8 and writes ``dtype``. Differs from torchvision's
    ``ToTensor`` and ``Normalize`` by at most 1e-6 of the larger of 1 and the result, in float32.

    To be called with a batch, or given to ``prefeed.DevicePrefetcher(transform=...)``. In a batch of any nesting of
    tuples, lists and dicts (what ``torch.utils._pytree`` goes through) every uint8 tensor of shape (batch, channels,
    height, width) with as many channels as ``mean`` has values is normalised; everything else, such as labels and masks
    of one channel, is passed on as it is.

    Args:
        mean: Of each channel, of values between 0 and 1; default: ImageNet's.
        std: Likewise.
        dtype: Of the result: float32, float16 or bfloat16; computed in float32.
        channels_last: Give the result torch's ``channels_last`` layout. False: it has the layout of the input.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length, ``std`` is not positive, or it is another dtype.

    **Devices**: where the batch is; there is nothing to move. It has no parameters and no entry in ``state_dict``, and
    ``half()`` or ``to()`` of a model that it is a part of change nothing in it.
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
        """Return the batch with its pictures normalised.

        Raises:
            ValueError: There is no such tensor in it: it was normalised before, or is no batch.
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
                f"no pictures to normalise: wanted a uint8 tensor of shape (batch, {len(self.mean)}, height, width), "
                f"got {_shown(batch)}; make samples with ResizeCropNormalize(normalize=False) or PILToTensor"
            )
        return result

    def extra_repr(self) -> str:
        """Return the arguments as torch shows them in a module's ``repr``."""
        return f"mean={self.mean}, std={self.std}, dtype={self.dtype}, channels_last={self.channels_last}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}}  # may be on a device that the other process lacks

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
        """Return scale and shift, shape (channels, 1, 1), made once a device."""
        if device not in self._constants:
            std = torch.tensor(self.std, dtype=torch.float64)
            scale, shift = 1 / (255 * std), -torch.tensor(self.mean, dtype=torch.float64) / std
            self._constants[device] = (
                scale.float().view(-1, 1, 1).to(device),
                shift.float().view(-1, 1, 1).to(device),
            )
        return self._constants[device]


def normalized_levels(mean: Sequence[float], std: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
    """Return what each level of each channel becomes, shape (channels, 256): bit by bit torchvision's values.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length, ``std`` is not positive, or it is another dtype.
    """
    _check(mean, std)
    levels = torch.arange(256, dtype=torch.float32).div(255)  # by ToTensor
    table = levels.repeat(len(mean), 1).sub_(torch.tensor(mean).view(-1, 1)).div_(torch.tensor(std).view(-1, 1))
    return table.to(checked_dtype(dtype))


def checked_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype if pictures can be normalised to it.

    Raises:
        ValueError: It is another than float32, float16 and bfloat16.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, _DTYPES))}: {dtype}")
    return dtype


def _check(mean: Sequence[float], std: Sequence[float]) -> None:
    if len(mean) != len(std) or not mean or min(std) <= 0:
        raise ValueError(f"mean and std must be of one length and std positive: {tuple(mean)}, {tuple(std)}")


def _shown(batch: Any) -> str:
    if isinstance(batch, torch.Tensor):
        return f"{batch.dtype} of shape {tuple(batch.shape)}"
    if isinstance(batch, dict):
        return "{" + ", ".join(f"{key!r}: {_shown(value)}" for key, value in batch.items()) + "}"
    if isinstance(batch, list | tuple):
        return "(" + ", ".join(map(_shown, batch)) + ")"
    return type(batch).__name__
