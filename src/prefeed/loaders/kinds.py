"""Datasets, tensors and orders of the frameworks, told by the names of their classes: no framework is imported."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int64]
"""Sample indices in the order of reading, shape (n,)."""

_FRAMEWORKS: Final = frozenset({"torch", "paddle"})
"""Packages whose ``Dataset``, ``Subset``, ``ConcatDataset``, ``TensorDataset`` and ``Tensor`` mean the same."""


def is_a(value: Any, *names: str) -> bool:
    """Return True for an instance of a framework's class of one of these names, or of a subclass of it."""
    return class_of(value, *names) is not None


def is_just_a(value: Any, *names: str) -> bool:
    """Return True for an instance of a framework's class of one of these names; subclasses are others' code: False."""
    return _is_named(type(value), names)


def class_of(value: Any, *names: str) -> type | None:
    """Return the framework's class, one of these names, that the value is an instance of; None if there is none."""
    return next((cls for cls in type(value).__mro__ if _is_named(cls, names)), None)


def length_of(value: Any) -> int | None:
    """Return the length that a dataset, a sampler or anything of the user's says it has; None where it says none."""
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - it is the user's
        return None


def _is_named(cls: type, names: tuple[str, ...]) -> bool:
    return cls.__name__ in names and cls.__module__.partition(".")[0] in _FRAMEWORKS
