"""The root of the tree, and what a wrong setting raises."""

from __future__ import annotations

from typing import Any


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


class ConfigError(PrefeedError, ValueError):
    """A setting has a value that cannot be used."""

    code = "bad-setting"
