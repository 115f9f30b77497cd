"""``numpy.fromfile``, which reads past Python: from a path, or from a file of ours."""

from __future__ import annotations

import operator
import os
from typing import Any

import numpy as np

from prefeed.interception.asking import Replacement, ask, asking, call_unanswered
from prefeed.interception.files import PartlyReadFile, ServedFile, opened_file
from prefeed.interception.paths import absolute_path, path_name

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
    name = path_name(file)
    path = None if name is None else absolute_path(name)
    answer = None if path is None else ask(path)
    if name is None or path is None or answer is None:
        return None
    with opened_file(answer, name, path) as opened:
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
