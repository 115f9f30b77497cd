"""The order in which Hugging Face's ``datasets`` streams files: for each file of ours, the one that follows.

A worker's files are known when its epoch begins, after the shuffle and the split by ranks and workers. They are told one by one, as the
stream comes to them; the file system (``files.filesystem``) opens the next one while one is read. This module imports nothing for it: a
worker that is spawned needs it before the file system, which is imported with the first file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

from prefeed.after_import import after_import
from prefeed.loaders.replacing import ReplacedFunction

_MODULE: Final = "datasets.iterable_dataset"
_SPLIT: Final = "_split_gen_kwargs"
_SCHEMES: Final = ("prefeed::", "prefeed://")
_MOST_TOLD: Final = 1 << 16

_following: dict[str, str] = {}
_replaced: Final[list[ReplacedFunction]] = []


def register() -> None:
    """The order of streams is seen from now on, whether ``datasets`` is imported already or later. Idempotent."""
    after_import(_MODULE, _see)


def following(name: str) -> str | None:
    """Return the full URL of the file that is read after one, given by its own; None: it is not known, or there is none."""
    return _following.get(name)


def bare(url: str) -> str:
    """Return a URL without ``prefeed://`` and ``prefeed::`` before it, and the path of a local file."""
    while url.startswith(_SCHEMES):
        url = url.removeprefix(_SCHEMES[0]).removeprefix(_SCHEMES[1])
    return url.removeprefix("file://")


class InOrder(list[dict[str, Any]]):
    """Shards of a stream: who goes through them reads them in this order."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        before: list[str] = []
        shards = super().__iter__()
        for shard, after in pairwise([*shards, {}]):
            names = _names_of(shard) or before
            _tell([*names, *_names_of(after)[:1]])
            before = names[-1:]
            yield shard


def _tell(names: list[str]) -> None:
    if len(_following) > _MOST_TOLD:
        _following.clear()
    _following.update(
        (name, after) for name, after in pairwise(names) if name != after
    )  # a file may be read in several parts
    if names:
        _following.pop(names[-1], None)


def _names_of(shard: dict[str, Any]) -> list[str]:
    """Return the files of a shard that are read through the cache."""
    for value in shard.values():
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            return [bare(url) for url in value if url.startswith(_SCHEMES)]
    return []


def _see() -> None:
    module: Any = sys.modules[_MODULE]
    if _SPLIT in vars(module) and not _replaced:  # in another version it is not: each file is opened when it is due
        _replaced.append(ReplacedFunction(module, _SPLIT, _split_in_order))


def _split_in_order(split: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = split(*args, **kwargs)
    is_ours = type(found) is list and any(map(_names_of, found))
    return InOrder(found) if is_ours else found


os.register_at_fork(after_in_child=_following.clear)
