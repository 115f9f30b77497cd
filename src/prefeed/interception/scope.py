"""Installs the replacements, and restores the originals.

Replacements are installed while a thread is inside a scope (``reads_from``), while an observer of writes is registered, and between
``install`` and ``uninstall``. ``_PLACES`` lists the replaced functions. ``_ProcessState`` counts the reasons and restores the originals
once none is left.
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
    # Module that must be imported, function that finds the owner, name of the attribute, factory of the replacement.
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
"""Functions that are also replaced while an observer of writes is registered."""

_OPENS = (("builtins", "open"), ("io", "open"))

_ABILITIES = (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids)
"""Sets in which ``os`` lists functions that support an argument. They must contain the replacements as well."""


class PatchPoint:
    """Attribute of a module whose value is replaced.

    Attributes:
        original: Value before the replacement.
        replacement: Our value.
        is_replaced: True if our value was set and not removed again.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name
        self.original: Any = None
        self.replacement: Any = None
        self.is_replaced: bool = False

    @property
    def is_ours(self) -> bool:
        """True if the attribute is our replacement."""
        return self.is_replaced and getattr(self.owner, self.name, None) is self.replacement

    def restore(self) -> None:
        """Restore the original, unless other code has replaced our value, because theirs still calls ours."""
        if getattr(self.owner, self.name, None) is self.replacement:
            setattr(self.owner, self.name, self.original)
        for functions in _ABILITIES if self.owner is os else ():
            functions.discard(self.replacement)
        self.is_replaced = False

    def replace(self) -> None:
        """Set the replacement."""
        setattr(self.owner, self.name, self.replacement)
        for functions in _ABILITIES if self.owner is os else ():
            if self.original in functions:
                functions.add(self.replacement)
        self.is_replaced = True


class PatchPoints:
    """All replacements of this process.

    **Threads and processes**: the caller holds a lock.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], PatchPoint] = {}
        self.num_modules: int = -1
        """Length of ``sys.modules`` at the last scan for new modules; -1 to scan again."""

    def replace_all(self, *, finished: str = "") -> None:
        """Replace the functions of all imported modules that are not replaced yet.

        Args:
            finished: Name of a module that is completely imported, even if its spec still reports otherwise.
        """
        num_modules = len(sys.modules)
        for module_name, find, name, make in (*_PLACES, *_OF_WRITERS) if observers else _PLACES:
            module = sys.modules.get(module_name)
            if module is None:
                continue
            if module_name != finished and getattr(getattr(module, "__spec__", None), "_initializing", False):
                num_modules = -1  # Still being imported, by another thread or by a caller.
                continue
            owner = find(module)
            if getattr(owner, name, None) is not None:
                self._replace(self._place(module_name, owner, name), make)
        self.num_modules = num_modules
        copyreg.dispatch_table.setdefault(BuiltinFunctionType, self.reduced)

    def reduced(self, function: Any) -> Any:
        """Pickle a built-in. An original that is replaced is pickled as its replacement, by name."""
        place = next(
            (place for place in [*self._places.values()] if place.is_replaced and place.original is function), None
        )
        return (function if place is None else place.replacement).__reduce__()

    def _place(self, module_name: str, owner: Any, name: str) -> PatchPoint:
        place = self._places.get((module_name, name))
        if place is not None and place.owner is owner:
            return place
        if place is not None and place.is_replaced:
            place.restore()  # The module was deleted and imported again.
        place = self._places[module_name, name] = PatchPoint(owner, name)
        return place

    def _replace(self, place: PatchPoint, make: Callable[[Any], Any]) -> None:
        there = getattr(place.owner, place.name)
        if place.is_replaced and there is not place.original:
            return  # Ours, or a function of other code that calls ours.
        original = original_of(there)
        if original is not place.original:
            place.original, place.replacement = original, self._made_for(original) or make(original)
        place.replace()

    def _made_for(self, original: Any) -> Any:
        """Find an existing replacement, because ``io.open`` and ``builtins.open`` must remain the same function."""
        return next((place.replacement for place in self._places.values() if place.original is original), None)

    def take_away(self, names: Sequence[tuple[str, str]]) -> list[PatchPoint]:
        """Restore the originals of these functions, and return the removed replacements.

        Avoids function calls, because it runs for each batch that uses direct reads.
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

    def put_back(self, places: Sequence[PatchPoint]) -> None:
        """Set these replacements again, except those that other code has replaced in the meantime."""
        for place in places:
            there = vars(place.owner)
            if there.get(place.name) is place.original:
                there[place.name], place.is_replaced = place.replacement, True

    def restore_all(self) -> None:
        """Restore all originals."""
        for place in self._places.values():
            if place.is_replaced:
                place.restore()
        if copyreg.dispatch_table.get(BuiltinFunctionType) == self.reduced:
            del copyreg.dispatch_table[BuiltinFunctionType]
        self.num_modules = -1


