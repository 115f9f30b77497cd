"""Where replacements are put, and how everything is put back."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from prefeed.interception.arrays import FromFile
from prefeed.interception.asking import original_of
from prefeed.interception.images import imread_in_place_of, read_file_in_place_of, write_file_in_place_of
from prefeed.interception.opening import Opener
from prefeed.interception.writing import FUNCTIONS, changing_in_place_of, file_io_in_place_of, observers


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
)

_OF_WRITERS: _Places = (
    *((module, _itself, name, changing_in_place_of(module, name, find)) for module, name, find in FUNCTIONS),
    ("io", _itself, "FileIO", file_io_in_place_of),
    ("torchvision.io.image", _image_operators, "write_file", write_file_in_place_of),
)
"""What is replaced as well while somebody observes what is written."""

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
        self.is_replaced = False

    def restore(self) -> None:
        """Put the original back, unless someone has put theirs over ours: theirs goes on calling ours."""
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
        self.num_modules = -1
        """Length of ``sys.modules`` at the last look; -1: look again."""

    def replace_all(self, *, finished: str = "") -> None:
        """Replace what the modules imported by now have, and is not replaced yet.

        Args:
            finished: Name of a module of which the caller knows that all of it is there, whatever it says.
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

    def _place(self, module_name: str, owner: Any, name: str) -> Place:
        place = self._places.get((module_name, name))
        if place is not None and place.owner is owner:
            return place
        if place is not None and place.is_replaced:
            place.restore()  # the module was thrown away and imported anew
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

    def restore_all(self) -> None:
        """Put everything back as it was."""
        for place in self._places.values():
            if place.is_replaced:
                place.restore()
        self.num_modules = -1
