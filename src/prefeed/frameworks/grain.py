"""Serves Grain's ``DataLoader``: builds its pipeline over a served source, and plans the order of the index sampler.

Element i of a shard is sampler index ``i * shard_count + shard_index``. Workers take elements in turns, so all of them together request
elements in the order of the sampler. Start with ``enable``.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from prefeed.loaders.feed import Feed, Feeds
from prefeed.loaders.replacing import Method, Replaced

_MODULE: Final = "grain._src.python.data_loader"

_feeds = Feeds("grain.DataLoader")
_replaced: list[Replaced] = []


def enable() -> None:
    """Serve every loader from its next iterator on. Idempotent.

    Raises:
        AttributeError, KeyError: This version of Grain has different internals.
    """
    if _replaced:
        return
    module: Any = sys.modules[_MODULE]
    loader, iterator = module.DataLoader, module.DataLoaderIterator
    if not callable(loader._create_dataset):
        raise AttributeError("_create_dataset")
    _replaced.append(Replaced(loader, "__iter__", _iterate))
    _replaced.append(Replaced(iterator, "__next__", _next))
    _replaced.append(Replaced(iterator, "set_state", _set_state))


def disable() -> None:
    """Restore Grain's classes. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _feeds.clear()


class ShardKeys:
    """Record keys of one shard of a sampler.

    Args:
        sampler: Sampler of Grain or of the user.
        shard_index, shard_count: Index of this process's shard, and number of shards.
    """

    def __init__(self, sampler: Any, *, shard_index: int, shard_count: int) -> None:
        self._sampler = sampler
        self._index, self._count = shard_index, shard_count

    def keys_from(self, element: int) -> Iterator[int]:
        """Yield the keys from an element to the end of the sampler."""
        for number in count(element):
            try:
                yield int(self._sampler[number * self._count + self._index].record_key)
            except IndexError:
                return


def _iterate(own: Method, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    feed = _feeds.of(loader, loader._data_source)
    feed.loop_begins(None)
    served = _serve_loader(loader, feed)
    iterator = own(loader if served is None else served, *args, **kwargs)
    iterator._prefeed = feed, None if served is None else _shard_keys(loader)
    if served is not None:
        feed.begin(_shard_keys(loader).keys_from(0))
    return iterator


def _serve_loader(loader: Any, feed: Feed) -> Any:
    """Return a copy of a loader over a served source; None if the loader is not supported."""
    source = loader._data_source
    if hasattr(type(source), "__enter__") or not hasattr(type(source), "__len__"):
        feed.leave(f"its source, {type(source).__name__}, is a context manager, or has no length")
    served = feed.serve()
    if served is None:
        return None
    try:
        shown = copy.copy(loader)
        shown._data_source = served
        shown._dataset = shown._create_dataset()
    except Exception as err:  # noqa: BLE001 - other internals of Grain, or of the user's class
        feed.leave(f"this version of Grain builds its pipeline in another way: {type(err).__name__}: {err}")
        return None
    return shown


def _shard_keys(loader: Any) -> ShardKeys:
    shard = loader._shard_options
    return ShardKeys(loader._sampler, shard_index=int(shard.shard_index), shard_count=int(shard.shard_count))


def _next(own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found: tuple[Feed, ShardKeys | None] | None = vars(iterator).get("_prefeed")
    return own(iterator) if found is None else found[0].next_batch(lambda: own(iterator))


def _set_state(own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = own(iterator, *args, **kwargs)
    found: tuple[Feed, ShardKeys | None] | None = vars(iterator).get("_prefeed")
    if found is not None and found[1] is not None:
        element = _next_element(args[0] if args else kwargs.get("state"), found[1]._count)
        found[0].begin(() if element is None else found[1].keys_from(element))
    return result


def _next_element(state: Any, shard_count: int) -> int | None:
    """Return the first element of the shard that may follow a state; None if the state has an unknown format."""
    try:
        seen = json.loads(state)["last_seen_indices"]
        return max(0, min(int(index) for index in seen.values()) // shard_count + 1)
    except (TypeError, ValueError, KeyError, AttributeError):
        return None
