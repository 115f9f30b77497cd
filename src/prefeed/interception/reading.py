"""Replacements of functions that read files: ``open``, ``numpy.fromfile``, ``cv2.imread`` and torchvision's readers.

Each requests the file from the reader of the thread, and calls the original function if the reader does not have the file. ``open``
uses the reader only for modes that do not write, and notifies observers of the others. Start with ``Opener``.
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
from prefeed.interception.writing import FileArgument, WriteNotice, is_writing, observers

if TYPE_CHECKING:
    from prefeed.types import Buffer

_BINARY = ("rb", "br")
_TEXT = ("r", "rt", "tr")


class Opener(Replacement):
    """Replacement of ``open``."""

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
            with WriteNotice(FileArgument(file)):
                return self.original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        reader = asking.reader
        if (
            reader is not None
            and not (  # Fast path for files that the reader does not have.
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


# Keep the results of `help(open)` and `inspect.signature(open)`.
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
    """Replacement of ``numpy.fromfile``."""

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
    """Read the array; return None for text, objects and errors, which numpy handles itself."""
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
    """Read as the C library does: if more items were requested than exist, an incomplete item at the end is skipped."""
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


_COLOR_BGR = 1  # The default flag of cv2.
_UNCHANGED = -1
_ORIENTATION = 0x0112  # Tag of TIFF files.
_LOAD_GDAL = 8  # GDAL opens the file itself.


class ImRead(Replacement):
    """Replacement of ``cv2.imread``."""

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
    """Create the replacement of ``cv2.imread``."""
    ImRead.imread.__doc__ = original.__doc__
    ImRead.imread.__qualname__ = "imread"
    ImRead.imread.__module__ = getattr(original, "__module__", None) or "cv2"
    return ImRead(original).imread


def _imread_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, int] | None:
    """Return file name and flags; None for a wrong call, or one that reads into an array of the caller."""
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
            cv2.haveImageWriter(file)  # Raises if this version does not accept bytes or a Path.
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
    """Return True for a TIFF that is rotated by 90 degrees, which OpenCV 5.0 (2026) refuses as a file but not as bytes."""
    start = bytes(data[:4])
    if start[:2] not in (b"II", b"MM"):
        return False
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(start)
    if order is None:
        return True  # BigTIFF, whose orientation is not parsed here.
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
    """Replacement of the operator that torchvision's ``read_file``, ``read_image`` and ``decode_image`` call.

    The operator is replaced instead of the functions, because programs import these by name.
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
    """Replacement of the operator that torchvision's ``write_file``, ``write_jpeg`` and ``write_png`` call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = (kwargs.get("filename"), *args[:1])
        with WriteNotice(*(FileArgument(name) for name in names if isinstance(name, str))):
            return self.original(*args, **kwargs)


def read_file_in_place_of(original: Any) -> Any:
    """Create the replacement of the operator ``read_file``."""
    return _operator(original, ReadFile(original))


def write_file_in_place_of(original: Any) -> Any:
    """Create the replacement of the operator ``write_file``."""
    return _operator(original, WriteFile(original))


def _operator(original: Any, ours: Any) -> Any:
    """Create an operator that calls ours, but is the original one for TorchScript and the compiler."""

    def call(_self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    kind = type(original)
    members = {"__call__": call, "__module__": kind.__module__, "__self__": ours}
    operator: Any = object.__new__(type(kind.__name__, (kind,), members))
    operator.__dict__ = original.__dict__  # Shared, because torch adds overloads on first use.
    return operator


def _bytes_of(file: Any) -> Buffer | None:
    name = path_name(file)
    path = None if name is None else absolute_path(name)
    return None if path is None else ask_whole(path)
