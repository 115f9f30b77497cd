"""Readers of images that open their files in C++: ``cv2.imread``, and what torchvision reads with."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from prefeed.interception.asking import Replacement, ask_whole, asking
from prefeed.interception.events import tell
from prefeed.interception.paths import absolute_path, path_name
from prefeed.interception.writing import Named, Telling
from prefeed.tally.opens import passed
from prefeed.types import Buffer

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
        passed("cv2.imread", args[0] if args else kwargs.get("filename"))
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
        passed("torchvision.io.read_file", args[0] if args else None)
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
