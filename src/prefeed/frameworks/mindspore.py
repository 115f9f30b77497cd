"""Serves MindSpore's ``GeneratorDataset`` over sources with ``__getitem__``.

Once per epoch, MindSpore passes the sampler's indices of the epoch to a function, which is replaced here, and its workers take the
indices in turns. MindSpore's own readers of files are C++ and are only counted, for the run summary. Start with ``enable``.
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


class _PlannedSource(ServedSource):
    """Served source with its feed, in the process of the pipeline. Workers receive only the source."""

    feed: Feed


def _prepare(own: Method, dataset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = dataset.source
    has_index = dataset.sampler is not None and hasattr(source, "__getitem__") and hasattr(type(source), "__len__")
    if has_index and not isinstance(source, ServedSource) and type(source).__module__ != _MODULE:
        feed = _feeds.of(source, source)
        served = feed.serve()
        if served is not None:
            planned: Any = _PlannedSource.__new__(_PlannedSource)
            vars(planned).update(vars(served))
            planned.feed = feed
            dataset.source = planned
    return own(dataset, *args, **kwargs)


def _sample(own: Method, source: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # With workers, ``source`` is a function object with the source, possibly pickled.
    inner = getattr(source, "dataset", source)
    if not isinstance(inner, _PlannedSource) and hasattr(inner, "__dict__"):
        inner = vars(inner).get("dataset")
    samples = own(source, *args, **kwargs)
    if not isinstance(inner, _PlannedSource) or not args:
        return samples
    return _plan_epoch(samples, inner.feed, args[0])


def _plan_epoch(samples: Iterator[Any], feed: Feed, order: Any) -> Iterator[Any]:
    """Plan the order of an epoch at the first request, and yield its samples."""
    feed.begin(order.tolist())
    for sample in samples:
        yield sample
        feed.step()
    feed.epoch_ended()


def _parse(own: Method, dataset: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count a native reader of files when the pipeline is built."""
    if type(dataset).__module__ != _MODULE:
        names = [name for attribute, value in vars(dataset).items() for name in _names_in(attribute, value)]
        if names:
            native.reads(f"mindspore.dataset.{type(dataset).__name__}", names)
    return own(dataset, *args, **kwargs)


def _names_in(attribute: str, value: Any) -> list[str]:
    """Return the files that an attribute of a reader names. For a directory, return a name in it."""
    if not attribute.startswith("dataset_"):
        return []
    values = value if isinstance(value, list) else [value]
    names = [name for name in values if isinstance(name, str) and name]
    return [os.path.join(name, "file") for name in names] if attribute.endswith("_dir") else names
