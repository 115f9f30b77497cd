"""Every loader of the process is served: torch's own class is changed in place.

One attribute of ``torch.utils.data.DataLoader`` is replaced, ``_get_iterator``. So loaders that were made before, names
that were bound before and subclasses that inherit the method all gain, and ``type(loader)`` is torch's still. A
subclass with a ``_get_iterator`` of its own is left alone. ``__init__`` is torch's with one look at who calls it, for the
loader's name.
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from prefeed.torch.loader import DataLoader, make_iterator, set_all_loaders
from prefeed.torch.naming import note_made

__all__ = ["disable", "enable"]

_METHOD = "_get_iterator"


class _Patch:
    """Methods in the place of torch's; once inactive, they do what torch's do, whoever still holds them."""

    def __init__(self) -> None:
        torchs, torchs_init = vars(TorchDataLoader)[_METHOD], vars(TorchDataLoader)["__init__"]

        @functools.wraps(torchs)
        def get_iterator(loader: TorchDataLoader[Any]) -> _BaseDataLoaderIter:
            if not self.active or issubclass(type(loader), DataLoader):
                return torchs(loader)  # type: ignore[no-any-return]
            return make_iterator(loader, functools.partial(torchs, loader), explicit=False)

        @functools.wraps(torchs_init)
        def init(loader: TorchDataLoader[Any], *args: Any, **kwargs: Any) -> None:
            torchs_init(loader, *args, **kwargs)
            if self.active:
                note_made(loader, sys._getframe(1))

        self.active = True
        self._replaced = {_METHOD: (torchs, get_iterator), "__init__": (torchs_init, init)}
        for name, (_, ours) in self._replaced.items():
            setattr(TorchDataLoader, name, ours)

    def undo(self) -> None:
        """Put torch's back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        for name, (torchs, ours) in self._replaced.items():
            if vars(TorchDataLoader)[name] is ours:
                setattr(TorchDataLoader, name, torchs)


_patch: _Patch | None = None
_lock = threading.Lock()


def enable() -> None:
    """Every loader of torch's is served from its next epoch on; a second call does nothing."""
    global _patch
    with _lock:
        if _patch is None:
            _patch = _Patch()
            set_all_loaders(True)


def disable() -> None:
    """Leave torch's class as it was; loaders not made as ``prefeed.DataLoader`` are torch's from their next epoch on."""
    global _patch
    with _lock:
        if _patch is not None:
            _patch.undo()
            _patch = None
            set_all_loaders(False)
