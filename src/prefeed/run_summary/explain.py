"""Records calls that open files below the roots without the cache: the audit hook of ``prefeed run --explain``.

Each open that Python reports bypassed the cache, because a hit opens no file. Opens of C libraries are not reported.
The hook costs 0.2 us per event of Python, and microseconds per open below the roots, so only ``--explain`` installs it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

from prefeed.run_summary import counters

ROOTS = "PREFEED_RUN_EXPLAIN"
"""Environment variable with the directories to explain, separated by ``os.pathsep``."""

_PREFEED = os.path.dirname(os.path.dirname(__file__)) + os.sep
_BETWEEN = (f"{_PREFEED}interception{os.sep}", f"{_PREFEED}client{os.sep}in_place.py")  # open for the program
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_NOT_READ = os.O_ACCMODE | os.O_DIRECTORY | os.O_PATH  # ``O_RDONLY`` is 0

_roots: tuple[str, ...] = ()


def begin(roots: str) -> None:
    """Record opens below these directories, in this process and in its later forks."""
    global _roots
    _roots = tuple(f"{os.path.realpath(root)}/" for root in roots.split(os.pathsep))
    sys.addaudithook(_hear)


def is_on() -> bool:
    """Return whether opens are recorded."""
    return bool(_roots)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        with contextlib.suppress(Exception):  # an exception would be raised by the program's ``open``
            name, _, flags = arguments
            path = os.path.abspath(os.fsdecode(name))
            if not flags & _NOT_READ and not path.endswith((".py", ".pyc", ".so")) and _is_below(os.path.dirname(path)):
                asking = sys.modules.get("prefeed.interception.asking")
                where = "outside of samples" if asking is None else asking.whereabouts()
                if call := _call_of(sys._getframe(1), "os.open" if arguments[1] is None else "open"):
                    counters.add(f"{counters.OPENED}\t{call}\t{where}")


@lru_cache(maxsize=1 << 16)
def _is_below(directory: str) -> bool:
    return f"{os.path.realpath(directory)}/".startswith(_roots)


def _call_of(frame: FrameType | None, bare: str) -> str:
    """Return the library function that opened a file for the program, or ``bare``; "" for prefeed's own opens."""
    while frame is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_code.co_filename.startswith((_PREFEED, "<frozen importlib")):
        return ""
    library = _library_of(frame)
    if not library:
        return bare
    while frame.f_back is not None and _library_of(frame.f_back) == library:
        frame = frame.f_back
    name = frame.f_code.co_qualname.removesuffix(".__init__").removesuffix(".__new__")
    is_exported = hasattr(sys.modules.get(library), name.partition(".")[0])
    return f"{library if is_exported else frame.f_globals['__name__']}.{name}"


def _library_of(frame: FrameType) -> str:
    """Return the name of the installed package of a frame, or an empty text for the program's own code."""
    file = frame.f_code.co_filename
    if not file.startswith(_LIBRARIES) and f"{os.sep}site-packages{os.sep}" not in file:
        return ""
    library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return "" if library == "__main__" else library
