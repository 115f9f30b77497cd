"""Methods of frameworks' classes, and functions of their modules, replaced in place and put back.

A function of Python's gets other code and remains the object that it is: references to it that were bound before are served as
well, and it is pickled by its name, whoever has it. Of others the name is bound to a function of ours.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Final
from weakref import ref

Method = Callable[..., Any]

_CALLED: Final = "what stands for the function"


def _stand_in(*args: Any, **kwargs: Any) -> Any:
    function: Any = "what stands for the function"
    return function(*args, **kwargs)


def _code_of(own: types.FunctionType, called: Method) -> types.CodeType:
    """Return code in the place of a function's that calls another one; it says that it is the function's."""
    code, there = _stand_in.__code__, own.__code__
    return code.replace(
        co_consts=tuple(called if constant == _CALLED else constant for constant in code.co_consts),
        co_freevars=there.co_freevars,  # a function keeps the number of its cells
        co_name=there.co_name,
        co_qualname=there.co_qualname,
        co_filename=there.co_filename,
        co_firstlineno=there.co_firstlineno,
    )


def _copy_of(own: types.FunctionType) -> types.FunctionType:
    """Return a function that does what this one does now."""
    copy = types.FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, own.__closure__)
    copy.__kwdefaults__ = own.__kwdefaults__
    copy.__dict__.update(own.__dict__)
    for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
        setattr(copy, name, getattr(own, name))
    return copy


class _Call:
    """What a replaced function calls. The code that has it is not seen by the collector, so it keeps nothing of ours alive."""

    def __init__(self, own: Method, replaced: ReplacedFunction) -> None:
        self._own = own
        self._replaced = ref(replaced)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        replaced = self._replaced()
        if replaced is None or not replaced.active:
            return self._own(*args, **kwargs)
        return replaced.instead(self._own, args, kwargs)


class ReplacedFunction:
    """A function in the place of its owner's own; once inactive, it does what the own one does, also where it is still referred to.

    **Ownership.** It is inactive once nothing refers to this object.

    Args:
        owner: A module or a class.
        name: Of the function.
        instead: Given the own function and the arguments.
    """

    def __init__(
        self, owner: Any, name: str, instead: Callable[[Method, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        there = vars(owner)[name]
        own: Method = _copy_of(there) if isinstance(there, types.FunctionType) else there
        call = _Call(own, self)
        self.instead = instead
        self.active: bool = True
        self._owner, self._name, self._there = owner, name, there
        self._codes: tuple[types.CodeType, types.CodeType] | None = None
        if not isinstance(there, types.FunctionType):

            @functools.wraps(own)
            def function(*args: Any, **kwargs: Any) -> Any:
                return call(*args, **kwargs)

            self._ours = function
            setattr(owner, name, function)
            return
        self._codes = there.__code__, _code_of(there, call)
        self._says_what_it_is = "__wrapped__" not in there.__dict__
        if self._says_what_it_is:
            there.__dict__["__wrapped__"] = own  # for who asks for its signature
        there.__code__ = self._codes[1]

    def undo(self) -> None:
        """Put the own one back, unless somebody else has replaced ours meanwhile."""
        self.active = False
        there = self._there
        if self._codes is None:
            if vars(self._owner).get(self._name) is self._ours:
                setattr(self._owner, self._name, there)
        elif there.__code__ is self._codes[1]:
            there.__code__ = self._codes[0]
            if self._says_what_it_is:
                there.__dict__.pop("__wrapped__", None)


class Replaced(ReplacedFunction):
    """The same for a method, or a function whose first argument is never named: ``instead`` is given this one by itself."""

    def __init__(
        self, owner: Any, name: str, instead: Callable[[Method, Any, tuple[Any, ...], dict[str, Any]], Any]
    ) -> None:
        super().__init__(owner, name, lambda own, args, kwargs: instead(own, args[0], args[1:], kwargs))
