"""When replacements are in place, where they are put, and how everything is put back.

They are in place while any thread is inside a scope, or somebody observes writes, or for good.
"""

from __future__ import annotations

import copyreg
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import BuiltinFunctionType, TracebackType
from typing import Any

from prefeed.interception.asking import FileReader, asking, original_of, outside, set_reader
from prefeed.interception.reading import (
    FromFile,
    Opener,
    imread_in_place_of,
    read_file_in_place_of,
    write_file_in_place_of,
)
from prefeed.interception.threads import THREADS
from prefeed.interception.writing import FUNCTIONS, WriteObserver, changing_in_place_of, file_io_in_place_of, observers


def _open_in_place_of(original: Any) -> Any:
    return Opener(original).open


def _fromfile_in_place_of(original: Any) -> Any:
    return FromFile(original).fromfile


def _image_operators(_module: Any) -> Any:
    return getattr(sys.modules["torch"].ops, "image", None)


def _itself(module: Any) -> Any:
    return module


_Places = tuple[tuple[str, Callable[[Any], Any], str, Callable[[Any], Any]], ...]

_PLACES: _Places = (
    # module that has to be there, what of it has the function, its name there, how the replacement is made
    ("builtins", _itself, "open", _open_in_place_of),
    ("io", _itself, "open", _open_in_place_of),
    ("bz2", _itself, "_builtin_open", _open_in_place_of),
    ("tarfile", _itself, "bltn_open", _open_in_place_of),
    ("numpy", _itself, "fromfile", _fromfile_in_place_of),
    ("cv2", _itself, "imread", imread_in_place_of),
    ("torchvision.io.image", _image_operators, "read_file", read_file_in_place_of),
    *THREADS,
)

_OF_WRITERS: _Places = (
    *((module, _itself, name, changing_in_place_of(module, name, find)) for module, name, find in FUNCTIONS),
    ("io", _itself, "FileIO", file_io_in_place_of),
    ("torchvision.io.image", _image_operators, "write_file", write_file_in_place_of),
)
"""What is replaced as well while somebody observes what is written."""

_OPENS = (("builtins", "open"), ("io", "open"))

_ABILITIES = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)
"""Sets of functions of ``os`` that others look into."""


class Place:
    """One name in one module, and what stood and stands there.

    Attributes:
        original: What stood there when ours was put in place.
        replacement: Ours.
        is_replaced: Ours was put there and has not been taken away.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.original: Any = None
        self.replacement: Any = None
        self.is_replaced: bool = False

    @property
    def is_ours(self) -> bool:
        """True while our replacement is the one that is called."""
        return self.is_replaced and getattr(self.owner, self.name, None) is self.replacement

    def restore(self) -> None:
        """Put the original back, unless other code has replaced ours: theirs still calls ours."""
        if getattr(self.owner, self.name, None) is self.replacement:
            setattr(self.owner, self.name, self.original)
        for functions in _ABILITIES if self.owner is os else ():
            functions.discard(self.replacement)
        self.is_replaced = False

    def replace(self) -> None:
        """Put ours there."""
        setattr(self.owner, self.name, self.replacement)
        for functions in _ABILITIES if self.owner is os else ():
            if self.original in functions:
                functions.add(self.replacement)
        self.is_replaced = True


class Places:
    """All replacements of this process.

    **Threads and processes**: the caller holds a lock.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], Place] = {}
        self.num_modules: int = -1
        """Length of ``sys.modules`` at the last look; -1: look again."""

    def replace_all(self, *, finished: str = "") -> None:
        """Replace what the modules imported by now have, and is not replaced yet.

        Args:
            finished: Name of a module that the caller knows to be imported completely, whatever it says.
        """
        num_modules = len(sys.modules)
        for module_name, find, name, make in (*_PLACES, *_OF_WRITERS) if observers else _PLACES:
            module = sys.modules.get(module_name)
            if module is None:
                continue
            if module_name != finished and getattr(getattr(module, "__spec__", None), "_initializing", False):
                num_modules = -1  # being imported, by another thread or around us
                continue
            owner = find(module)
            if getattr(owner, name, None) is not None:
                self._replace(self._place(module_name, owner, name), make)
        self.num_modules = num_modules
        copyreg.dispatch_table.setdefault(BuiltinFunctionType, self.reduced)

    def reduced(self, function: Any) -> Any:
        """Return how a function of C is pickled: one that was bound before ours was put in its place, as ours, by its name."""
        place = next(
            (place for place in [*self._places.values()] if place.is_replaced and place.original is function), None
        )
        return (function if place is None else place.replacement).__reduce__()

    def _place(self, module_name: str, owner: Any, name: str) -> Place:
        place = self._places.get((module_name, name))
        if place is not None and place.owner is owner:
            return place
        if place is not None and place.is_replaced:
            place.restore()  # the module was thrown away and imported again
        place = self._places[module_name, name] = Place(owner, name)
        return place

    def _replace(self, place: Place, make: Callable[[Any], Any]) -> None:
        there = getattr(place.owner, place.name)
        if place.is_replaced and there is not place.original:
            return  # ours, or what someone has put over ours
        original = original_of(there)
        if original is not place.original:
            place.original, place.replacement = original, self._made_for(original) or make(original)
        place.replace()

    def _made_for(self, original: Any) -> Any:
        """``io.open`` and ``builtins.open`` are one function, and stay one."""
        return next((place.replacement for place in self._places.values() if place.original is original), None)

    def take_away(self, names: Sequence[tuple[str, str]]) -> list[Place]:
        """Put the originals of these functions back; return what was taken away.

        It happens with each batch that is read in place, so nothing is called that need not be.
        """
        found = []
        for name in names:
            place = self._places.get(name)
            if place is not None and place.is_replaced:
                there = vars(place.owner)
                if there.get(place.name) is place.replacement:
                    there[place.name], place.is_replaced = place.original, False
                    found.append(place)
        if found:
            self.num_modules = -1
        return found

    def put_back(self, places: Sequence[Place]) -> None:
        """Replace them again, but for those that other code has replaced meanwhile."""
        for place in places:
            there = vars(place.owner)
            if there.get(place.name) is place.original:
                there[place.name], place.is_replaced = place.replacement, True

    def restore_all(self) -> None:
        """Put everything back as it was."""
        for place in self._places.values():
            if place.is_replaced:
                place.restore()
        if copyreg.dispatch_table.get(BuiltinFunctionType) == self.reduced:
            del copyreg.dispatch_table[BuiltinFunctionType]
        self.num_modules = -1


