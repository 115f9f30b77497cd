"""Datasets that are asked for samples by index, and are ``torch.utils.data.Dataset`` where torch is imported.

So ``+``, ``random_split`` and ``isinstance`` work, and prefeed does not import torch for it: once a program has, torch's class becomes a base of
``MapStyle``. Type checkers see it as one from the beginning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prefeed.after_import import after_import

__all__ = ["MapStyle"]

T_co = TypeVar("T_co", covariant=True)

TORCHS: Final = "torch.utils.data"

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    class MapStyle(Dataset[T_co]):
        """A dataset whose samples are asked for by index."""

else:

    class _Generic(Generic[T_co]):
        """Has the layout of torch's class, so that the bases of a class below can be changed."""

    class MapStyle(_Generic[T_co]):
        """A dataset whose samples are asked for by index."""

    def _become_torchs() -> None:
        torchs = getattr(sys.modules[TORCHS], "Dataset", None)
        if torchs is not None and torchs not in MapStyle.__mro__:
            MapStyle.__bases__ = (_Generic, torchs)

    after_import(TORCHS, _become_torchs)
