"""Methods of frameworks' classes, and functions of their modules, replaced in place and put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


class Replaced:
    """A method in the place of a class's own; once inactive, it does what the class's own does, also where it is still referred to."""

    def __init__(
        self, cls: type, name: str, instead: Callable[[Method, Any, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        own = vars(cls)[name]

        @functools.wraps(own)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return instead(own, self, args, kwargs) if replaced.active else own(self, *args, **kwargs)

        replaced = self
        self.active: bool = True
        self._cls, self._name, self._own, self._ours = cls, name, own, method
        setattr(cls, name, method)

    def undo(self) -> None:
        """Put the class's own back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        if vars(self._cls)[self._name] is self._ours:
            setattr(self._cls, self._name, self._own)


class ReplacedFunction:
    """As ``Replaced``, for a function of a module."""

    def __init__(
        self, module: Any, name: str, instead: Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        own = getattr(module, name)

        @functools.wraps(own)
        def function(*args: Any, **kwargs: Any) -> Any:
            return instead(own, args, kwargs) if replaced.active else own(*args, **kwargs)

        replaced = self
        self.active: bool = True
        self._module, self._name, self._own, self._ours = module, name, own, function
        setattr(module, name, function)

    def undo(self) -> None:
        """Put the module's own back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        if getattr(self._module, self._name, None) is self._ours:
            setattr(self._module, self._name, self._own)
