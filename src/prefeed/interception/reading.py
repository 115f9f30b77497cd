"""Functions that read files, answered by the reader: ``open``, ``numpy.fromfile``, ``cv2.imread``, torchvision's readers.

``open`` is answered where a file is opened for reading alone, and observers are told of where it may be written. The others
read past Python, in C++.
"""

from __future__ import annotations

import io
import operator
import os
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from prefeed.interception.asking import Replacement, absolute_path, ask, ask_whole, asking, call_unanswered, path_name
from prefeed.interception.events import tell
from prefeed.interception.files import PartlyReadFile, ServedFile, as_text, opened_file
from prefeed.interception.writing import Named, Telling, is_writing, observers

if TYPE_CHECKING:
    from prefeed.types import Buffer

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


_IN_MEMORY = (ServedFile, PartlyReadFile)


class FromFile(Replacement):
    """In place of ``numpy.fromfile``."""

    home = "numpy"

    def fromfile(
        self, file: Any, dtype: Any = float, count: Any = -1, sep: Any = "", offset: Any = 0, *, like: Any = None
    ) -> Any:
        if like is not None:
            return self.original(file, dtype, count, sep, offset, like=like)
        if type(file) in _IN_MEMORY or asking.reader is not None:
            array = _served(file, dtype, count, sep, offset)
            if array is not None:
                return array
            return call_unanswered(self.original, file, dtype, count, sep, offset)
        return self.original(file, dtype, count, sep, offset)


FromFile.fromfile.__doc__ = np.fromfile.__doc__
FromFile.fromfile.__module__ = np.fromfile.__module__
FromFile.fromfile.__qualname__ = "fromfile"
FromFile.fromfile.__annotations__.clear()


def _served(file: Any, dtype: Any, count: Any, sep: Any, offset: Any) -> Any:
    """Return the array, or None for what numpy has to say itself: text, errors, objects."""
    try:
        items, count, offset = np.dtype(dtype), operator.index(count), operator.index(offset)
    except (TypeError, ValueError):
        return None
    if sep != "" or items.hasobject or items.itemsize == 0 or items.subdtype is not None or count < -1 or offset < 0:
        return None
    if type(file) in _IN_MEMORY:
        return None if file.closed else _from_file(file, items, count, offset)
    opened = _binary(file)
    if opened is None:
        return None
    with opened:
        return _from_file(opened, items, count, offset)


def _from_file(file: ServedFile | PartlyReadFile, items: Any, count: int, offset: int) -> Any:
    """Read as the C library would; what is left of an item at the end is read over when more was asked for."""
    num_bytes = file.num_remaining() - offset
    if num_bytes < 0:
        return None
    there = num_bytes // items.itemsize
    array: Any = np.empty(there if count == -1 else min(count, there), items)
    file.seek(offset, os.SEEK_CUR)
    if array.size:
        file.readinto(array.view(np.uint8))
    if count > there:
        file.seek(0, os.SEEK_END)
    return array


_COLOR_BGR = 1  # cv2's default flag
_UNCHANGED = -1
_ORIENTATION = 0x0112  # tag of a TIFF
_LOAD_GDAL = 8  # a reader that wants the file itself


class ImRead(Replacement):
    """In place of ``cv2.imread``."""

    home = "cv2"

    def imread(self, *args: Any, **kwargs: Any) -> Any:
        if asking.reader is not None:
            asked = _imread_arguments(args, kwargs)
            image = None if asked is None else _decoded(*asked)
            if image is not None:
                return image
            tell(args[0] if args else kwargs.get("filename"))
        return self.original(*args, **kwargs)


def imread_in_place_of(original: Callable[..., Any]) -> Any:
    """Return what stands in for ``cv2.imread``."""
    ImRead.imread.__doc__ = original.__doc__
    ImRead.imread.__qualname__ = "imread"
    ImRead.imread.__module__ = getattr(original, "__module__", None) or "cv2"
    return ImRead(original).imread


def _imread_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int] | None:
    """Return file name and flags; None for a call that reads into an array of the caller's, or is wrong."""
    names = ("filename", "flags") if len(args) == 2 and args[1] is not None else ("filename", "dst", "flags")
    given = dict(zip(names, args, strict=False))
    if len(args) > len(names) or given.keys() & kwargs.keys():
        return None
    given.update(kwargs)
    flags = given.pop("flags", _COLOR_BGR)
    if "filename" not in given or given.get("dst") is not None or given.keys() - {"filename", "dst"}:
        return None
    if type(flags) is not int or (flags != _UNCHANGED and flags & _LOAD_GDAL):
        return None
    return given["filename"], flags


def _decoded(file: Any, flags: int) -> Any:
    cv2 = sys.modules["cv2"]
    if type(file) is not str:
        try:
            cv2.haveImageWriter(file)  # looks at the ending alone: does this version take bytes, a Path?
        except (TypeError, cv2.error):
            return None
    data = _bytes_of(file)
    if not data or _is_turned_tiff(data):
        return None
    try:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None


def _is_turned_tiff(data: Buffer) -> bool:
    """Return True for a TIFF that is to be turned on its side: OpenCV 5.0 refuses it as a file, not as bytes (2026)."""
    start = bytes(data[:4])
    if start[:2] not in (b"II", b"MM"):
        return False
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(start)
    if order is None:
        return True  # with wide offsets: cannot be told here
    try:
        (directory,) = struct.unpack_from(f"{order}I", data, 4)
        (num_tags,) = struct.unpack_from(f"{order}H", data, directory)
        for place in range(directory + 2, directory + 2 + num_tags * 12, 12):
            tag, _kind, _count, value = struct.unpack_from(f"{order}HHIH", data, place)
            if tag == _ORIENTATION:
                return bool(value > 4)
    except struct.error:
        return True
    return False


class ReadFile(Replacement):
    """In place of the operator beneath torchvision's ``read_file``, ``read_image`` and ``decode_image``.

    The operator and not the functions: those are also imported by name, and they warn and check as they like.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if asking.reader is not None and len(args) == 1 and not kwargs and type(args[0]) is str:
            data = _bytes_of(args[0])
            if data:
                torch = sys.modules["torch"]
                return torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if asking.reader is not None:
            tell(args[0] if args else None)
        return self.original(*args, **kwargs)


class WriteFile(Replacement):
    """In place of the operator beneath torchvision's ``write_file``, ``write_jpeg`` and ``write_png``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = (kwargs.get("filename"), *args[:1])
        with Telling(*(Named(name) for name in names if isinstance(name, str))):
            return self.original(*args, **kwargs)


def read_file_in_place_of(original: Any) -> Any:
    """Return an operator that reads."""
    return _operator(original, ReadFile(original))


def write_file_in_place_of(original: Any) -> Any:
    """Return an operator that writes."""
    return _operator(original, WriteFile(original))


def _operator(original: Any, ours: Any) -> Any:
    """Return an operator that is called as ours, and to TorchScript and the compiler is the one that it replaces."""

    def call(_self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    kind = type(original)
    members = {"__call__": call, "__module__": kind.__module__, "__self__": ours}
    operator: Any = object.__new__(type(kind.__name__, (kind,), members))
    operator.__dict__ = original.__dict__  # shared: it grows when overloads are asked for
    return operator


def _bytes_of(file: Any) -> Buffer | None:
    name = path_name(file)
    path = None if name is None else absolute_path(name)
    return None if path is None else ask_whole(path)
