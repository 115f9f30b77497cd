"""Which objects the samples of a dataset are made of: it says so, or it keeps a list, or it is learned.

In this order: prefeed's own datasets know their objects; ``declared_paths`` finds what a dataset lists; any other is
watched, and what its samples open below the roots is known the next time. Until then it is guessed (``guess_of``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from xxhash import xxh3_64

from prefeed.client.access import Accessible, AccessMap, Indices
from prefeed.client.dataset import open_learned_dataset, open_listed_dataset
from prefeed.client.node import NodeClient
from prefeed.config import SAMPLE_SET, SERVER_SETTINGS, Config
from prefeed.errors import FilesUnknownError
from prefeed.loaders.declared import Declared, declared_paths, is_in_memory
from prefeed.loaders.guesses import Column, Guess
from prefeed.loaders.kinds import is_a, is_just_a, length_of
from prefeed.loaders.searching import attributes_of, find_columns
from prefeed.loaders.stages import peeled
from prefeed.places import say_once
from prefeed.sampleset.names import resolve_roots
from prefeed.sources.catalogue import catalogues_named, name_of_learned
from prefeed.sources.learned import LearnedMap
from prefeed.sources.mounts import Roots
from prefeed.store.node_directory import NODES, found_by_next_server

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
    for part in (_LAYOUT, repr(roots), *_DatasetFingerprint(dataset, below).parts()):
        digest.update(part.encode("utf-8", "surrogateescape"))
        digest.update(b"\0")
    return digest.hexdigest()


class _DatasetFingerprint:
    """One look through a dataset, for its fingerprint.

    What was learned of a dataset belongs to its files and their order. Of its attributes, only those count that can tell
    these from another dataset's:

        paths              those below the roots
        words              strings without a digit, such as "train"; others if a file or directory below such a path has
                           that name
        lists of names     strings and paths, a few of them looked at; numbers too, in a list as long as the dataset

    A rank, a seed, a time, a run's name or folder, a counter, a generator, a logger, a transform do not. It is a guess to
    both sides: two datasets that are one by it relearn what their samples open, one that is two learns twice, and all are
    read right.
    """

    def __init__(self, dataset: Any, roots: Roots) -> None:
        self._dataset = dataset
        self._length: int | None = None  # of the dataset that is being looked at
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
        elif isinstance(value, list | tuple | np.ndarray) or is_a(value, "Tensor") or _is_of_pandas(value):
            yield from self._of_list(name, value, depth)
        elif value is self._dataset or _is_dataset(value) or _is_record(value):
            length, around = length_of(value), self._length
            if value is self._dataset or is_a(value, "Dataset"):
                yield f"{name}:{type(value).__module__}.{type(value).__qualname__} {-1 if length is None else length}"
            self._length = length if _is_dataset(value) else around
            for attribute, held in sorted(attributes_of(value).items()):
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
        length = length_of(value)
        if not length:
            return
        is_whole = length == self._length
        if isinstance(value, list | tuple) and not is_whole and length <= _MOST_OF_ENTRY:
            for place, held in enumerate(_entries_of(value)):
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
    if is_a(value, "Tensor"):
        return value.ndim <= 2 and not (value.is_floating_point() or value.is_complex()) and value[0].numel() <= _WIDEST
    if isinstance(value, np.ndarray):
        return value.ndim <= 2 and value.dtype.kind in "iuUSTO" and value[0].size <= _WIDEST
    return True


def _entry(value: Any, place: int) -> Any:
    if _is_of_pandas(value):
        value = getattr(value, "iloc", value)
    entry = value[place]
    return (
        entry.tolist()
        if isinstance(entry, np.ndarray | np.generic) or is_a(entry, "Tensor") or _is_of_pandas(entry)
        else entry
    )


def _entries_of(value: Any) -> list[Any]:
    with suppress(Exception):
        return list(value)
    return []


def _names_in(entry: Any, *, with_numbers: bool, depth: int = 2) -> Iterator[str]:
    """Yield the strings, paths and perhaps whole numbers that make up an entry."""
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
            held = attributes_of(entry).values()
        for one in islice(held, _MOST_OF_ENTRY):
            yield from _names_in(one, with_numbers=with_numbers, depth=depth - 1)


def _is_dataset(value: Any) -> bool:
    """Return whether an object has samples, whatever its class; layers have none."""
    kind = type(value)
    has_samples = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return has_samples and not isinstance(value, bytes | bytearray) and not is_a(value, "Module", "Layer")


def _is_record(value: Any) -> bool:
    """Return True of settings in attributes."""
    return (
        isinstance(value, SimpleNamespace)
        or type(value).__qualname__ == "Namespace"
        or hasattr(type(value), "__dataclass_fields__")
    )


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.startswith("pandas.")


def _is_word(key: Any) -> bool:
    """Return True of a name of a setting, not of a file."""
    return isinstance(key, str) and key.isidentifier()


def _first(entry: tuple[str, Any]) -> str:
    return entry[0]


@runtime_checkable
class _Placed(Protocol):
    """A dataset that says which node caches it: those of ``prefeed.datasets``."""

    def prefeed_settings(self) -> Config | None: ...


OpenAccess = Callable[[NodeClient], AccessMap]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Opens the access map on a node, and what is known of it without one.

    Attributes:
        open_on: Opens it.
        starts: As in the access map.
        indices: As in the access map.
        names_files: The dataset names its files; else they are those that its samples open below the roots.
        is_of_prefeed: It is one of prefeed's own, which knows its objects.
        has_cache: Its samples come from the cache of a stage, or what they are made of is below one.
        some_paths: The first and the last of the files that it names.
        was_learned: Returns whether an earlier run has learned the files of its samples; reads the home.
    """

    open_on: OpenAccess
    starts: Indices | None = None
    indices: Indices | None = None
    names_files: bool = False
    is_of_prefeed: bool = False
    has_cache: bool = False
    some_paths: tuple[str, ...] = ()
    was_learned: Callable[[], bool] = bool

    def __call__(self, node: NodeClient) -> AccessMap:
        """Return the access map on this node."""
        return self.open_on(node)


