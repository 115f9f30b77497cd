"""Audit hook that reports files that are opened without a replacement.

Python raises an audit event for each file that it opens: with ``os.open``, by descriptor, or with an ``io.open`` that was bound
before it was replaced, as in numpy's ``DataSource``. Files that C libraries open themselves raise none: HDF5, LMDB, video readers.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Final, Protocol, runtime_checkable

from prefeed.interception.asking import absolute_path, asking


@runtime_checkable
class Witness(Protocol):
    """``FileReader`` that is also notified of files that were not requested from it."""

    def saw(self, path: str) -> None:
        """Record that a file is being opened.

        Args:
            path: Absolute path, which may contain ``..`` and symbolic links.
        """
        ...

    def saw_unknown(self) -> None:
        """Record that a file is being opened whose path is unknown."""
        ...


_PREFEED: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_BETWEEN: Final = os.path.dirname(__file__) + os.sep
_ROOMS: Final = ("client", "sources", "stage_cache", "store", "system", "wire")
_MODULES: Final = ("config", "places")
_OWN: Final = (
    "<frozen importlib",
    *(f"{_PREFEED}{room}{os.sep}" for room in _ROOMS),
    *(f"{_PREFEED}{name}.py" for name in _MODULES),
)
"""Prefixes of source files whose opens are not reported, because they belong to imports or to prefeed and not to a sample."""

_is_watching = False


def watch_opens() -> None:
    """Notify the reader of a thread, if it is a ``Witness``, of the files that are opened there. Idempotent.

    Cannot be undone, in this process and its forks, and costs 0.16 us per audit event, including events such as ``id``.
    """
    global _is_watching
    if not _is_watching:
        _is_watching = True
        sys.addaudithook(_heard)


def tell(name: Any) -> None:
    """Notify the reader of this thread of a file that is opened without it."""
    reader: Any = asking.reader
    if isinstance(reader, Witness):
        path = _path_of(name)
        if path is None:
            reader.saw_unknown()
        elif path:
            reader.saw(path)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("open", "sqlite3.connect"):
        return
    reader: Any = asking.reader
    if not isinstance(reader, Witness):
        return
    try:
        is_told = _heard_open(*arguments) if event == "open" else _heard_connect(*arguments)
    except Exception:  # noqa: BLE001 - an error here would be raised by the user's ``open``
        is_told = False
    if not is_told:
        reader.saw_unknown()


def _heard_open(name: Any, mode: Any, flags: Any) -> bool:
    """Report a file unless it cannot be an input of a sample. Return False if its path is unknown."""
    if type(flags) is int and flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller.f_code.co_filename.startswith(_BETWEEN):
        caller = caller.f_back
    if caller is not None and caller.f_code.co_filename.startswith(_OWN):
        return True
    if mode is None and not os.path.isabs(name):
        return False  # os.open: the event does not contain the directory.
    tell(name)
    return True


def _heard_connect(name: Any) -> bool:
    if os.fspath(name) not in ("", b"", ":memory:", b":memory:"):
        tell(name)
    return True


def _path_of(name: Any) -> str | None:
    """Return the path of a file by its name or descriptor; "" if it is not a file, None if the path is unknown."""
    try:
        text = os.readlink(f"/proc/self/fd/{name}") if type(name) is int else os.fsdecode(os.fspath(name))
        if type(name) is int:
            return text if text.startswith("/") else ""
        if "\0" in text or not text:
            return ""
        return absolute_path(text) or os.path.join(os.getcwd(), text)
    except (OSError, TypeError):
        return None
