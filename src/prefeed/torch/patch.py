"""Every loader of the process is served: torch's own classes are changed in place.

All ways to a batch of torch's lead through its two classes of iterators: torch's ``DataLoader`` and its
subclasses, a ``_get_iterator`` of somebody's own, a library that is handed no loader of torch's at all, as fastai's. So
``__init__`` of these is replaced. Loaders that were made before, names that were bound before and subclasses all gain,
and ``type(loader)`` is torch's still.

What goes round them is said: iterators of other classes, loaders with an ``__iter__`` of their own that makes none, and the
loaders of other packages that are named in ``_OTHERS``.

What serves a loader is imported with the first loader, where nobody has before: a worker that is spawned imports torch, and makes none.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from prefeed.after_import import after_import, forget
from prefeed.loaders.replacing import Method, Replaced
from prefeed.run_summary import counters

__all__ = ["disable", "enable", "is_enabled"]

_log = logging.getLogger("prefeed")

_SERVED: Final = (_SingleProcessDataLoaderIter, _MultiProcessingDataLoaderIter)

_OTHERS: Final = {"torchdata.nodes.loader": "Loader"}
"""Loaders that make batches without torch's iterators: module and class."""

_SERVING: Final = "prefeed.torch.loader"
"""Takes 70 ms of processor time to import."""


class _Instead:
    """What stands for a method of torch's: ``act``, given ``prefeed.torch.loader`` as well; where that cannot be imported, the method."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def __call__(self, own: Method, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            serving = importlib.import_module(_SERVING)
        except Exception as err:  # noqa: BLE001 - a program that makes a loader of torch's must not fail for us
            disable()
            _log.warning("prefeed: off in this process: %s", err)
            return own(first, *args, **kwargs)
        return self._act(serving, own, first, args, kwargs)


def _begin_served(serving: Any, own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    loader = _first(*args, **kwargs)
    if type(loader) is serving.LoaderView:
        own(iterator, loader)
        return
    _unseen.seen(loader)
    serving.begin_iterator(iterator, loader, functools.partial(own, iterator))


def _begin_other(serving: Any, own: Method, iterator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if not isinstance(iterator, _SERVED):
        loader = _first(*args, **kwargs)
        _unseen.seen(loader)
        name = type(iterator).__name__
        serving.leave(
            loader,
            f"its class, {type(loader).__name__}, makes iterators of a class of its own, {name}; torch's DataLoader is served, "
            "and so is prefeed.DataLoader, which has a state_dict",
        )
    own(iterator, *args, **kwargs)


def _first(loader: Any) -> Any:
    return loader


def _make_loader(serving: Any, own: Method, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    own(loader, *args, **kwargs)
    torchs, cls = TorchDataLoader, type(loader)
    is_torchs = cls.__iter__ is torchs.__iter__ and cls._get_iterator is torchs._get_iterator
    if not is_torchs and not issubclass(cls, serving.DataLoader):
        _unseen.expect(loader)


def _iterate_other(serving: Any, own: Method, loader: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = f"{type(loader).__name__} of {type(loader).__module__}"
    serving.leave(loader, f"{name} makes no iterator of torch's; torch's DataLoader over the same dataset is served")
    return own(loader, *args, **kwargs)


class _Unseen:
    """Loaders that may go round torch's iterators, until one is made: what never was is said when the loader is gone."""

    def __init__(self) -> None:
        self._expected: dict[int, weakref.finalize[Any, Any]] = {}

    def expect(self, loader: TorchDataLoader[Any]) -> None:
        self._expected[id(loader)] = weakref.finalize(loader, self._say, id(loader), type(loader).__name__)

    def seen(self, loader: Any) -> None:
        end = self._expected.pop(id(loader), None)
        if end is not None:
            end.detach()

    def forget_all(self) -> None:
        for end in self._expected.values():
            end.detach()
        self._expected.clear()

    def _say(self, key: int, name: str) -> None:
        self._expected.pop(key, None)
        counters.note(counters.REFUSED, f"a loader of class {name}", "it was not iterated by torch's iterators")
        _log.info(
            "prefeed: not used for a loader of class %s: it was not iterated by torch's iterators, which super().__iter__() "
            "makes", name,
        )  # fmt: skip


class _Patch:
    """What is replaced, as long as every loader is served."""

    def __init__(self) -> None:
        self._replaced = [
            *(Replaced(cls, "__init__", _Instead(_begin_served)) for cls in _SERVED),
            Replaced(_BaseDataLoaderIter, "__init__", _Instead(_begin_other)),
            Replaced(TorchDataLoader, "__init__", _Instead(_make_loader)),
        ]
        self._acts = {module: functools.partial(self._reach, module) for module in _OTHERS}
        for module, act in self._acts.items():
            after_import(module, act)

    def undo(self) -> None:
        """Leave everything as it was."""
        for module, act in self._acts.items():
            forget(module, act)
        for replaced in self._replaced:
            replaced.undo()
        _unseen.forget_all()

    def _reach(self, module: str) -> None:
        cls = getattr(sys.modules[module], _OTHERS[module], None)
        if isinstance(cls, type) and "__iter__" in vars(cls):
            self._replaced.append(Replaced(cls, "__iter__", _Instead(_iterate_other)))


_unseen = _Unseen()
_patch: _Patch | None = None
_lock = threading.Lock()


def enable() -> None:
    """Every loader of torch's is served from its next epoch on; a second call does nothing."""
    global _patch
    with _lock:
        if _patch is None:
            _patch = _Patch()


def disable() -> None:
    """Leave torch's classes as they were; loaders not made as ``prefeed.DataLoader`` are torch's from their next epoch on."""
    global _patch
    with _lock:
        if _patch is not None:
            _patch.undo()
            _patch = None
            if _SERVING in sys.modules:
                sys.modules[_SERVING].let_go()


def is_enabled() -> bool:
    """Return whether every loader of torch's is served."""
    return _patch is not None