class _Process:
    """What the threads of a process share; ``lock`` guards the rest.

    Attributes:
        num_inside: Scopes entered and not left, all threads together.
        is_for_good: Installed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may read files as well
        self.places = Places()
        self.num_inside = 0
        self.is_for_good = False

    def restore_unused(self) -> None:
        """Put everything back, unless somebody needs what is in place."""
        if not self.num_inside and not self.is_for_good and not observers:
            self.places.restore_all()

    def continue_forked(self) -> None:
        """In a forked child: of the threads that were inside, one is left."""
        self.num_inside = asking.depth + asking.kept
        self.restore_unused()
        self.lock.release()


_process = _Process()
os.register_at_fork(
    before=_process.lock.acquire,
    after_in_parent=_process.lock.release,
    after_in_child=_process.continue_forked,
)


class _Scope:
    __slots__ = ("_before", "_reader")

    def __init__(self, reader: FileReader | None) -> None:
        self._reader = reader

    def __enter__(self) -> None:
        with _process.lock:
            if _process.places.num_modules != len(sys.modules):
                _process.places.replace_all()
            _process.num_inside += 1
        self._before = set_reader(self._reader)
        asking.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        set_reader(self._before)
        asking.depth -= 1
        with _process.lock:
            _process.num_inside -= 1
            _process.restore_unused()


@contextmanager
def kept_in_place() -> Iterator[None]:
    """Inside it, what a scope has put in place stays there until the end: entering the next one is cheaper."""
    with _process.lock:
        _process.num_inside += 1
    asking.kept += 1
    try:
        yield
    finally:
        asking.kept -= 1
        with _process.lock:
            _process.num_inside -= 1
            _process.restore_unused()


@contextmanager
def in_sample() -> Iterator[None]:
    """Inside it, this thread makes a sample whose files no reader answers; nothing is put in place."""
    asking.depth += 1
    try:
        yield
    finally:
        asking.depth -= 1


class _OriginalOpen:
    __slots__ = ("_taken_away",)

    def __enter__(self) -> None:
        self._taken_away = take_open_away()

    def __exit__(self, *_: object) -> None:
        if self._taken_away:
            put_open_back(self._taken_away)


def original_open() -> AbstractContextManager[None]:
    """Inside it, ``open`` is Python's own, with replacements installed or not, unless somebody is to be asked or told.

    A scope that is entered meanwhile, in this thread or another, puts the replacement back.
    """
    return _OriginalOpen()


def take_open_away() -> Sequence[Place]:
    """As ``original_open``, until ``put_open_back`` is called with what this returns; quicker."""
    process = _process
    if not process.is_for_good:
        return ()
    with process.lock:
        if process.num_inside or observers or outside.everywhere is not None:
            return ()
        return process.places.take_away(_OPENS)


def put_open_back(taken_away: Sequence[Place]) -> None:
    """Put back what ``take_open_away`` took away."""
    process = _process
    with process.lock:
        if process.is_for_good or process.num_inside or observers:
            process.places.put_back(taken_away)


def answers_everywhere() -> bool:
    """Return whether somebody is asked in all threads, outside of scopes."""
    return outside.everywhere is not None


def reads_from(reader: FileReader | None) -> AbstractContextManager[None]:
    """Inside it, and in this thread only, files that are read by path are asked of the reader first; with None they are not.

    Scopes nest: the inner reader is asked alone. Entering costs about a microsecond once installed.
    """
    return _Scope(reader)


def answer_everywhere(reader: FileReader | None) -> None:
    """Outside of every scope, in all threads and in forks, this reader is asked; None: no reader, as at first.

    It takes effect where the replacements are in place; see ``install``.
    """
    outside.everywhere = reader


def current_reader() -> FileReader | None:
    """Return the reader that is asked in this thread; None where there is none."""
    return asking.reader


def install(*, finished: str = "") -> None:
    """Replacements are in place from now on, scope or no scope: entering one is cheaper. Idempotent.

    Args:
        finished: Name of a module that was imported this moment, before anybody could bind what it has.
    """
    with _process.lock:
        _process.is_for_good = True
        _process.places.replace_all(finished=finished)


def uninstall() -> None:
    """Everything is as it was before ``install``, as soon as no thread is inside a scope. Idempotent.

    A function that other code has put over a replacement is left alone, and keeps working.
    """
    with _process.lock:
        _process.is_for_good = False
        _process.restore_unused()


def observe_writes(observer: WriteObserver) -> bool:
    """Tell the observer of every file that this process changes, from now on, in all threads and in forks.

    Returns:
        False when that is so already.
    """
    with _process.lock:
        is_new = observer not in observers
        if is_new:
            observers.append(observer)
        _process.places.replace_all()
    return is_new


def end_observing(observer: WriteObserver) -> None:
    """Tell it no more. Idempotent."""
    with _process.lock:
        if observer in observers:
            observers.remove(observer)
            _process.restore_unused()
