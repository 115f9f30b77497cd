"""Files below the roots that are opened past the cache, and by which call: Python tells of each that it opens itself.

A file that is answered from the cache is not opened, so Python tells of none. Opens of C libraries are not reported,
but for those that say so (``passed``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from prefeed.tally.estimate import deaf, groups
from prefeed.tally.program import IN_SAMPLE, PAST, TOUCHED, add_one, is_counting, key_of

Covers = Callable[[str], bool] | None
"""Takes the path of a directory, ending in ``/``; returns whether its files are for the cache."""

_PREFEED = os.path.dirname(os.path.dirname(__file__)) + os.sep
_WITHIN = (f"{_PREFEED}interception{os.sep}", __file__)
_OF_USERS = tuple(f"{_PREFEED}{room}{os.sep}" for room in ("vision",))
_IMPORT = ("<frozen importlib", "<frozen zipimport")
_STANDARD = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CODE = (".py", ".pyc", ".so")
_STANDS_FOR = {"FromFile.fromfile": "numpy.fromfile"}
_OPENS_BY_ITSELF = {"ImRead.imread": "cv2.imread", "ReadFile.__call__": "torchvision.io.read_file"}
_NOT_READ = os.O_ACCMODE | os.O_DIRECTORY | os.O_PATH  # ``O_RDONLY`` is 0
_MOST_DIRECTORIES = 1 << 16
_MOST_FILES = 1 << 12

_OWN, _BETWEEN, _NOBODYS = "", "<between>", "<nobody's>"
"""Code of the user's, prefeed's that stands between it and a file, and what opens files of its own."""


_ROOTS = "roots"
"""File with what is looked for; not there: nothing is."""

_NAMED, _MOUNTS = "named", "mounts"


class _Watch:
    """Which directories matter.

    Attributes:
        places: All that is covered lies below these.
        covers: Says whether a directory below them is covered; None: each is.
        near: What was found out, by directory.
    """

    def __init__(self) -> None:
        self.places: tuple[str, ...] = ()
        self.covers: Covers = None
        self.near: dict[str, bool] = {}
        self.is_hooked = False

    def is_near(self, directory: str) -> bool:
        """Return whether a directory, as it is called, lies below the places, or leads there."""
        if not directory.startswith("/"):
            directory = f"{os.getcwd()}/{directory}"
        found = self.near.get(directory)
        if found is None:
            found = self._is_below(directory) or self._is_below(os.path.realpath(directory) + "/")
            if len(self.near) >= _MOST_DIRECTORIES:
                self.near.clear()
            self.near[directory] = found
        return found

    def _is_below(self, directory: str) -> bool:
        return ".." not in directory and directory.startswith(self.places)


_watch = _Watch()
_near = _watch.near.get
_calls: dict[CodeType, str] = {}
_kinds: dict[str, str] = {}


def write_roots(directory: str, places: tuple[str, ...], *, are_named: bool) -> None:
    """Processes that begin to count in a directory watch for these places.

    Args:
        directory: Of the program.
        places: Absolute.
        are_named: All that lies below them counts; else what ``Roots`` says of it in the process.
    """
    with open(f"{directory}/{_ROOTS}", "wb") as file:
        file.write(b"\0".join(map(os.fsencode, (_NAMED if are_named else _MOUNTS, *places))))


def watch_roots(directory: str) -> None:
    """Watch for what is written down in the directory of the program; nothing where nothing is."""
    try:
        with open(f"{directory}/{_ROOTS}", "rb") as file:
            kind, *places = map(os.fsdecode, file.read().split(b"\0"))
    except OSError:
        return
    watch(tuple(places), None if kind == _NAMED else _is_on_network)


def _is_on_network(directory: str) -> bool:
    global _roots
    if _roots is None:  # most processes never come here
        mounts = importlib.import_module("prefeed.sources.mounts")
        _roots = mounts.Roots.of(importlib.import_module("prefeed.config").Config(roots=None))
    return bool(_roots.covers(directory))


_roots: Any = None


def watch(places: tuple[str, ...], covers: Covers = None) -> None:
    """Count opens below these directories from now on, in this process and its forks; for good.

    It costs 0.16 us for each event that Python tells of, such as ``id``, and less than 1 us for an open elsewhere.

    Args:
        places: Absolute.
        covers: Asked about each directory below them, once; None: all of them count.
    """
    _watch.places = tuple(place.rstrip("/") + "/" for place in places)
    _watch.covers = covers
    _watch.near.clear()
    if places and not _watch.is_hooked:
        _watch.is_hooked = True
        sys.addaudithook(_heard)


def passed(call: str, name: Any) -> None:
    """A library is about to open a file by itself; ``call`` is what the user called."""
    if _watch.places and is_counting() and not _is_estimated():
        try:
            directory = os.path.dirname(os.fsdecode(name)) + "/"
            if _watch.is_near(directory) and _covers(directory):
                _count(call, directory)
        except Exception:  # noqa: BLE001 - the library says what is wrong with it
            return


def measured(name: str) -> None:
    """What stands between the user's code and a file has read it from storage, to measure that, in the place of what the user called."""
    if _watch.places and is_counting() and not _is_estimated():
        try:
            directory = os.path.dirname(name) + "/"
            if _watch.is_near(directory) and _covers(directory) and (call := _call_measured(sys._getframe(1))):
                _count(call, directory)
        except Exception:  # noqa: BLE001 - it is no reason for the sample to fail
            return


