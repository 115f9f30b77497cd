"""What a loader is called: the variable or attribute that it was put into, else the line where it was made."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Final
from weakref import ref

import torch
from torch.utils.data import DataLoader, Subset

from prefeed.torch.call_sites import frames_of, given_name, is_made_by_library, iterated_name, line_of
from prefeed.torch.items import behind

__all__ = ["is_trial", "name_of", "note_made", "rank_of_process"]

_TRIALS: Final = {"_run_sanity_check": ("lightning.", "pytorch_lightning.")}
"""Functions that try a few batches before training begins, and the packages that they are of."""

_Names = dict[int, tuple["ref[DataLoader[Any]]", str]]
"""Of each loader, by identity and beside it as ``Attachments``, as long as there is the loader."""

_made: _Names = {}
_named: _Names = {}


def note_made(loader: DataLoader[Any], frame: FrameType | None) -> None:
    """A loader was made: what it is called is found out once, in less than a millisecond as a rule, and never fails.

    Args:
        loader: The loader, whole.
        frame: Who called its class.
    """
    try:
        if _known(_made, loader) is None:
            twin = "" if (name := given_name(frame)) or not is_made_by_library(frame) else _twin_of(loader)
            _keep(_made, loader, name or twin or line_of(frame))
    except Exception:  # noqa: BLE001 - a name is worth no error
        return


def name_of(loader: DataLoader[Any]) -> str:
    """Return what messages call a loader, as ``train_loader (ImageFolder)``; it stays the same, and is no other's.

    One that was made before anybody looked is called after what the program goes over now.
    """
    itself = behind(loader)
    known = _known(_named, itself)
    if known is not None:
        return known
    try:
        name = _known(_made, loader) or iterated_name(sys._getframe(1), loader)
    except Exception:  # noqa: BLE001 - as above
        name = ""
    whose, rank = _described(getattr(loader, "dataset", loader)), rank_of_process()
    if rank is not None:
        whose += f", rank {rank}"
    text = f"{name} ({whose})" if name else whose
    taken = {one for made, one in list(_named.values()) if made() is not None}
    if text in taken:
        others = (f"{name} #{number} ({whose})".lstrip() for number in range(2, len(taken) + 3))
        text = next(other for other in others if other not in taken)
    _keep(_named, itself, text)
    return text


def rank_of_process() -> int | None:
    """Return this process's rank; None when it trains alone."""
    is_one_of_many = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if is_one_of_many else None


def is_trial() -> bool:
    """Return True while a framework only tries whether the program runs: Lightning's sanity check."""
    for frame in frames_of(sys._getframe(1)):
        packages = _TRIALS.get(frame.f_code.co_name)
        if packages and str(frame.f_globals.get("__name__")).startswith(packages):
            return True
    return False


def _known(names: Mapping[int, tuple[ref[DataLoader[Any]], str]], loader: DataLoader[Any]) -> str | None:
    entry = names.get(id(loader))
    return entry[1] if entry is not None and entry[0]() is loader else None


def _keep(names: _Names, loader: DataLoader[Any], name: str) -> None:
    key = id(loader)
    with contextlib.suppress(TypeError):  # what stands for a loader may be of a class that takes no weak references
        names[key] = ref(loader, lambda _: names.pop(key, None)), name


def _twin_of(loader: DataLoader[Any]) -> str:
    """Return the name of a loader over the same dataset: a library has made this one in its place."""
    for made, name in reversed(list(_made.values())):
        other = made()
        if other is not None and other.dataset is loader.dataset:
            return name
    return ""


def _described(dataset: Any) -> str:
    """Return a dataset's class, and what it is a part of."""
    name = type(dataset).__name__
    return f"{name} of {_described(dataset.dataset)}" if isinstance(dataset, Subset) else name