_PROBES = 16


def node_settings(dataset: Any, config: Config) -> Config:
    """Return the settings for a loader: its own, but of the node that caches the sample set, where one was named.

    Args:
        dataset: The user's; below its stages and subsets it may name a sample set.
        config: Settings of the loader. Their roots may name one for files that are opened by path.

    Raises:
        SampleSetNotFoundError: There is no such set.
        ConfigError: The set that the roots name is in no directory, or there are two.
    """
    base = _unwrapped(peeled(dataset)[0])[0]
    named: Config | None = base.prefeed_settings() if isinstance(base, _Placed) else None
    if named is None:
        return resolve_roots(config)
    of_node = {name: getattr(named, name) for name in ("home", "idle_timeout", "limits", *SERVER_SETTINGS)}
    return replace(config, **of_node)


def access_of(dataset: Any, config: Config, *, explicit: bool) -> Opening:
    """Return how to open the dataset's access map; asks the dataset, and no server.

    Args:
        dataset: The user's, map-style.
        config: Settings.
        explicit: The user asked for this dataset to be cached, also if it lies on a local disk. Not for one below the
            cache of a stage.

    Raises:
        FilesUnknownError: There is nothing to serve; the message says why, and what to change.
        DeclarationError: What the dataset says of itself is not understood.
    """
    bare, cached = peeled(dataset)
    if cached is None:
        return _bare_access_of(bare, config, explicit=explicit)
    # What is made of them is kept already: files of a local disk are read once, and as quickly without a detour.
    open_bare = _bare_access_of(bare, config, explicit=False)
    return Opening(open_on=lambda node: replace(open_bare(node), cached=cached), has_cache=True)


def guess_of(dataset: Any, access: AccessMap, config: Config) -> Guess | None:
    """Return the guesses for samples that are not known; None where all are known, or nothing can be guessed.

    Args:
        dataset: The user's, map-style.
        access: What ``access_of`` opened.
        config: Settings.
    """
    learned = access.learned
    if learned is None or learned.num_known >= learned.num_samples:
        return None
    columns = columns_of(dataset, config)
    return Guess(columns) if columns else None


def columns_of(dataset: Any, config: Config) -> list[Column]:
    """Return lists of a dataset that may name the files of its samples.

    Args:
        dataset: The user's, map-style.
        config: Settings.
    """
    base = _unwrapped(peeled(dataset)[0])[0]
    return find_columns(base, len(base), covers=Roots.of(config).covers)