def _call_measured(frame: FrameType | None) -> str:
    while frame is not None and _kind_of(frame) != _BETWEEN:
        frame = frame.f_back
    between = frame
    while between is not None and _kind_of(between) == _BETWEEN:
        if (call := _OPENS_BY_ITSELF.get(between.f_code.co_qualname)) is not None:
            return call
        between = between.f_back
    return _call_of(frame, "open")


def _is_estimated() -> bool:
    """Return whether this thread makes samples whose opens are not counted one by one."""
    return get_ident() in deaf


def has_places() -> bool:
    """Return whether any directory matters."""
    return bool(_watch.places)


def place_of(directory: str) -> str | None:
    """Return below which of the watched places a directory lies, ``/`` at its end; None: its files do not count. Never raises."""
    try:
        if not _watch.is_near(directory) or not _covers(directory):
            return None
        for form in (os.path.abspath(directory) + "/", os.path.realpath(directory) + "/"):
            for place in _watch.places:
                if form.startswith(place):
                    return place.rstrip("/") or "/"
    except Exception:  # noqa: BLE001 - a name may be anything
        return None
    return None


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if deaf and get_ident() in deaf:  # first of all: so it is for nearly each file that is read in place
        return
    if event == "open":
        try:
            name, mode, flags = arguments
            directory = name[: name.rfind("/") + 1]
            near = _near(directory)
            if near is not False and (near or _watch.is_near(directory)):  # here all opens end but those that matter
                _opened(directory, name, mode, flags)
        except Exception:  # noqa: BLE001 - whatever is raised here is raised by the user's ``open``
            _heard_other(arguments)


def _heard_other(arguments: tuple[Any, ...]) -> None:
    """A file is opened whose name is no text."""
    with contextlib.suppress(Exception):
        if type(arguments[0]) is not int:  # else it was opened before
            name = os.fsdecode(arguments[0])
            directory = name[: name.rfind("/") + 1]
            if _watch.is_near(directory):
                _opened(directory, name, *arguments[1:])


def _opened(directory: str, name: str, mode: Any, flags: int) -> None:
    if flags & _NOT_READ or name.endswith(_CODE) or not is_counting():
        return
    call = "os.open" if mode is None else "open"
    frame = sys._getframe(2)
    kind = _kinds.get(frame.f_code.co_filename)
    if kind == _BETWEEN and frame.f_code.co_name == "open" and frame.f_back is not None:
        kind = _kinds.get(frame.f_back.f_code.co_filename)
    if kind != _OWN:  # else it is the user's code, as for nearly all that a sample opens
        call = _call_of(frame, call)
    if call and (_watch.covers is None or _covers(directory)):
        _count(call, directory)


def _covers(directory: str) -> bool:
    if _watch.covers is None:
        return True
    return bool(_watch.covers(directory if directory.startswith("/") else f"{os.getcwd()}/{directory}"))


def _count(call: str, directory: str) -> None:
    if directory not in _touched:
        _touched.add(directory)
        if (place := place_of(directory)) is not None:
            add_one(key_of(TOUCHED, place))
    asking = sys.modules.get("prefeed.interception.asking")
    where = "" if asking is None else asking.whereabouts()
    key = _keys.get((call, where))
    if key is None:
        key = _keys[call, where] = key_of(PAST, call, where)
    add_one(key)
    if groups and where == IN_SAMPLE and (group := groups.get(get_ident())) is not None:
        group.opened(key)


_keys: dict[tuple[str, str], bytes] = {}
_touched: set[str] = set()
"""Directories whose files were counted."""


def _kind_of(frame: FrameType) -> str:
    """Return whose code a frame runs, by its file: the name of an installed package, or ``_OWN`` and its like."""
    file = frame.f_code.co_filename
    kind = _kinds.get(file)
    if kind is None:
        if len(_kinds) >= _MOST_FILES:
            _kinds.clear()
        kind = _kinds[file] = _found_kind(frame)
    return kind


def _found_kind(frame: FrameType) -> str:
    file = frame.f_code.co_filename
    if file.startswith(_WITHIN):
        return _BETWEEN
    if file.startswith(_IMPORT) or (file.startswith(_PREFEED) and not file.startswith(_OF_USERS)):
        return _NOBODYS
    return _library_of(frame)


def _call_of(frame: FrameType | None, bare: str) -> str:
    """Return what opens a file: the function of a library that the user's code called, else ``bare``; "": no user's."""
    while frame is not None and _kind_of(frame) == _BETWEEN:
        bare = _STANDS_FOR.get(frame.f_code.co_qualname, bare)
        frame = frame.f_back
    library = _NOBODYS if frame is None else _kind_of(frame)
    if frame is None or library == _NOBODYS:
        return ""
    if library == _OWN:
        return bare
    above = frame.f_back
    while above is not None and _library_of(above) == library:
        frame, above = above, above.f_back
    code = frame.f_code
    if code not in _calls:
        _calls[code] = _shown(frame, library)
    return _calls[code]


def _library_of(frame: FrameType) -> str:
    """Return the name of the installed package that a frame's code is of; "": it is the user's own."""
    file = frame.f_code.co_filename
    if file.startswith(_STANDARD) or any(mark in file for mark in _PACKAGES):
        library = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        return "" if library == "__main__" else library
    return ""


def _shown(frame: FrameType, library: str) -> str:
    """Return the name of a library's function as users write it, as far as that can be told: ``numpy.load``."""
    name = frame.f_code.co_qualname.partition(".<locals>")[0]
    name = name.removesuffix(".__init__").removesuffix(".__new__")
    package = sys.modules.get(library)
    is_exported = package is not None and name.partition(".")[0] in vars(package)
    return f"{library if is_exported else frame.f_globals['__name__']}.{name}"
