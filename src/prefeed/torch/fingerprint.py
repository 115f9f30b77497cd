"""Which dataset this is: the same answer in every rank and in the next run, without opening a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset
from xxhash import xxh3_64

_SHOWN = 200
_DEPTH = 4


def fingerprint(dataset: Any, roots: tuple[str, ...] | None = None) -> str:
    """Return 16 hex digits made from the dataset's class, its length, what its attributes are, and the roots.

    What was learned below other roots counts no more.

    Two datasets that share one by chance relearn what their samples open, each time, and are read right all the same.
    """
    digest = xxh3_64()
    for part in (*_parts(dataset, _DEPTH), repr(roots)):
        digest.update(part.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


def _parts(value: Any, depth: int) -> list[str]:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return [repr(value)[:_SHOWN]]
    if isinstance(value, os.PathLike):
        return [repr(os.fspath(value))]
    parts = [f"{type(value).__module__}.{type(value).__qualname__}", str(_length(value))]
    if depth == 0:
        return parts
    if isinstance(value, list | tuple) and value:
        return [*parts, *_parts(value[0], depth - 1), *_parts(value[-1], depth - 1)]
    if isinstance(value, Dataset):
        for name, attribute in sorted(_attributes(value).items()):
            parts += [name, *_parts(attribute, depth - 1)]
    return parts


def _attributes(dataset: Any) -> Mapping[str, Any]:
    return getattr(dataset, "__dict__", {})


def _length(value: Any) -> int:
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return -1
