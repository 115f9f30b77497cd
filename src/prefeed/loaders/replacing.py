"""Methods of frameworks' classes, and functions of their modules, replaced in place and put back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


class ReplacedFunction:
    """A function in the place of its owner's own; once inactive, it does what the own one does, also where it is still referred to.

    Args:
        owner: A module or a class.
        name: Of the function.
        instead: Given the own function and the arguments.
    """

    def __init__(
        self, owner: Any, name: str, instead: Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        own = vars(owner)[name]

        @functools.wraps(own)
        def function(*args: Any, **kwargs: Any) -> Any:
            return instead(own, args, kwargs) if replaced.active else own(*args, **kwargs)

        replaced = self
        self.active: bool = True
        self._owner, self._name, self._own, self._ours = owner, name, own, function
        setattr(owner, name, function)

    def undo(self) -> None:
        """Put the own one back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        if vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self._own)


class Replaced(ReplacedFunction):
    """The same for a method, or a function whose first argument is never named: ``instead`` is given this one by itself."""

    def __init__(
        self, owner: Any, name: str, instead: Callable[[Method, Any, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        super().__init__(owner, name, lambda own, args, kwargs: instead(own, args[0], args[1:], kwargs))
