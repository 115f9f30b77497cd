"""Presents the paths of a manifest as a tree of numbered nodes. Pure.

The number of a file contains its object id, that of a directory its depth and first object. No state per node is needed, and the next daemon
understands all numbers that the kernel remembers.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Final, NamedTuple

import numpy as np

from prefeed.sources.listing import ENCODING, LeftOut
from prefeed.sources.manifest import Manifest

ROOT: Final = 1
_FIRST_LINK: Final = 2
FIRST_FILE: Final = 1024
"""Number of the file of object 0."""

_DEPTH_BIT: Final = 40
_BELOW_DEPTH: Final = (1 << _DEPTH_BIT) - 1
_NAME_BYTES: Final = 255
_SLASH: Final = ord("/")
_ODD: Final = re.compile(rb"//|/\.\.?/|\0")
_EDGES: Final = np.frombuffer(b"/.", np.uint8)
_FIRST_RUN: Final = 16
_MAX_CACHED: Final = 256


class TreeDirectory(NamedTuple):
    """A directory: prefix of its paths including the slash, range of its objects, and depth."""

    prefix: bytes
    objects: range
    depth: int


class Link(NamedTuple):
    """A symbolic link in the root, to a path outside."""

    name: bytes
    target: bytes


class File(NamedTuple):
    """The file of an object."""

    object_id: int


Node = TreeDirectory | Link | File


class ListingEntry(NamedTuple):
    """An entry of a directory listing. ``next_offset`` is the offset of the entry after it."""

    node: int
    name: bytes
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Children:
    """Content of a directory.

    Attributes:
        directories: Name and number of each directory.
        runs: Ranges of the ids of its files.
        ends: Cumulative number of files at the end of each range.
    """

    directories: tuple[tuple[bytes, int], ...]
    runs: tuple[range, ...]
    ends: tuple[int, ...] = field(default=())


class Tree:
    """Nodes of the paths of a manifest.

    Names that are invalid in a file system are hidden: empty, ``.``, ``..``, with a zero byte, or longer than 255 bytes. If an
    object has the name of a directory, as object stores allow, the directory is shown.

    **Threads and processes.** Any thread. Every process with the same manifest and links computes the same numbers.
    """

    def __init__(self, manifest: Manifest, links: Mapping[bytes, bytes] | None = None) -> None:
        """Show a manifest, and links in its root by name.

        Raises:
            ValueError: There are too many links, or the manifest contains the name of a link.
        """
        self.manifest = manifest
        self._blob = manifest.path_blob
        self._offsets = memoryview(manifest.offsets.data).cast("B").cast("Q")
        self.links: tuple[Link, ...] = tuple(Link(*pair) for pair in sorted((links or {}).items()))
        self._has_shadows = not manifest.url.startswith("/")
        self._root = TreeDirectory(b"", range(manifest.num_objects), 0)
        self._children: dict[int, Children] = {}
        self._directories: dict[int, TreeDirectory] = {}
        if len(self.links) > FIRST_FILE - _FIRST_LINK:
            raise ValueError(f"{len(self.links)} links, and at most {FIRST_FILE - _FIRST_LINK} are possible")
        for link in self.links:
            if self._look_up_path(self._root, link.name):
                raise ValueError(f"{manifest.url} has {link.name.decode(*ENCODING)!r} already")

    def node(self, number: int) -> Node | None:
        """Return the node of a number; None for an unknown number."""
        if number == ROOT:
            return self._root
        if number >> _DEPTH_BIT:
            return self._directories.get(number) or self._directory(number)
        if number >= FIRST_FILE:
            object_id = self.object_id(number)
            return None if object_id is None else File(object_id)
        index = number - _FIRST_LINK
        return self.links[index] if 0 <= index < len(self.links) else None

    def object_id(self, number: int) -> int | None:
        """Return the object id of a file's number; None for other numbers."""
        object_id = number - FIRST_FILE
        return object_id if 0 <= object_id < self._root.objects.stop else None

    def look_up(self, directory: TreeDirectory, name: bytes) -> int:
        """Return the number of the node with this name; 0 if it does not exist."""
        if not directory.depth:
            for index, link in enumerate(self.links):
                if link.name == name:
                    return _FIRST_LINK + index
        return self._look_up_path(directory, name)

    def children(self, number: int) -> Children:
        """Return the content of a directory. Complexity: O(directories log n), plus one pass over the bytes of file names."""
        found = self._children.get(number)
        if found is None:
            directory = self.node(number)
            assert isinstance(directory, TreeDirectory)
            found = self._scan_children(directory)
            if len(self._children) >= _MAX_CACHED:
                self._children.clear()
            self._children[number] = found
        return found

    def list_entries(self, number: int, offset: int) -> Iterator[ListingEntry]:
        """List a directory from an offset on, 0 for the beginning. Files come last."""
        directory = self.node(number)
        assert isinstance(directory, TreeDirectory)
        found = self.children(number)
        links = () if directory.depth else enumerate(self.links, _FIRST_LINK)
        before = [
            (number, b"."), (ROOT, b".."), *((node, link.name) for node, link in links),
            *((node, name) for name, node in found.directories),
        ]  # fmt: skip
        for index in range(offset, len(before)):
            yield ListingEntry(*before[index], index + 1)
        yield from self._files(directory, found, before_files=len(before), start=max(0, offset - len(before)))

    def _files(
        self, directory: TreeDirectory, found: Children, *, before_files: int, start: int
    ) -> Iterator[ListingEntry]:
        run = bisect_right(found.ends, start)
        if run == len(found.runs):
            return
        skipped = start - (found.ends[run - 1] if run else 0)
        ids = chain(found.runs[run][skipped:], *found.runs[run + 1 :])
        hidden = {name for name, _ in found.directories} if self._has_shadows else set()
        offsets, paths = self._offsets, self._blob
        skip = len(directory.prefix)
        for place, object_id in enumerate(ids, before_files + start + 1):
            name = bytes(paths[offsets[object_id] + skip : offsets[object_id + 1]])
            if _is_valid_name(name) and name not in hidden:
                yield ListingEntry(FIRST_FILE + object_id, name, place)

    def _look_up_path(self, directory: TreeDirectory, name: bytes) -> int:
        path = directory.prefix + name
        first = self._lower_bound(path, directory.objects)
        is_file = first < directory.objects.stop and self._path(first) == path
        if not is_file or self._has_shadows:
            below = self._lower_bound(path + b"/", range(first, directory.objects.stop))
            if below < directory.objects.stop and self._path(below).startswith(path + b"/"):
                return ((directory.depth + 1) << _DEPTH_BIT) + FIRST_FILE + below
        return FIRST_FILE + first if is_file else 0

    def _path(self, object_id: int) -> bytes:
        return bytes(self._blob[self._offsets[object_id] : self._offsets[object_id + 1]])

    def _lower_bound(self, wanted: bytes, objects: range) -> int:
        """Return the first of these objects whose path sorts at or after ``wanted``, or their end."""
        return objects.start + bisect_left(objects, wanted, key=self._path)

    def _directory(self, number: int) -> TreeDirectory | None:
        depth, first = number >> _DEPTH_BIT, (number & _BELOW_DEPTH) - FIRST_FILE
        if not 0 <= first < self.manifest.num_objects:
            return None
        names = self.manifest.path_bytes(first).split(b"/")
        if len(names) <= depth:
            return None
        prefix = b"/".join(names[:depth])
        found = TreeDirectory(prefix + b"/", self.manifest.paths_below(prefix.decode(*ENCODING)), depth)
        if len(self._directories) >= _MAX_CACHED:
            self._directories.clear()
        self._directories[number] = found
        return found

    def _scan_children(self, directory: TreeDirectory) -> Children:
        directories: list[tuple[bytes, int]] = []
        runs: list[range] = []
        at, stop, look = directory.objects.start, directory.objects.stop, _FIRST_RUN
        depth = directory.depth + 1
        while at < stop:
            run = range(at, min(at + look, stop))
            within = self._first_within(directory, run)
            if within > at:
                start = runs.pop().start if runs and runs[-1].stop == at else at
                runs.append(range(start, within))
                at, look = within, look * 2 if within == run.stop else _FIRST_RUN
                continue
            name = self.manifest.path_bytes(at)[len(directory.prefix) :].partition(b"/")[0]
            below = self.manifest.paths_below((directory.prefix + name).decode(*ENCODING))
            if name and below.stop > at:
                if _is_valid_name(name):
                    directories.append((name, (depth << _DEPTH_BIT) + FIRST_FILE + at))
                at = below.stop
            else:
                at += 1  # a path with a double slash
            look = _FIRST_RUN
        return Children(
            directories=tuple(directories), runs=tuple(runs), ends=tuple(accumulate(len(run) for run in runs))
        )

    def _first_within(self, directory: TreeDirectory, run: range) -> int:
        """Return the first of these objects that is in a subdirectory, or their end."""
        offsets = self.manifest.offsets[run.start : run.stop + 1].astype(np.int64)
        blob = np.frombuffer(self.manifest.path_blob[int(offsets[0]) : int(offsets[-1])], np.uint8)
        slashes = np.flatnonzero(blob == _SLASH)
        begins = offsets[:-1] - offsets[0] + len(directory.prefix)
        following = np.append(slashes, len(blob))[np.searchsorted(slashes, begins)]
        within = np.flatnonzero(following < offsets[1:] - offsets[0])
        return run.start + int(within[0]) if len(within) else run.stop


