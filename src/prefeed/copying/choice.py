"""Which objects of a data set get a copy when there is no room for all. Pure.

Every sample is read once an epoch, in whatever order: a byte of one file saves as much as a byte of another, but each
file saves an open, which is what slow storage charges for. So small files first: 1 GiB of files of 84 KB saves 12,800
opens an epoch, 1 GiB of files of 1 MiB saves 1,024. Who knows better (only a part of the files is read, some are read
often) gives an order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefeed.copying.room import room_of
from prefeed.types import ObjectInfo

_LAST = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is to be copied.

    Attributes:
        chosen: Whether each object gets a copy, shape (num_objects,).
        order: Indices of the chosen ones, first to last.
        room_bytes: What their copies take.
    """

    chosen: NDArray[np.bool_]
    order: NDArray[np.int64]
    room_bytes: int


def choose(
    items: Sequence[ObjectInfo], *, budget_bytes: int, is_there: NDArray[np.bool_], ranks: Mapping[str, int] | None
) -> Choice:
    """Return which objects fit into the budget.

    Args:
        items: All objects.
        budget_bytes: The most that their copies may take together.
        is_there: Which of them have a copy already, shape (num_objects,): without ``ranks`` those are kept before
            others are copied.
        ranks: Place of paths in an order; what is not in it comes after it, small ones first.
    """
    rooms = np.fromiter((room_of(info.size_bytes) for info in items), np.int64, len(items))
    if ranks is None:
        places = (~is_there).astype(np.int64)
    else:
        places = np.fromiter((ranks.get(info.path, _LAST) for info in items), np.int64, len(items))
    sizes = np.fromiter((info.size_bytes if info.size_bytes >= 0 else _LAST for info in items), np.int64, len(items))
    order = np.lexsort((sizes, places))  # stable: of equal sizes, those that come first
    taken = _fitting(rooms[order], budget_bytes)
    chosen = np.zeros(len(items), np.bool_)
    chosen[order[taken]] = True
    return Choice(chosen=chosen, order=order[taken], room_bytes=int(rooms[chosen].sum()))


def _fitting(rooms: NDArray[np.int64], budget_bytes: int) -> NDArray[np.bool_]:
    """Return which are taken when each in turn is taken if it still fits."""
    taken = np.cumsum(rooms) <= budget_bytes
    if taken.all():
        return taken
    left = budget_bytes - int(rooms[taken].sum())
    for index in np.flatnonzero(~taken):
        if rooms[index] <= left:
            taken[index] = True
            left -= int(rooms[index])
    return taken


def ranks_of(lines: Sequence[str], *, root: str) -> dict[str, int]:
    """Return the place of each path in an order: one a line, relative to the root or absolute below it."""
    prefix = root.rstrip("/") + "/"
    ranks: dict[str, int] = {}
    for line in lines:
        path = line.removeprefix(prefix).removeprefix("./")
        if path:
            ranks.setdefault(path, len(ranks))
    return ranks
