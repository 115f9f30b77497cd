"""Serves MindSpore's ``GeneratorDataset`` over a source with an index, and plans the indices that its sampler draws.

MindSpore calls a function of its module once per epoch, with all indices in one array; its workers take them in turns.
Its own file readers are C++ and bypass the cache. Start with ``enable``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from prefeed.loaders.feed import Feed, Feeds
from prefeed.loaders.replacing import Method, Replaced
from prefeed.loaders.sources import ServedSource

_MODULE: Final = "mindspore.dataset.engine.datasets_user_defined"

_feeds = Feeds("GeneratorDataset")
_replaced: list[Replaced] = []


def enable() -> None:
    """Serve every ``GeneratorDataset`` from its next iterator on. Idempotent.

    Raises:
        AttributeError, KeyError: This version of MindSpore has different internals.
    """
    if _replaced:
        return
    module: Any = sys.modules[_MODULE]
    _replaced.append(Replaced(module.GeneratorDataset, "prepare_multiprocessing", _prepare))
    _replaced.append(Replaced(module, "_cpp_sampler_fn", _sample))
    _replaced.append(Replaced(module, "_cpp_sampler_fn_mp", _sample))


def disable() -> None:
    """Restore MindSpore's classes. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _feeds.clear()


class _Planned(ServedSource):
    """Served source with its feed, in the process of the pipeline. Workers get the source alone."""

    feed: Feed


def _prepare(own: Method, dataset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = dataset.source
    has_index = dataset.sampler is not None and hasattr(source, "__getitem__") and hasattr(type(source), "__len__")
    if has_index and not isinstance(source, ServedSource) and type(source).__module__ != _MODULE:
        feed = _feeds.of(source, source)
        served = feed.serve()
        if served is not None:
            planned: Any = _Planned.__new__(_Planned)
            vars(planned).update(vars(served))
            planned.feed = feed
            dataset.source = planned
    return own(dataset, *args, **kwargs)


def _sample(own: Method, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    inner = getattr(source, "dataset", source)  # in workers, a function with the source, perhaps pickled
    planned = (
        inner if isinstance(inner, _Planned) else vars(inner).get("dataset") if hasattr(inner, "__dict__") else None
    )
    samples = own(source, *args, **kwargs)
    if not isinstance(planned, _Planned) or not args:
        return samples
    return _following(samples, planned.feed, args[0])


def _following(samples: Iterator[Any], feed: Feed, order: Any) -> Iterator[Any]:
    """Yield the samples of an epoch. Its order is planned at the first request."""
    feed.begin(order.tolist())
    for sample in samples:
        yield sample
        feed.step()
    feed.epoch_ended()
