"""Which dataset this is, as far as that says which files its samples open: the same in every rank and in the next run.

What was learned of a dataset belongs to its files and their order. Of what its attributes hold, only that counts which can
tell these from another dataset's:

    paths              those below the roots
    words              strings without a digit, such as "train"; others if a file or directory below such a path has that name
    lists of names     strings and paths, a few of them looked at; numbers too, in a list as long as the dataset

A rank, a seed, a time, a run's name or folder, a counter, a generator, a logger, a transform do not. It is a guess to both
sides: two datasets that are one by it relearn what their samples open, one that is two learns twice, and all are read right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from torch import Tensor
from torch.nn import Module
from torch.utils.data import Dataset
from xxhash import xxh3_64

from prefeed.sources.mounts import Roots

_LAYOUT: Final = "2"
_LONGEST: Final = 4096
_DEPTH: Final = 5
_MOST_VALUES: Final = 2000
_MOST_LOOKED_FOR: Final = 16
_SAMPLED: Final = 64
"""Entries of a list that are looked at, spread evenly: of 10 million as many as of a hundred."""

_MOST_OF_ENTRY: Final = 8
_MOST_KEYS: Final = 1000
_WIDEST: Final = 64


def fingerprint(dataset: Any, roots: tuple[str, ...] | None = None, *, below: Roots | None = None) -> str:
    """Return 16 hex digits made from the dataset's class, its length, which files it names, and the roots.

    What was learned below other roots counts no more. Properties are not run, and nothing is opened; a few names may be
    looked for.

    Args:
        dataset: The user's.
        roots: As they are set.
        below: Tells what lies below them; made from ``roots`` when not given.
    """
    below = Roots((), named=roots or ()) if below is None else below
    digest = xxh3_64()
    for part in (_LAYOUT, repr(roots), *_Reading(dataset, below).parts()):
        digest.update(part.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


class _Reading:
    """One look through a dataset."""

    def __init__(self, dataset: Any, roots: Roots) -> None:
        self._dataset = dataset
        self._length = -1  # of the dataset that is being looked at
        self._roots = roots
        self._left = _MOST_VALUES
        self._paths: list[str] = []
        self._others: list[tuple[str, str]] = []

    def parts(self) -> Iterator[str]:
        """Yield what tells the dataset from others."""
        yield from self._of("", self._dataset, _DEPTH)
        for name, text in self._others[:_MOST_LOOKED_FOR]:  # the paths beside which it may lie are all known by now
            if any(os.path.lexists(os.path.join(path, text)) for path in self._paths[:_MOST_LOOKED_FOR]):
                yield f"{name}={text}"

    def _of(self, name: str, value: Any, depth: int) -> Iterator[str]:
        self._left -= 1
        if self._left < 0 or depth < 0:
            return
        if isinstance(value, str | os.PathLike):
            yield from self._of_text(name, value)
        elif isinstance(value, Mapping):
            yield from self._of_mapping(name, value, depth)
        elif isinstance(value, list | tuple | np.ndarray | Tensor) or _is_of_pandas(value):
            yield from self._of_list(name, value, depth)
        elif value is self._dataset or _is_dataset(value) or _is_record(value):
            if value is self._dataset or isinstance(value, Dataset):
                yield f"{name}:{type(value).__module__}.{type(value).__qualname__} {_length(value)}"
            around = self._length
            self._length = _length(value) if _is_dataset(value) else around
            for attribute, held in sorted(_attributes(value).items()):
                yield from self._of(f"{name}.{attribute}", held, depth - 1)
            self._length = around

    def _of_text(self, name: str, value: str | os.PathLike[Any]) -> Iterator[str]:
        text = os.fsdecode(value)[:_LONGEST]
        path = os.path.abspath(text) if os.sep in text and "\0" not in text else ""
        if path and self._roots.reaches(path):
            self._paths.append(path)
            yield f"{name}={path}"
        elif text.startswith(os.sep):
            return  # where the run writes, or what it reads elsewhere
        elif not any(map(str.isdigit, text)):
            yield f"{name}={text}"
        elif text.isprintable():
            self._others.append((name, text))

    def _of_mapping(self, name: str, value: Mapping[Any, Any], depth: int) -> Iterator[str]:
        if type(value) is not dict or not value:
            return  # whatever it runs to give its entries
        if len(value) > _MOST_KEYS or (len(value) == self._length and not all(map(_is_word, islice(value, _SAMPLED)))):
            first, last = islice(value.items(), _SAMPLED), next(reversed(value.items()))
            yield from self._of_entries(name, len(value), (*first, last))
            return
        for key, held in sorted(((key, held) for key, held in value.items() if isinstance(key, str)), key=_first):
            yield from self._of(f"{name}[{key}]", held, depth - 1)

    def _of_list(self, name: str, value: Any, depth: int) -> Iterator[str]:
        length = _length(value)
        if length <= 0:
            return
        is_whole = length == self._length
        if isinstance(value, list | tuple) and not is_whole and length <= _MOST_OF_ENTRY:
            for place, held in enumerate(_listed(value)):
                yield from self._of(f"{name}[{place}]", held, depth - 1)
            return
        with suppress(Exception):  # a sequence of the user's own may do what it likes when it is asked
            places = sorted({*range(0, length, max(1, length // _SAMPLED)), length - 1})
            yield from self._of_entries(name, length, [_entry(value, place) for place in places if _has_names(value)])

    def _of_entries(self, name: str, length: int, entries: Iterable[Any]) -> Iterator[str]:
        found = [list(_names_in(entry, with_numbers=length == self._length)) for entry in entries]
        if any(found):
            yield f"{name}#{length}"
            for names in found:
                yield from (*names, "")


def _has_names(value: Any) -> bool:
    """Return False for an array of measurements or pictures."""
    if isinstance(value, Tensor):
        return value.ndim <= 2 and not (value.is_floating_point() or value.is_complex()) and value[0].numel() <= _WIDEST
    if isinstance(value, np.ndarray):
        return value.ndim <= 2 and value.dtype.kind in "iuUSTO" and value[0].size <= _WIDEST
    return True


def _entry(value: Any, place: int) -> Any:
    if _is_of_pandas(value):
        value = getattr(value, "iloc", value)
    entry = value[place]
    return entry.tolist() if isinstance(entry, np.ndarray | np.generic | Tensor) or _is_of_pandas(entry) else entry


def _listed(value: Any) -> list[Any]:
    with suppress(Exception):
        return list(value)
    return []


def _names_in(entry: Any, *, with_numbers: bool, depth: int = 2) -> Iterator[str]:
    """Yield the strings, paths and perhaps whole numbers of which an entry is made."""
    if isinstance(entry, str | bytes | os.PathLike):
        yield os.fsdecode(entry)[:_LONGEST]
    elif isinstance(entry, int) and not isinstance(entry, bool):
        if with_numbers:
            yield repr(entry)
    elif depth:
        held: Any = ()
        if type(entry) is dict:
            held = entry.values()
        elif isinstance(entry, list | tuple):
            held = entry
        elif hasattr(type(entry), "__dict__") and not callable(entry):
            held = _attributes(entry).values()
        for one in islice(held, _MOST_OF_ENTRY):
            yield from _names_in(one, with_numbers=with_numbers, depth=depth - 1)


def _is_dataset(value: Any) -> bool:
    """Return True of what has samples, whatever class it is of; layers have none."""
    kind = type(value)
    has_samples = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return has_samples and not isinstance(value, bytes | bytearray | Module)


def _is_record(value: Any) -> bool:
    """Return True of settings in attributes."""
    return (
        isinstance(value, SimpleNamespace)
        or type(value).__qualname__ == "Namespace"
        or hasattr(type(value), "__dataclass_fields__")
    )


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.startswith("pandas.")


def _attributes(value: Any) -> Mapping[str, Any]:
    found = getattr(value, "__dict__", {})
    return found if isinstance(found, dict) else {}


def _length(value: Any) -> int:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a length of the user's own
        return -1


def _is_word(key: Any) -> bool:
    """Return True of a name of a setting, not of a file."""
    return isinstance(key, str) and key.isidentifier()


def _first(entry: tuple[str, Any]) -> str:
    return entry[0]
