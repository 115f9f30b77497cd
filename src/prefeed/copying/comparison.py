"""What is to be done so that a directory becomes a copy of a listing. Pure but for the room, which is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prefeed.copying.choice import choose, ranks_of
from prefeed.copying.names import directories_of, sort_out
from prefeed.copying.room import room_of
from prefeed.copying.versions import FoundFile, is_copy_of
from prefeed.errors import CopyError
from prefeed.types import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A listing beside what is there.

    Attributes:
        num_objects: Objects that are listed.
        total_bytes: Their size.
        to_copy: What gets a copy and has none, or an old one, first to last.
        bytes_to_copy: Its size.
        left: What has no room for a copy.
        dropped: Paths of ``left`` that have a copy: it makes room for others.
        vanished: Paths that are there and are not listed.
        refused: Paths that can be no file there, and why.
        num_kept: Copies that are right.
        kept_bytes: Their size.
        directories: Those that the listed objects lie in.
        directories_there: Those that are there, above before below.
        room_bytes: The most that the copy may take.
        left_bytes: What of it is left beside the copies that stay.
        why: What leaves no more room.
    """

    num_objects: int
    total_bytes: int
    to_copy: list[ObjectInfo]
    bytes_to_copy: int
    left: list[ObjectInfo]
    dropped: list[str]
    vanished: list[str]
    refused: Mapping[str, str]
    num_kept: int
    kept_bytes: int
    directories: set[str]
    directories_there: list[str]
    room_bytes: int
    left_bytes: int
    why: str


def compare(
    listed: Sequence[ObjectInfo],
    files: Mapping[str, FoundFile],
    directories: list[str],
    *,
    root: str,
    order: Sequence[str] | None,
    step_ns: int,
    folds_case: bool,
    room: Callable[[int], tuple[int, str]],
) -> Comparison:
    """Return what is to be done.

    Args:
        listed: All objects of the origin.
        files: What is there, links included, by path.
        directories: Directories that are there.
        root: URL of the origin.
        order: See ``StageRequest.order``.
        step_ns: See ``is_copy_of``.
        folds_case: See ``sort_out``.
        room: Told what the copies there take, returns what all may take in bytes, and why not more.

    Raises:
        CopyError: The order names nothing that is at the origin.
    """
    items, refused = sort_out(listed, folds_case=folds_case)
    are_there = np.fromiter((_is_there(info, files, step_ns) for info in items), np.bool_, len(items))
    room_bytes, why = room(sum(room_of(found.size_bytes) for found in files.values() if found.is_file))
    ranks = None if order is None else ranks_of(order, root=root)
    if ranks and not any(info.path in ranks for info in items):
        raise CopyError(
            f"none of the {len(ranks):,} paths of the order, such as {next(iter(ranks))!r}, is at {root}; write them one a "
            "line, relative to it"
        )
    choice = choose(items, budget_bytes=room_bytes, is_there=are_there, ranks=ranks)
    to_copy = [items[i] for i in choice.order.tolist() if not are_there[i]]
    left = [items[i] for i in np.flatnonzero(~choice.chosen).tolist()]
    kept = [items[i] for i in np.flatnonzero(choice.chosen & are_there).tolist()]
    # An old copy makes room for the new one when that takes its place: until then, what is in flight takes a little more.
    kept_room = sum(room_of(files[info.path].size_bytes) for info in kept)
    paths = {info.path for info in items}
    return Comparison(
        num_objects=len(listed),
        total_bytes=sum(max(0, info.size_bytes) for info in listed),
        to_copy=to_copy,
        bytes_to_copy=sum(max(0, info.size_bytes) for info in to_copy),
        left=left,
        dropped=[info.path for info in left if info.path in files],
        vanished=[path for path in files if path not in paths],
        refused=refused,
        num_kept=len(kept),
        kept_bytes=sum(files[info.path].size_bytes for info in kept),
        directories=directories_of(paths),
        directories_there=directories,
        room_bytes=room_bytes,
        left_bytes=room_bytes - kept_room,
        why=why,
    )


def _is_there(info: ObjectInfo, files: Mapping[str, FoundFile], step_ns: int) -> bool:
    found = files.get(info.path)
    return found is not None and is_copy_of(info, found, step_ns=step_ns)
