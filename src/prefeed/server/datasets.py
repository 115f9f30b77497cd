"""Datasets of the node: manifests that were opened, their sources, and what the tier holds of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from prefeed.core.concurrency import ConcurrencyLimit
from prefeed.sources.catalogue_writer import CatalogueWriter
from prefeed.sources.learned import LearnedMapWriter
from prefeed.sources.manifest import Manifest
from prefeed.sources.protocol import Source
from prefeed.sources.views import View
from prefeed.types import ENTRY_KEY_BYTES, EntryKey

_CHUNK = 1 << 20
_RELEASE_EVERY = 16
_LARGE_MANIFEST = 4_000_000


@dataclass(slots=True, kw_only=True)
class Opened:
    """What a client asked to be opened, before it has a number.

    Attributes:
        manifest: Its objects: a manifest, or the catalogue of files opened by path.
        source: Reads them.
        mean_bytes: About how many bytes an object of a new catalogue has; None when nothing tells.
        learned: Which sample opens which objects of the catalogue, where nobody declares it.
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

    @property
    def catalogue(self) -> CatalogueWriter | None:
        """The catalogue, when it is one: its files are asked whether they changed, and it grows."""
        return self.manifest if self.manifest.grows else None

    @property
    def entry_keys(self) -> memoryview:
        """Keys under which the tier may hold the objects, 16 bytes each; zeros where none is known."""
        return self.manifest.known_keys() if self.manifest.grows else self.manifest.keys

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
        """Read through a view that is there: whoever showed the one before may have gone."""
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