def find_hidden(manifest: Manifest) -> LeftOut:
    """Return the objects of a store or web server whose names ``Tree`` hides.

    Complexity: a few vectorized passes over the bytes of all paths. Only candidates are checked one by one.
    """
    left_out = LeftOut()
    if manifest.url.startswith("/"):
        return left_out
    for index in sorted(_find_candidates(manifest)):
        path = manifest.path_bytes(index)
        if not all(map(_is_valid_name, path.split(b"/"))):
            left_out.add(path.decode(*ENCODING), "no file can have such a name")
        elif manifest.paths_below(path.decode(*ENCODING)):
            left_out.add(path.decode(*ENCODING), "is also the directory of other objects")
    return left_out


def _find_candidates(manifest: Manifest) -> set[int]:
    """Return the ids of objects whose names may be invalid or may be directories."""
    blob = np.frombuffer(manifest.path_blob, np.uint8)
    begins, ends = manifest.offsets[:-1].astype(np.int64), manifest.offsets[1:].astype(np.int64)
    found = {int(np.searchsorted(ends, match.start(), "right")) for match in _ODD.finditer(manifest.path_blob)}
    edges = np.isin(blob[begins], _EDGES) | np.isin(blob[ends - 1], _EDGES) | (ends - begins > _NAME_BYTES)
    found.update(np.flatnonzero(edges).tolist())
    # An object that is also a directory is followed by a path that starts with its own.
    lengths = ends - begins
    longer = np.flatnonzero(lengths[1:] > lengths[:-1])
    follows = blob[begins[longer + 1] + lengths[longer]] <= _SLASH
    same_end = blob[begins[longer + 1] + lengths[longer] - 1] == blob[ends[longer] - 1]
    candidates = longer[follows & same_end].tolist()
    return found.union(
        index for index in candidates if manifest.path_bytes(index + 1).startswith(manifest.path_bytes(index))
    )


def _is_valid_name(name: bytes) -> bool:
    return 0 < len(name) <= _NAME_BYTES and name not in (b".", b"..") and b"\0" not in name
