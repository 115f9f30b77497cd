"""The datasets in use, by number: what each lists, what reads it, and what the tier holds of it."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from prefeed.core.requests import START, START_OF_BLOCKS, ConcurrencyLimit
from prefeed.core.schedule import Scheduler
from prefeed.core.table import ABSENT, RESIDENT
from prefeed.errors import ObjectNotFoundError, PassedThroughError, PrefeedError
from prefeed.sources.blocks import BlockSource, object_of
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.learned import LearnedMapWriter
from prefeed.sources.manifest import Manifest
from prefeed.sources.manifest_writer import is_in_use
from prefeed.sources.protocol import Source
from prefeed.sources.urls import BLOCKS, blocks_url, is_of_store
from prefeed.sources.views import View
from prefeed.sources.written import Change
from prefeed.store.log import stored_bytes
from prefeed.system.clock import Clock
from prefeed.system.paths import is_in
from prefeed.types import ENTRY_KEY_BYTES, EntryKey

_CHUNK = 1 << 20
_RELEASE_EVERY = 16
_LARGE_MANIFEST = 4_000_000
_log = logging.getLogger("prefeed")


@dataclass(slots=True, kw_only=True)
class Opened:
    """What a client asked to be opened, before it has a number.

    Attributes:
        manifest: Its objects: a manifest, or the catalogue of files opened by path.
        source: Reads them.
        mean_bytes: About how many bytes an object of a new catalogue has; None when nothing tells.
        learned: Which sample opens which objects of the catalogue, where it is not declared.
        listed_at: When the listing began, in seconds since 1970; 0 of what was not listed.
        is_settled: False when only its names are of then.
        view: Through which its files are read; None: as the server sees them, or they are none.
    """

    manifest: Manifest | CatalogueWriter
    source: Source
    listed_at: float = 0.0
    is_settled: bool = True
    mean_bytes: int | None = None
    learned: LearnedMapWriter | None = None
    view: View | None = None


@dataclass(slots=True)
class Dataset:
    """One manifest or catalogue in use.

    Attributes:
        number: Names it on this server.
        limit: How many requests its origin takes.
        learned: See ``Opened``.
        view: See ``Opened``.
        listed_at: When the last listing that found this manifest began; see ``Opened``.
        opened_at: When it was last handed to a client, by the server's clock.
        other_views: Views of other clients that have it, and what reads through them.
    """

    number: int
    manifest: Manifest | CatalogueWriter
    source: Source
    limit: ConcurrencyLimit
    learned: LearnedMapWriter | None = None
    listed_at: float = 0.0
    opened_at: float = 0.0
    view: View | None = None
    lookups: int = 0
    other_views: dict[View | None, Source] = field(default_factory=dict)
    silent_until: float = 0.0

    @property
    def catalogue(self) -> CatalogueWriter | None:
        """The catalogue, when it is one: its files are asked whether they changed, and it grows."""
        return self.manifest if self.manifest.grows else None

    @property
    def entry_keys(self) -> memoryview:
        """Keys under which the tier may hold the objects, 16 bytes each; zeros where none is known."""
        return self.manifest.known_keys() if self.manifest.grows else self.manifest.keys

    @property
    def is_part(self) -> bool:
        """True for a manifest of some objects of a root, which takes the place of no other listing, nor has one take its."""
        return not self.manifest.grows and self.manifest.header.is_part

    @property
    def is_shared(self) -> bool:
        """True when clients in several mount namespaces have it: the same files, by other paths perhaps."""
        return bool(self.other_views)

    def is_seen_through(self, view: View | None) -> bool:
        """Return True when clients of this view were given the dataset."""
        return view is self.view or view in self.other_views

    def see_through(self, source: Source, view: View | None) -> None:
        """A client that has this view was given it, whose listing is the same."""
        if view is self.view:
            self.renew(source)
        else:
            self.other_views[view] = source
        self.choose_view()

    def choose_view(self) -> None:
        """Read through a view that is there: the process that showed the one before may have gone."""
        if self.view is None or self.view.is_attached:
            return
        found = next((view for view in self.other_views if view is None or view.is_attached), self.view)
        if found is not self.view:
            self.other_views[self.view] = self.source
            self.view, self.source = found, self.other_views.pop(found)

    def renew(self, source: Source) -> bool:
        """A client reaches the origin by this source: so does the server from now on; False when it is another origin."""
        if (source.url, source.mark) != (self.source.url, self.source.mark):
            return False
        self.source = source  # requests under way keep the old one
        return True

    def note_lookup(self) -> None:
        """An object was looked up at random; of a large manifest, let go of what that mapped from time to time.

        The kernel maps whole folios around each page that is touched, up to 2 MB: without this, a hundred fetches of a
        manifest of 10 million objects add 300 MB to the server's resident set. It costs some 7 us a fetch.
        """
        self.lookups += 1
        if self.lookups % _RELEASE_EVERY == 0 and self.manifest.num_objects >= _LARGE_MANIFEST:
            self.manifest.release_pages()

    def note_failure(self, error: PrefeedError, now: float) -> None:
        """Log that the origin refuses or fails, at most once a minute; an object that is gone says nothing of the origin."""
        if now >= self.silent_until and not isinstance(error, ObjectNotFoundError | PassedThroughError):
            self.silent_until = now + 60.0
            _log.warning("prefeed: the origin %s fails: %s", self.source.url, error)

    def key(self, object_id: int) -> EntryKey:
        """Return the entry key of the object."""
        return self.manifest.known_key(object_id) if self.manifest.grows else self.manifest.key(object_id)

    def lasting_key(self, object_id: int) -> bytes:
        """Return the key under which the object's bytes may be kept for good, as far as they are known; else nothing.

        Of a file in a catalogue it is the key of the bytes last seen. Without a version old bytes look like new ones.
        """
        return self.key(object_id) if self.manifest.version_hash(object_id) else b""

    def close(self) -> None:
        """Let go of the source and of what is open for writing."""
        self.source.close()
        if self.manifest.grows:
            self.manifest.close()
        if self.learned is not None:
            self.learned.close()


class KeyIndex:
    """Finds, among the objects of a manifest, those whose keys are in a small set; a chunk at a time.

    Args:
        keys: Entry keys, 16 bytes each, distinct.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        joined = np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, 2)  # joined: (num_keys, 2)
        self._order = np.argsort(joined[:, 0], kind="stable")
        self._first = joined[self._order, 0]
        self._second = joined[self._order, 1]

    def match(self, keys: memoryview) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return (positions among the index's keys, positions among the given ones) of equal keys.

        Args:
            keys: Keys one after the other, ``16 * n`` bytes.
        """
        table = np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2)  # table: (n, 2)
        ours: list[npt.NDArray[np.int64]] = []
        theirs: list[npt.NDArray[np.int64]] = []
        for start in range(0, len(table) if len(self._first) else 0, _CHUNK):
            chunk = table[start : start + _CHUNK]
            at = np.minimum(np.searchsorted(self._first, chunk[:, 0]), len(self._first) - 1)
            equal = np.flatnonzero((self._first[at] == chunk[:, 0]) & (self._second[at] == chunk[:, 1]))
            ours.append(self._order[at[equal]].astype(np.int64))
            theirs.append(equal.astype(np.int64) + start)
        empty = np.empty(0, dtype=np.int64)
        return np.concatenate([empty, *ours]), np.concatenate([empty, *theirs])


def keys_of(dataset: Dataset, ids: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the entry keys of these objects."""
    table = np.frombuffer(dataset.entry_keys, dtype=np.uint8).reshape(-1, ENTRY_KEY_BYTES)
    return [row.tobytes() for row in table[ids]]


_Key = TypeVar("_Key")
_Index = dict[_Key, dict[int, Dataset]]
"""Datasets by something that they have in common, and by number."""

_RETIRE_SECONDS: Final = 30.0
"""A client that was handed a dataset has opened its manifest after that long; one that was held up opens it again."""


class Registry:
    """Gives datasets their numbers, and entries of the tier to the dataset that names them.

    Args:
        scheduler: Keeps the state of each object.
        max_in_flight: Most requests to one origin at a time.
        clock: Seconds.

    **Threads**: the loop's.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        max_in_flight: int,
        clock: Clock = time.monotonic,
    ) -> None:
        self.datasets: dict[int, Dataset] = {}
        self._last_number = 0
        self._wholes: dict[int, Dataset] = {}  # those that are no parts; there may be thousands of parts
        self._by_directory: _Index[Path] = {}
        self._by_url: _Index[str] = {}
        self._by_content: _Index[tuple[str, str]] = {}
        self._places: dict[int, list[tuple[_Index[Any], Any]]] = {}  # of each dataset: the indices, and its key in them
        self._scheduler = scheduler
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._looked_at = 0.0

    def find(self, directory: Path, view: View | None = None) -> Dataset | None:
        """Return the dataset whose manifest or catalogue lies there, if it is in use and read through this view."""
        alike = self._by_directory.get(directory, {})
        return next((dataset for dataset in alike.values() if dataset.view is view), None)

    def add(self, opened: Opened) -> Dataset:
        """It is in use; what the tier holds of it is known, whichever client fetched it."""
        found = self.find(opened.manifest.directory, opened.view) or self._same_files(opened)
        if found is not None:
            found.opened_at = self._clock()
            if not opened.manifest.grows and opened.manifest.directory == found.manifest.directory:
                found.manifest = opened.manifest  # its sums are right; what was mapped long ago may lie on a bad disk
            if opened.is_settled:
                found.listed_at = max(found.listed_at, opened.listed_at)
            found.see_through(opened.source, opened.view)
            self.inherit_from_older(found.number)
            return found
        self._last_number = number = self._last_number + 1
        start = START_OF_BLOCKS if isinstance(opened.source, BlockSource) else START
        limit = ConcurrencyLimit(self._max_in_flight, start=start)
        dataset = Dataset(
            number, opened.manifest, opened.source, limit, opened.learned, opened.listed_at, view=opened.view
        )
        table = self._scheduler.add_dataset(number, opened.manifest.sizes, stored_bytes)
        table.max_in_flight = limit.limit
        if opened.mean_bytes is not None:
            table.guess_mean(opened.mean_bytes)
        dataset.opened_at = self._clock()
        others = self._may_have_same_objects(dataset)
        self._include(dataset)
        live = self._scheduler.live_datasets() if others else ()
        for other in others:
            if other.number not in live:
                self._inherit_from(dataset, other)
        if dataset.is_part:
            self._retire_parts(dataset)
        else:
            self._retire_older(dataset)
        opened.manifest.release_pages()  # sizes were added up, keys compared: for 10 million objects that maps 240 MB
        return dataset

    def _same_files(self, opened: Opened) -> Dataset | None:
        """Return the dataset of the same files, listed by who sees them in another mount namespace.

        A manifest is named after its content, and its versions say which files they are.
        """
        if opened.manifest.grows or is_of_store(opened.source.url):
            return None
        return next(iter(self._by_content.get((opened.source.url, opened.manifest.uid), {}).values()), None)

    def _may_have_same_objects(self, dataset: Dataset) -> list[Dataset]:
        """Return the datasets in use that may list some of the same objects.

        Parts are of one object each, so two of them have none in common: only listings above them count. Opening one of a
        thousand objects costs what opening the first did.
        """
        if not dataset.is_part:
            return list(self.datasets.values())
        url = dataset.source.url
        return [one for one in self._wholes.values() if is_in(url, one.source.url) or is_in(one.source.url, url)]

    def _include(self, dataset: Dataset) -> None:
        """It is in use from now on. Its directory, URL and content never change while it is."""
        self.datasets[dataset.number] = dataset
        if not dataset.is_part:
            self._wholes[dataset.number] = dataset
        places: list[tuple[_Index[Any], Any]] = [
            (self._by_directory, dataset.manifest.directory),
            (self._by_url, dataset.source.url),
        ]
        if not dataset.manifest.grows:
            places.append((self._by_content, (dataset.source.url, dataset.manifest.uid)))
        for index, key in places:
            index.setdefault(key, {})[dataset.number] = dataset
        self._places[dataset.number] = places

    def _remove(self, number: int) -> None:
        """Let go of a dataset that the scheduler has forgotten."""
        self._wholes.pop(number, None)
        for index, key in self._places.pop(number):
            del index[key][number]
            if not index[key]:
                del index[key]
        self.datasets.pop(number).close()

    def inherit_from_older(self, number: int) -> None:
        """What other listings of the same root, or other catalogues, have in the tier is this one's, if they are not read any more."""
        dataset = self.datasets[number]
        alike = self._wholes if dataset.is_part or dataset.catalogue is not None else self._by_url[dataset.source.url]
        others = [one for one in alike.values() if one is not dataset and _may_inherit(dataset, one)]
        live = self._scheduler.live_datasets() if others else ()
        for other in others:
            if other.number in live:
                continue
            if dataset.catalogue is not None:
                self._take_over(dataset, other)
            else:
                self._inherit_from(dataset, other)

    def _retire_older(self, dataset: Dataset) -> None:
        """Let go of older listings of the same root that no client has open; what they alone have is freed first."""
        live, tables = self._scheduler.live_datasets(), self._scheduler.tables
        for other in list(self._by_url[dataset.source.url].values()):
            is_older = other.catalogue is None and other is not dataset and _are_of_one_origin(other, dataset)
            if (
                not is_older
                or other.is_part
                or other.number in live
                or self._clock() - other.opened_at < _RETIRE_SECONDS
            ):
                continue
            if is_in_use(other.manifest.directory):
                continue
            for object_id in tables[other.number].ids_in(RESIDENT).tolist():
                self._scheduler.invalidate(other.number, object_id)
            if self._scheduler.forget_dataset(other.number):
                self._remove(other.number)

    def _retire_parts(self, newest: Dataset) -> None:
        """Let go of objects opened one by one that have nothing in the tier any more; looked for at intervals."""
        now = self._clock()
        if now - self._looked_at < _RETIRE_SECONDS:
            return
        self._looked_at = now
        live = self._scheduler.live_datasets()
        for other in list(self.datasets.values()):
            is_young = other is newest or now - other.opened_at < _RETIRE_SECONDS
            if other.is_part and not is_young and other.number not in live:
                if self._scheduler.forget_dataset(other.number):
                    self._remove(other.number)

    def object_of(self, number: int, path: str) -> int:
        """Return the object id of a file in a catalogue, which grows by it if need be.

        Raises:
            KeyError: There is no such catalogue.
        """
        return self._objects_of(number, [path])[0]

    def twins(self, number: int, object_id: int) -> list[tuple[int, int]]:
        """Return the objects, as dataset and id, of other catalogues or of the same, that are the same file by the same path."""
        dataset = self.datasets.get(number)
        if dataset is None or dataset.catalogue is None:
            return []
        others = [
            (one.number, one.catalogue) for one in self._wholes.values()
            if one.catalogue is not None and one.view is dataset.view and (one is not dataset or one.catalogue.has_repeats)
        ]  # fmt: skip
        if not others:
            return []
        path = dataset.catalogue.path_bytes(object_id)
        found = [(other, twin) for other, catalogue in others for twin in catalogue.ids_at(path)]
        return [twin for twin in found if twin != (number, object_id)]

    def learn(self, number: int, records: npt.NDArray[np.int64]) -> None:
        """Samples opened these objects: sample, number of objects, their ids, one sample after the other.

        Raises:
            IndexError: A record is cut off, or names an object that is not there.
            ValueError: A record names a sample that is not there.
        """
        learned = self.datasets[number].learned
        at = 0
        while learned is not None and at < len(records):
            sample, count = records[at : at + 2].tolist() if at + 2 <= len(records) else (0, -1)
            ids = records[at + 2 : at + 2 + max(0, count)]
            if len(ids) != count:
                raise IndexError(f"record of {count} objects at word {at} of {len(records)}")
            self.require_ids(number, ids)
            learned.record(sample, ids.tolist())
            at += 2 + count

    def suppose(self, number: int, samples: npt.NDArray[np.int64], paths: Sequence[str]) -> None:
        """Samples probably open these files, unless it is known what they open.

        Args:
            number: Of a dataset that learns what samples open.
            samples: Sample and number of its files, shape (num_samples, 2).
            paths: Of all samples, one after the other.

        Raises:
            KeyError: There is no such dataset, or it does not learn.
            ValueError: The paths are more or fewer, one is not absolute, or there is no such sample.
        """
        learned = self.datasets[number].learned
        if learned is None:
            raise KeyError(f"dataset {number} does not learn")
        counts = samples[:, 1]
        if (counts < 0).any() or counts.sum() != len(paths):
            raise ValueError(f"{len(paths)} paths for samples of {counts.sum()} files")
        ids = self._objects_of(number, paths)
        at = 0
        for sample, count in samples.tolist():
            learned.suppose(sample, ids[at : at + count])
            at += count

    def _objects_of(self, number: int, paths: Sequence[str]) -> list[int]:
        """Return the objects of files in a catalogue, which grows once by all that it does not have."""
        catalogue = self.datasets[number].catalogue
        if catalogue is None:
            raise KeyError(f"dataset {number} is no catalogue")
        ids = {path: catalogue.index_of(path) for path in paths}
        new = [path for path, object_id in ids.items() if object_id is None]
        if new:
            ids.update(zip(new, catalogue.append(new), strict=True))
            self._scheduler.grow_dataset(number, catalogue.sizes)
        return [object_id for path in paths if (object_id := ids[path]) is not None]

    def require_ids(self, number: int, ids: npt.ArrayLike) -> None:
        """Raise KeyError or IndexError when there is no such dataset, or when it has no object of one of these ids."""
        num_objects = self.datasets[number].manifest.num_objects
        found = np.asarray(ids)
        if found.size and not 0 <= found.min() <= found.max() < num_objects:
            raise IndexError(f"objects {found.min()} to {found.max()} of {num_objects}")

    def key(self, number: int, object_id: int) -> bytes:
        """Return the key of an object's entry."""
        return self.datasets[number].key(object_id)

    def readable_key(self, number: int, object_id: int) -> bytes:
        """Return the key under which a reader may take the object now; empty for bytes that may be out of date."""
        catalogue = self.datasets[number].catalogue
        if catalogue is not None and not catalogue.is_published(object_id):
            return b""
        return self.datasets[number].key(object_id)

    def resident_ids(self, number: int) -> npt.NDArray[np.int64]:
        """Return the objects of a dataset that are kept in the tier."""
        return self._scheduler.tables[number].ids_in(RESIDENT)

    def residents_below(self, url: str | None) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """Return (dataset, residents at or below the URL) of each that has any; of everything if None."""
        found = []
        for number in self._scheduler.tables:
            ids = self.resident_ids(number)
            if url is not None:
                ids = self._below(number, ids, url)
            if len(ids):
                found.append((number, ids))
        return found

    @staticmethod
    def lists(dataset: Dataset, change: Change) -> bool:
        """Return True when a manifest has the file that was written, or files below it."""
        root = dataset.manifest.url
        if not root.startswith("/"):
            return False
        for place, name in itertools.product({root, os.path.realpath(root)}, {change.path, change.real}):
            if change.below and (is_in(name, place) or is_in(place, name)):
                return True
            if is_in(name, place) and dataset.manifest.index_of(name[len(place) :].lstrip("/")) is not None:
                return True
        return False

    def entry_keys(self) -> list[memoryview]:
        """Return the entry keys of all datasets, 16 bytes an object; any thread may ask."""
        return [dataset.entry_keys for dataset in list(self.datasets.values())]

    def keys_below(self, url: str) -> list[memoryview]:
        """Return the entry keys of all objects at or below the URL, as far as datasets in use name them."""
        found = []
        for number, dataset in self.datasets.items():
            ids = self._below(number, np.arange(dataset.manifest.num_objects), url)
            if len(ids):
                table = np.frombuffer(dataset.entry_keys, dtype=np.uint8).reshape(-1, ENTRY_KEY_BYTES)
                found.append(memoryview(table[ids].tobytes()))
        return found

    def close(self) -> None:
        """Let go of sources and of what is open for writing."""
        for dataset in self.datasets.values():
            dataset.close()

    def _below(self, number: int, ids: npt.NDArray[np.int64], url: str) -> npt.NDArray[np.int64]:
        dataset = self.datasets[number]
        if is_in(dataset.source.url, url):
            return ids
        if dataset.source.url.startswith(BLOCKS) and not url.startswith(BLOCKS):
            url = blocks_url(url)  # the blocks of an object are the object's
            if is_in(dataset.source.url, url):
                return ids
        return ids[dataset.manifest.is_below(ids, url)]

    def _take_over(self, target: Dataset, source: Dataset) -> None:
        """Residents of a catalogue that are files of another one become that one's own."""
        if target.catalogue is None or source.catalogue is None:
            return
        residents, found = target.catalogue.find_files(source.catalogue, self.resident_ids(source.number))
        is_new = self._scheduler.tables[target.number].states[found] == ABSENT
        found, residents = found[is_new], residents[is_new]
        target.catalogue.take_over(found, source.catalogue, residents)
        self._scheduler.transfer(source.number, residents.tolist(), target.number, found.tolist())

    def _inherit_from(self, target: Dataset, other: Dataset) -> None:
        """Residents of another dataset that are objects of this one become its own."""
        url = target.source.url.rstrip("/")
        own, listed = target.manifest, other.manifest
        if not target.is_part or own.grows or listed.grows or not is_in(url, other.source.url):
            self._inherit(target, other.number, keys_of(other, self.resident_ids(other.number)))
            return
        above, at, states = len(other.source.url.rstrip("/")) + 1, 0, self._scheduler.tables[other.number].states
        while at < own.num_objects:  # once per object; the blocks of one follow each other in every listing
            name = object_of(own.path(at))
            at = max(at + 1, own.entries_at(name).stop)
            there = listed.entries_at(f"{url}/{name}"[above:])
            ids = there.start + np.flatnonzero(states[there.start : there.stop] == RESIDENT)
            found, wanted = KeyIndex(keys_of(other, ids)).match(target.entry_keys)
            self._scheduler.transfer(other.number, ids[found].tolist(), target.number, wanted.tolist())

    def _inherit(self, target: Dataset, source: int, keys: list[bytes]) -> None:
        """Residents of ``source`` whose keys the new dataset has become its own."""
        if not keys:
            return
        ids = self.resident_ids(source)
        at, found = KeyIndex(keys).match(target.entry_keys)
        self._scheduler.transfer(source, ids[at].tolist(), target.number, found.tolist())


def _may_inherit(dataset: Dataset, other: Dataset) -> bool:
    return other.view is dataset.view if dataset.catalogue is not None else _are_of_one_origin(other, dataset)


def _are_of_one_origin(one: Dataset, other: Dataset) -> bool:
    return (one.source.url, one.source.mark) == (other.source.url, other.source.mark) and one.view is other.view