class _ProcessState:
    """State shared by the threads of the process, guarded by ``lock``.

    Attributes:
        num_inside: Number of scopes that all threads together have entered and not left.
        is_for_good: True between ``install`` and ``uninstall``.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # Reentrant, because a signal handler may read files.
        self.places = PatchPoints()
        self.num_inside = 0
        self.is_for_good = False

    def restore_unused(self) -> None:
        """Restore the originals, unless a scope, an observer or ``install`` needs the replacements."""
        if not self.num_inside and not self.is_for_good and not observers:
            self.places.restore_all()

    def continue_forked(self) -> None:
        """Reset the count of scopes in a forked child, which has only the thread that has forked."""
        self.num_inside = asking.depth + asking.kept
        self.restore_unused()
        self.lock.release()


_process = _ProcessState()
os.register_at_fork(
    before=_process.lock.acquire,
    after_in_parent=_process.lock.release,
    after_in_child=_process.continue_forked,
)


class _InterceptionScope:
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
    """Keep the replacements of a scope installed until the end of the block, so that entering the next scope is fast."""
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
    """Mark this thread as computing a sample, without a reader and without installing replacements."""
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
    """Restore Python's own ``open`` for a block, unless a scope, an observer or a reader of all threads needs ours.

    A scope that any thread enters in the meantime installs the replacement again.
    """
    return _OriginalOpen()


def take_open_away() -> Sequence[PatchPoint]:
    """Restore Python's own ``open`` until ``put_open_back`` is called with the result. Faster than ``original_open``."""
    process = _process
    if not process.is_for_good:
        return ()
    with process.lock:
        if process.num_inside or observers or outside.everywhere is not None:
            return ()
        return process.places.take_away(_OPENS)


def put_open_back(taken_away: Sequence[PatchPoint]) -> None:
    """Install the replacements again that ``take_open_away`` has removed."""
    process = _process
    with process.lock:
        if process.is_for_good or process.num_inside or observers:
            process.places.put_back(taken_away)


def answers_everywhere() -> bool:
    """Return True if a reader of all threads is set."""
    return outside.everywhere is not None


def reads_from(reader: FileReader | None) -> AbstractContextManager[None]:
    """Read files of this thread from a reader inside a block; with None, open them as usual.

    Scopes nest, and only the innermost reader is used. Entering a scope takes about 1 us after ``install``.
    """
    return _InterceptionScope(reader)


def answer_everywhere(reader: FileReader | None) -> None:
    """Set the reader of all threads and forks outside of scopes; None to remove the reader.

    Has no effect until the replacements are installed; see ``install``.
    """
    outside.everywhere = reader


def current_reader() -> FileReader | None:
    """Return the reader that serves this thread, or None."""
    return asking.reader


def install(*, finished: str = "") -> None:
    """Install the replacements until ``uninstall``, so that entering a scope is fast. Idempotent.

    Args:
        finished: Name of a module that was just imported, whose functions no other code has bound yet.
    """
    with _process.lock:
        _process.is_for_good = True
        _process.places.replace_all(finished=finished)


def uninstall() -> None:
    """Restore the originals as soon as no thread is inside a scope. Idempotent.

    If other code has replaced our function, its function is not changed, and continues to work.
    """
    with _process.lock:
        _process.is_for_good = False
        _process.restore_unused()


def observe_writes(observer: WriteObserver) -> bool:
    """Notify an observer of all files that this process changes, in all threads and in forks.

    Returns:
        False if the observer was already registered.
    """
    with _process.lock:
        is_new = observer not in observers
        if is_new:
            observers.append(observer)
        _process.places.replace_all()
    return is_new


def end_observing(observer: WriteObserver) -> None:
    """Unregister an observer. Idempotent."""
    with _process.lock:
        if observer in observers:
            observers.remove(observer)
            _process.restore_unused()
