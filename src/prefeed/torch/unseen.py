"""Iterators of torch's that are made past ``prefeed``: which loaders nobody was asked about."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from prefeed.tally import program

_watching: list[Any] = []


def watch(is_known: Callable[[Any], bool]) -> None:
    """Count, for the program's last line, iterators over loaders that are not known; nothing where nobody counts.

    Args:
        is_known: Says of what an iterator is made from whether prefeed was asked about it.
    """
    if _watching or not program.is_counting():
        return
    torchs = _BaseDataLoaderIter.__init__

    @functools.wraps(torchs)
    def begin(iterator: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        if not is_known(loader):
            program.add(program.key_of(program.UNSEEN, _shown(loader)), 1)
        torchs(iterator, loader, *args, **kwargs)

    _watching.append(torchs)
    _BaseDataLoaderIter.__init__ = begin  # type: ignore[method-assign, assignment]


def unwatch() -> None:
    """Leave torch's class as it was."""
    if _watching:
        _BaseDataLoaderIter.__init__ = _watching.pop()  # type: ignore[method-assign]


def _shown(loader: Any) -> str:
    """Return what makes the iterators and what they are over, by the names of their classes."""
    dataset = vars(loader).get("dataset") if hasattr(loader, "__dict__") else None
    kind = type(loader)
    made_by = f"{kind.__module__}.{kind.__qualname__}"
    return made_by if dataset is None else f"{made_by} over {type(dataset).__name__}"
