"""``open``, answered by the reader where a file is opened for reading alone, and told of where it may be written."""

from __future__ import annotations

import io
from typing import Any

from prefeed.interception.asking import Replacement, ask, asking
from prefeed.interception.files import PartlyReadFile, ServedFile, as_text, opened_file
from prefeed.interception.paths import absolute_path, path_name
from prefeed.interception.writing import Named, Telling, is_writing, observers

_BINARY = ("rb", "br")
_TEXT = ("r", "rt", "tr")


class Opener(Replacement):
    """In place of ``open``."""

    def open(
        self,
        file: Any,
        mode: Any = "r",
        buffering: Any = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: Any = True,
        opener: Any = None,
    ) -> Any:
        if observers and mode not in {"rb", "r"} and is_writing(mode) and not isinstance(file, int):
            with Telling(Named(file)):
                return self.original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        reader = asking.reader
        if (
            reader is not None
            and not (  # the quick way out: most files that a sample opens besides its own
                type(file) is str
                and file[:1] == "/"
                and "/." not in file
                and "//" not in file
                and not reader.may_have(file)
            )
        ):
            if (
                mode == "rb"
                and buffering == -1
                and encoding is None
                and errors is None
                and newline is None
                and closefd is True
                and opener is None
            ):
                served = _binary(file)
            else:
                served = _unusual(
                    file, mode, buffering, (encoding, errors, newline), closefd is True and opener is None
                )
            if served is not None:
                return served
        return self.original(file, mode, buffering, encoding, errors, newline, closefd, opener)


# What `help(open)` and `inspect.signature(open)` show is what they showed before.
Opener.open.__doc__ = io.open.__doc__
Opener.open.__module__ = io.open.__module__
Opener.open.__qualname__ = "open"
Opener.open.__annotations__.clear()


def _binary(file: Any) -> ServedFile | PartlyReadFile | None:
    name = path_name(file)
    path = None if name is None else absolute_path(name)
    answer = None if path is None else ask(path)
    return None if name is None or path is None or answer is None else opened_file(answer, name, path)


def _unusual(file: Any, mode: Any, buffering: Any, text: tuple[Any, Any, Any], plain: bool) -> Any:
    if not plain or type(mode) is not str or type(buffering) is not int or not (buffering == -1 or buffering > 1):
        return None
    if mode in _BINARY:
        return _binary(file) if text == (None, None, None) else None
    if mode not in _TEXT:
        return None
    served = _binary(file)
    return None if served is None else as_text(served, mode, *text)
