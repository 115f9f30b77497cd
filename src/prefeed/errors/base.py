"""The root of the tree, and what a wrong setting raises."""

from __future__ import annotations

from typing import Any, TypeVar


class PrefeedError(Exception):
    """Root of the tree.

    Attributes:
        code: Stable identifier for programs, kebab-case.
        retryable: True when the same call may succeed later without a change.
        details: What a program may want to know: paths, sizes, limits.
    """

    code = "prefeed-error"
    retryable = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.details))


def _rebuild(cls: type[PrefeedError], message: str, details: dict[str, Any]) -> PrefeedError:
    return cls(message, **details)


Error = TypeVar("Error", bound=PrefeedError)


def error_of(code: str, text: str, root: type[Error]) -> Error:
    """Return the error at or below ``root`` that has this code, as another process sent it; ``root`` where none has it."""
    waiting = [root]
    for cls in waiting:
        if cls.code == code:
            return cls(text)
        waiting += cls.__subclasses__()
    return root(text)


class ConfigError(PrefeedError, ValueError):
    """A setting has a value that cannot be used."""

    code = "bad-setting"