def _bare_access_of(dataset: Any, config: Config, *, explicit: bool) -> Opening:
    base, indices = _unwrapped(dataset)
    if isinstance(base, Accessible):
        return Opening(open_on=lambda node: _indexed(base.prefeed_access(node, config), indices), is_of_prefeed=True)
    name, roots = type(dataset).__name__, Roots.of(config)
    absent = _roots_that_are_absent(config)
    if is_in_memory(dataset):
        raise FilesUnknownError(f"its dataset, {name}, holds the samples in memory")
    if absent and len(absent) < len(config.roots or ()):
        say_once(_roots_absent(absent))
    declared = declared_paths(dataset)
    if declared is not None:
        _require_slow(declared, name, config, explicit=explicit)
        return Opening(
            open_on=lambda node: _listed(node, declared, config), starts=declared.starts, indices=declared.indices,
            names_files=True, some_paths=(*declared.paths[:1], *declared.paths[-1:]),
        )  # fmt: skip
    if absent and len(absent) == len(config.roots or ()):
        raise FilesUnknownError(_roots_absent(absent))
    if not roots:
        raise FilesUnknownError(
            f"nothing is known about the files of its dataset, {name}: no network file system is mounted, and PREFEED_ROOTS does "
            f"not name the directory that holds them"
        )
    if not hasattr(base, "__len__"):
        raise FilesUnknownError(f"its dataset, {name}, has no length")
    normal = None if indices is None else np.where(indices < 0, indices + len(base), indices)
    return Opening(
        open_on=lambda node: _learned(node, base, indices, config), indices=normal,
        was_learned=lambda: _was_learned(base, config),
    )  # fmt: skip


def _unwrapped(dataset: Any) -> tuple[Any, np.ndarray[Any, np.dtype[np.int64]] | None]:
    """Return what is below all ``Subset``s, and which of its samples are meant; None: all, in order."""
    if not is_just_a(dataset, "Subset") or not _are_indices(dataset.indices):
        return dataset, None
    base, indices = _unwrapped(dataset.dataset)
    chosen = np.asarray(dataset.indices).astype(np.int64)
    if indices is None:
        return base, chosen
    return (base, indices[chosen]) if _are_within(chosen, len(indices)) else (dataset, None)


def _are_indices(indices: Any) -> bool:
    try:
        found = np.asarray(indices if len(indices) else np.zeros(0, dtype=np.int64))
    except (TypeError, ValueError):  # a tensor of a device, a list of lists
        return False
    return found.ndim == 1 and found.dtype.kind in "iu"


def _are_within(indices: np.ndarray[Any, np.dtype[np.int64]], length: int) -> bool:
    return not len(indices) or bool(-length <= indices.min() and indices.max() < length)


def _indexed(access: AccessMap, indices: np.ndarray[Any, np.dtype[np.int64]] | None) -> AccessMap:
    if indices is None:
        return access
    length = len(access)
    if not _are_within(indices, length):
        raise FilesUnknownError(f"a Subset names samples that its dataset of {length} does not have")
    return AccessMap(
        dataset=access.dataset,
        ids=access.ids,
        starts=access.starts,
        learned=access.learned,
        indices=np.where(indices < 0, indices + length, indices),
    )


def _roots_absent(absent: Sequence[str]) -> str:
    return f"PREFEED_ROOTS names paths that are not directories here: {', '.join(absent)}; correct them, or mount the file systems"


def _roots_that_are_absent(config: Config) -> list[str]:
    return [root for root in config.roots or () if not root.startswith(SAMPLE_SET) and not os.path.isdir(root)]


def _require_slow(declared: Declared, name: str, config: Config, *, explicit: bool) -> None:
    """Refuse files on local disks, unless somebody asked for them."""
    roots = Roots.of(config)
    probes = declared.paths[:: max(1, len(declared.paths) // _PROBES)]
    if not explicit and not any(map(roots.covers, probes)):
        where = (
            "on a network file system" if config.roots is None else f"below PREFEED_ROOTS, {', '.join(config.roots)}"
        )
        cure = "set PREFEED_ROOTS to their directory to cache them anyway"
        if absent := _roots_that_are_absent(config):
            cure = _roots_absent(absent)
        raise FilesUnknownError(f"the files of its dataset, {name}, such as {probes[0]}, do not lie {where}; {cure}")


def _listed(node: NodeClient, declared: Declared, config: Config) -> AccessMap:
    dataset = open_listed_dataset(node, declared.paths, config)
    return AccessMap(dataset=dataset, starts=declared.starts, indices=declared.indices)


def _was_learned(base: Any, config: Config) -> bool:
    name, num_samples = name_of_learned(_fingerprint_of(base, config)), len(base)
    maps = [path for own in found_by_next_server(config.home / NODES) for path in catalogues_named(own, name)]
    return any(LearnedMap.open(path, num_samples).num_known for path in maps)


def _fingerprint_of(base: Any, config: Config) -> str:
    return fingerprint(base, config.roots, below=Roots.of(config))


def _learned(
    node: NodeClient, base: Any, indices: np.ndarray[Any, np.dtype[np.int64]] | None, config: Config
) -> AccessMap:
    num_samples = len(base)
    dataset = open_learned_dataset(node, _fingerprint_of(base, config), num_samples, config)
    learned = LearnedMap.open(dataset.manifest.directory, num_samples)
    return _indexed(AccessMap(dataset=dataset, learned=learned), indices)
