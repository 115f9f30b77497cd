"""Every loader of the process is served: torch's own class is changed in place.

One attribute of ``torch.utils.data.DataLoader`` is replaced, ``_get_iterator``. So loaders that were made before, names
that were bound before and subclasses that inherit the method all gain, and ``type(loader)`` is torch's still. A
subclass with a ``_get_iterator`` of its own is left alone.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from prefeed.torch import unseen
from prefeed.torch.loader import DataLoader, is_known, make_iterator, set_all_loaders

__all__ = ["disable", "enable"]

_METHOD = "_get_iterator"


class _Patch:
    """The method in the place of torch's; once inactive, it does what torch's does, whoever still holds it."""

    def __init__(self) -> None:
        torchs = vars(TorchDataLoader)[_METHOD]

        @functools.wraps(torchs)
        def get_iterator(loader: TorchDataLoader[Any]) -> _BaseDataLoaderIter:
            if not self.active or issubclass(type(loader), DataLoader):
                return torchs(loader)  # type: ignore[no-any-return]
            return make_iterator(loader, functools.partial(torchs, loader), explicit=False)

        self.active = True
        self._torchs = torchs
        self._ours = get_iterator
        setattr(TorchDataLoader, _METHOD, get_iterator)

    def undo(self) -> None:
        """Put torch's back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        if vars(TorchDataLoader)[_METHOD] is self._ours:
            setattr(TorchDataLoader, _METHOD, self._torchs)


_patch: _Patch | None = None
_lock = threading.Lock()


def enable() -> None:
    """Every loader of torch's is served from its next epoch on; a second call does nothing."""
    global _patch
    with _lock:
        if _patch is None:
            _patch = _Patch()
            set_all_loaders(True)
            unseen.watch(is_known)


def disable() -> None:
    """Leave torch's class as it was; loaders not made as ``prefeed.DataLoader`` are torch's from their next epoch on."""
    global _patch
    with _lock:
        if _patch is not None:
            _patch.undo()
            _patch = None
            unseen.unwatch()
            set_all_loaders(False)
