"""Names of loaders in logs, statistics and metrics: the class of the dataset and a number, such as ``ImageFolder-1``.

A loader gets its name when it is first iterated, with the lowest number that no other loader of the process has. So a loader
that is created anew in each epoch keeps its name, and the same script has the same names in its next run. Ranks have equal
names; the rank is reported next to the name. Nothing that is stored on disk depends on a name.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from types import FrameType
from typing import Any, Final
from weakref import ref

import torch
from torch.utils.data import DataLoader, Subset

from prefeed.torch.items import behind

__all__ = ["is_trial", "name_of", "rank_of_process"]

_TRIALS: Final = {"_run_sanity_check": ("lightning.", "pytorch_lightning.")}
"""Functions that try a few batches before training begins, and the packages that contain them."""

_names: dict[int, tuple[ref[DataLoader[Any]], str]] = {}
"""Loader by its ``id``, and its name. An entry is removed together with its loader."""

_lock = threading.RLock()  # a loader may be collected, and its entry removed, while a name is chosen


def name_of(loader: DataLoader[Any]) -> str:
    """Return the name of a loader, which no other loader has at the same time."""
    itself = behind(loader)
    key = id(itself)
    with _lock:
        entry = _names.get(key)
        if entry is not None and entry[0]() is itself:
            return entry[1]
        dataset = getattr(loader, "dataset", loader)
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        taken = {name for made, name in list(_names.values()) if made() is not None}
        numbered = (f"{type(dataset).__name__}-{number}" for number in itertools.count(1))
        name = next(name for name in numbered if name not in taken)
        with contextlib.suppress(TypeError):  # a class without weak references stands for a loader
            _names[key] = ref(itself, lambda gone: _forget(key, gone)), name
        return name


def _forget(key: int, gone: ref[DataLoader[Any]]) -> None:
    with _lock:
        if key in _names and _names[key][0] is gone:  # the id may be another loader's already
            del _names[key]


def rank_of_process() -> int | None:
    """Return this process's rank; None when it trains alone."""
    is_one_of_many = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_one_of_many else None


def is_trial() -> bool:
    """Return True while a framework only tries whether the program runs: Lightning's sanity check."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        packages = _TRIALS.get(frame.f_code.co_name)
        if packages and str(frame.f_globals.get("__name__")).startswith(packages):
            return True
        frame = frame.f_back
    return False
