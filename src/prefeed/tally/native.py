"""Files that libraries open in C++, where Python tells of nothing: which readers, below which roots.

The names of files are not always known when a reader is made: tf.data hands them to it later, without Python. Then they are
those that the program has listed before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from prefeed.tally import opens
from prefeed.tally.program import NATIVE, add, is_counting, key_of

Name = str | bytes


class _Listed:
    """Roots below which lists of files lie that the program has made; empty: there was no list of files."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        self.has_any = False


_listed = _Listed()


def reads(call: str, names: Iterable[Name]) -> None:
    """A reader is made that opens files by itself. Never raises.

    Args:
        call: What the user calls it.
        names: Of the files; none: they are not known yet.
    """
    if not is_counting() or not opens.has_places():
        return
    known = list(names)
    places = _places_of(known) if known else _listed.places
    for place in places:
        add(key_of(NATIVE, call, place), 1)
    if not known and not _listed.has_any:
        add(key_of(NATIVE, call, ""), 1)


def lists(names: Iterable[Name]) -> None:
    """The program lists files, or texts that may be files, for readers that it makes later. Never raises."""
    if not is_counting() or not opens.has_places():
        return
    paths = [name for name in names if os.sep in os.fsdecode(name)]
    _listed.has_any |= bool(paths)
    _listed.places |= _places_of(paths)


def _places_of(names: Iterable[Name]) -> set[str]:
    paths = map(os.fsdecode, names)
    directories = {os.path.dirname(os.path.abspath(path)) for path in paths if "://" not in path}
    return {place for directory in directories if (place := opens.place_of(f"{directory}/")) is not None}
