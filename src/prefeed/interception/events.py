"""Files that are opened past every replacement: Python tells of each ``open`` that it does itself, from any caller.

``io.open`` that somebody bound before it was replaced (numpy's ``DataSource`` does), ``os.open``, a descriptor that was
opened before. What C libraries open by themselves is not told: HDF5, LMDB, video readers.
"""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Final, Protocol, runtime_checkable

from prefeed.interception.asking import absolute_path, asking


@runtime_checkable
class Witness(Protocol):
    """A ``FileReader`` that also wants to know of files that it was not asked for."""

    def saw(self, path: str) -> None:
        """A file is being opened.

        Args:
            path: Absolute; it may go up and through symbolic links, as the system allows.
        """
        ...

    def saw_unknown(self) -> None:
        """A file is being opened that cannot be identified."""
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
"""Code that is imported, and what opens files for itself or for a reader: none of them belongs to a sample."""

_is_watching = False


def watch_opens() -> None:
    """From now on, the one in charge of a thread, if it is a ``Witness`` hears of files opened there. Idempotent.

    For good, in this process and those that it forks, and at a price: 0.16 us for each event that Python tells of, such as ``id``.
    """
    global _is_watching
    if not _is_watching:
        _is_watching = True
        sys.addaudithook(_heard)


def tell(name: Any) -> None:
    """A file of this name is being opened, in a way that is not asked about."""
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
    except Exception:  # noqa: BLE001 - whatever is raised here is raised by the user's ``open``
        is_told = False
    if not is_told:
        reader.saw_unknown()


def _heard_open(name: Any, mode: Any, flags: Any) -> bool:
    """Tell of a file, unless it is none that a sample is made of; False when it cannot be identified."""
    if type(flags) is int and flags & os.O_ACCMODE == os.O_WRONLY:
        return True
    caller: FrameType | None = sys._getframe(2)
    while caller is not None and caller.f_code.co_filename.startswith(_BETWEEN):
        caller = caller.f_back
    if caller is not None and caller.f_code.co_filename.startswith(_OWN):
        return True
    if mode is None and not os.path.isabs(name):
        return False  # os.open: below which directory is not told
    tell(name)
    return True


def _heard_connect(name: Any) -> bool:
    if os.fspath(name) not in ("", b"", ":memory:", b":memory:"):
        tell(name)
    return True


def _path_of(name: Any) -> str | None:
    """Return the path of a file by its name or descriptor; "" for what is no file, None when it cannot be told."""
    try:
        text = os.readlink(f"/proc/self/fd/{name}") if type(name) is int else os.fsdecode(os.fspath(name))
        if type(name) is int:
            return text if text.startswith("/") else ""
        if "\0" in text or not text:
            return ""
        return absolute_path(text) or os.path.join(os.getcwd(), text)
    except (OSError, TypeError):
        return None
