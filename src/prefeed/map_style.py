"""Base class of map-style datasets, which derives from ``torch.utils.data.Dataset`` once torch is imported.

Therefore ``+``, ``random_split`` and ``isinstance`` work, although prefeed does not import torch. When the program imports torch, torch's class
becomes a base of ``MapStyle``. Type checkers see that base from the beginning.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prefeed.after_import import after_import

__all__ = ["MapStyle"]

T_co = TypeVar("T_co", covariant=True)

TORCHS: Final = "torch.utils.data"

if TYPE_CHECKING:
    from torch.utils.data import Dataset as _Base
else:

    class _Base(Generic[T_co]):
        """Gives subclasses the memory layout of torch's class, so that their bases can be replaced."""


class MapStyle(_Base[T_co]):
    """A dataset with samples that are read by index."""


def _become_torchs() -> None:
    torchs = getattr(sys.modules[TORCHS], "Dataset", None)
    if torchs is not None and torchs not in MapStyle.__mro__:
        MapStyle.__bases__ = (_Base, torchs)


after_import(TORCHS, _become_torchs)
