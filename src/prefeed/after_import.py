"""Callbacks that run after another module has been imported, without importing that module."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["after_import", "forget"]

Act = Callable[[], None]


class _Finder:
    """Import finder that delegates to the other finders and runs callbacks after the import.

    It is the first entry of ``sys.meta_path`` while callbacks are pending, and absent otherwise.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Act]] = {}
        self._under_way: Counter[str] = Counter()
        self._here = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the other finders' spec of a module with callbacks, with its loader wrapped; None for all other modules."""
        if name not in self.waiting or getattr(self._here, "is_searching", False):
            return None
        self._here.is_searching = True  # another finder may call all finders, including this one
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._here.is_searching = False
        if spec is not None and spec.loader is not None:
            self._listen(name, spec.loader)
        return spec

    def _listen(self, name: str, loader: Any) -> None:
        """Wrap a loader, which loads one module once, so that the callbacks run after the module is loaded."""
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.__dict__.pop("exec_module", None)  # restore the loader of the module
            self._under_way[name] += 1  # OpenCV's imports another module of its own name
            try:
                load(module)
            finally:
                self._under_way[name] -= 1
            if not self._under_way[name]:
                self.imported(name)

        loader.exec_module = exec_module

    def imported(self, name: str) -> None:
        """Run the callbacks of a module."""
        acts = self.waiting.pop(name, [])
        self.settle()
        for act in acts:
            act()

    def settle(self) -> None:
        """Add this finder to ``sys.meta_path`` if callbacks are pending; remove it otherwise."""
        if self.waiting and self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def _found_by_others(
    own: _Finder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        if finder is own or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(name, path, target)
        if spec is not None:
            return spec
    return None


_finder = _Finder()


def after_import(name: str, act: Act) -> None:
    """Call ``act`` after the module is imported, or now if it already is. ``act`` must not raise."""
    if name in sys.modules:
        act()
        return
    acts = _finder.waiting.setdefault(name, [])
    if act not in acts:
        acts.append(act)
    _finder.settle()


def forget(name: str, act: Act) -> None:
    """Remove a pending callback, if it exists."""
    acts = _finder.waiting.get(name, [])
    if act in acts:
        acts.remove(act)
    if not acts:
        _finder.waiting.pop(name, None)
    _finder.settle()
