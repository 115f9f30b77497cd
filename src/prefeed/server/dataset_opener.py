"""Manifests on their way: opened, or listed first, in threads of their own."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from prefeed.config import Config
from prefeed.errors import AccessDeniedError, PrefeedError, ServerError
from prefeed.places import lack_of_space
from prefeed.server.datasets import Dataset, Opened
from prefeed.server.loop import NO_DESCRIPTORS, Reach, lack_of_descriptors
from prefeed.sources.catalogue_writer import directory_of, is_catalogue, open_catalogue
from prefeed.sources.learned import LearnedMapWriter
from prefeed.sources.library import Listed, ManifestLibrary
from prefeed.sources.manifest import Manifest
from prefeed.sources.mounts import is_local
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import BrowsableSource, Source
from prefeed.sources.store_access import is_of_one_network, own_access
from prefeed.sources.urls import (
    canonical_url,
    is_of_store,
    listing_mark,
    open_plain_source,
    open_source,
    unwrapped,
    without_credentials,
)
from prefeed.sources.views import View
from prefeed.store.node_directory import NODES
from prefeed.system.clock import Clock
from prefeed.types import ListingProgress, ObjectInfo

_REPORT_SECONDS = 0.1
"""Pause between two reports of one listing."""

_GATHER_SECONDS = 0.1
"""A listing over a network begins so long after it was asked for, so that who asks at the same time shares it; two requests of a store."""

_RANKS_SECONDS = 1.0
"""The same when ranks of a job ask, unless all of this node have asked before."""

_KEPT_SECONDS = 600.0
"""So long copies of a dataset that was made by names get the sizes and versions that the first one got, whatever is listed since."""

_MOST_ASKED = 16
"""Origins, each way of reaching them, whose connections are kept to ask for single objects."""

_Open = Callable[[ListingProgress], Opened]
_Result = TypeVar("_Result")
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """Who waits for a dataset: told how far the listing is, then the dataset or the error."""

    opened: Callable[[Dataset], None]
    failed: Callable[[PrefeedError], None]
    listing: ListingProgress
    found: Callable[[int, Manifest, float], None] | None = None
    """Told the dataset's number, 0 if it has none yet, its manifest, and when it was found, when only its names are of then;
    None: waits for sizes and versions too."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A URL as a client gave it, which may hold credentials, and how that client reaches it."""

    url: str
    reach: Reach


@dataclass(slots=True)
class _Listing:
    """Listings of one origin, one after the other.

    Attributes:
        key: URL, and what tells the origin from others of this URL.
        source: The origin.
        began_at: When the one that runs began, by the server's clock; None: none runs.
        running: Who waits for that one.
        waiting: Who waits for the next, which begins when that one is done.
        asked: How those who wait for the next reach the origin, each way once.
    """

    key: _Key
    source: Source
    began_at: float | None = None
    running: list[Waiter] = field(default_factory=list)
    waiting: list[Waiter] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)


@dataclass(slots=True)
class _Settling:
    """Sizes and times of one manifest's files, being asked for or known.

    Attributes:
        key: See ``_Listing``.
        listed_at: When the names were found last, in seconds since 1970.
        waiters: Who waits for them.
        is_running: They are being asked for.
        is_due: They are to be asked for once more: it was found by its names meanwhile.
        result: The dataset with them, since the last time that they were asked for.
    """

    key: _Key
    listed_at: float = 0.0
    waiters: list[Waiter] = field(default_factory=list)
    is_running: bool = True
    is_due: bool = False
    result: Dataset | None = None


class Openings:
    """Opens datasets for clients, each as it is listed after it was asked for.

    A listing that runs may have passed a place where something was written since, so it is not for those who ask
    meanwhile: they share the next one, which begins when it is done. One over a network begins ``_GATHER_SECONDS`` after
    it was asked for, or when all ranks of the job that are on this node have asked, and all of them share the first one.
    Shared is what is of one origin: who sees other files behind a URL, or speaks to another store, has a listing of his own.

    Manifests are those of the home; catalogues lie in ``own_dir``, which no other server has.

    **Threads**: the loop's thread calls everything; results come back to it through ``call_soon``.
    """

    def __init__(
        self,
        config: Config,
        own_dir: Path,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], None]], None],
        call_later: Callable[[float, Callable[[], None]], None],
        find_dataset: Callable[[Path, View | None], Dataset | None],
        add_dataset: Callable[[Opened], Dataset],
        foresee: Callable[[Source, int], None],
    ) -> None:
        self._config = config
        self._own_dir = own_dir
        self._clock = clock
        self._call_soon = call_soon
        self._call_later = call_later
        self._find_dataset = find_dataset
        self._add_dataset = add_dataset
        self._foresee = foresee
        self._library = ManifestLibrary(config.home)
        self._openings: dict[str, list[Waiter]] = {}
        self._listings: dict[_Key, _Listing] = {}
        self._settlings: dict[Path, _Settling] = {}
        self._asked: deque[tuple[_Asked, BrowsableSource]] = deque(maxlen=_MOST_ASKED)

    def source_of(self, url: str, reach: Reach) -> Source:
        """Return what reads a URL as the client that asks would.

        Raises:
            CredentialsError: It did not say who speaks, and the home's own file does not say it either.
            ServerError: Behind its address this server may have another store than the client.
        """
        self._require_same_store(url, reach)
        source = open_source(url, self._config, access=reach.access, view=reach.view)
        source.mark  # noqa: B018 - later callers do not expect an error
        return source

    def _require_same_store(self, url: str, reach: Reach) -> None:
        """Raise ServerError where this server may have another store behind the URL than the client."""
        store = unwrapped(canonical_url(url))
        if not reach.shares_network and is_of_store(store):
            if is_of_one_network(store, reach.access or own_access(store, self._config)):
                raise ServerError(
                    f"the node server runs in another network namespace, where the address of {store} may be "
                    "another machine's; give the store's address as a name with a domain or as an IP address, or set another "
                    "PREFEED_HOME here"
                )

    def renew(self, dataset: Dataset, url: str, reach: Reach) -> None:
        """A client is given the dataset: from now on its store is reached as this client does it, who lists it or not."""
        if dataset.catalogue is None and is_of_store(dataset.source.url):
            dataset.renew(self.source_of(url or dataset.source.url, reach))

    def ask_object(
        self,
        url: str,
        path: str,
        reach: Reach,
        told: Callable[[ObjectInfo], None],
        failed: Callable[[PrefeedError], None],
    ) -> None:
        """Ask the origin of a URL for size and version of an object, as the client would; a connection is used again.

        Raises:
            CredentialsError, ServerError: See ``source_of``.
        """
        asked = _Asked(url, reach)
        found = next((kept for kept in self._asked if kept[0] == asked), None)
        if found is None:
            self._require_same_store(url, reach)
            found = asked, open_plain_source(url, self._config, access=reach.access, view=reach.view)
            self._asked.append(found)
        kept = found

        def refused(error: PrefeedError) -> None:
            if isinstance(error, AccessDeniedError) and kept in self._asked:
                self._asked.remove(kept)  # its token may have expired
            failed(error)

        self._start(without_credentials(url), lambda _: kept[1].info(path), told, refused, lambda *_: None)

    def open_url(self, url: str, waiter: Waiter, reach: Reach, *, listing_age: float = 0.0, ranks: int = 1) -> None:
        """Open the dataset of a URL, of a listing that begins from now on, or began at most ``listing_age`` seconds ago.

        It is of the origin that the client has behind that URL.

        Raises:
            CredentialsError: See ``source_of``.
        """
        source = self.source_of(url, reach)
        root, view = source.url, _view_of(source.url, reach)
        asked = _Asked(url, reach)
        key = root, "" if view is None else view.mark, source.mark
        # What lies there of an earlier process with the numbers of this one may be another's.
        if not listing_age or (view is not None and root not in view.listed):
            self._list(key, source, asked, waiter, listing_age, ranks)
            return

        def find(_: ListingProgress) -> Opened | None:
            found = self._library.find(url, listing_age, mark=_mark_of(source, view))
            return None if found is None else self._opened_of(asked, found)

        def done(found: Opened | None) -> None:
            settling = None if found is not None else self._young_settling(key, listing_age)
            if found is not None:
                waiter.opened(self._add_dataset(found))
            elif settling is not None:
                settling.waiters.append(waiter)
            else:
                self._list(key, source, asked, waiter, listing_age, ranks)

        self._start(f"the listing of {root}", find, done, waiter.failed, waiter.listing)

    def _list(
        self, key: _Key, source: Source, asked: _Asked, waiter: Waiter, listing_age: float, ranks: int
    ) -> None:  # fmt: skip
        """List the URL for this one, and for all others who wait for it."""
        listing = self._listings.get(key)
        if listing is None:
            listing = self._listings[key] = _Listing(key, source)
            if not key[1] and is_local(key[0]):
                self._call_soon(lambda: self._begin_listing(listing))
            else:
                seconds = _RANKS_SECONDS if ranks > 1 else _GATHER_SECONDS
                self._call_later(seconds, lambda: self._begin_listing(listing))
        if listing.began_at is not None and listing_age and self._clock() - listing.began_at <= listing_age:
            listing.running.append(waiter)
            return
        listing.waiting.append(waiter)
        listing.asked = [*(other for other in listing.asked if other != asked), asked]
        if listing.began_at is None and 1 < ranks <= len(listing.waiting):  # no others are to come
            self._begin_listing(listing)

    def _begin_listing(self, listing: _Listing) -> None:
        if listing.began_at is not None or not listing.waiting:
            return  # it began before the pause was over
        listing.began_at = self._clock()
        listing.running, listing.waiting = listing.waiting, []
        ways, listing.asked = listing.asked, []
        root = listing.key[0]
        may_be_found = all(waiter.found for waiter in listing.running)

        def list_objects(progress: ListingProgress) -> Opened:
            for asked in ways[:0:-1]:  # the last who asked has the freshest token
                with contextlib.suppress(AccessDeniedError):
                    return self._listed(asked, progress, may_be_found=may_be_found)
            return self._listed(ways[0], progress, may_be_found=may_be_found)

        def opened(result: Opened) -> None:
            if result.view is not None:
                result.view.listed.add(root)
            if not result.is_settled:
                self._found(listing, result, ways[-1])
                return
            dataset = self._add_dataset(result)
            for waiter in self._end_listing(listing):
                waiter.opened(dataset)

        def failed(error: PrefeedError) -> None:
            for waiter in self._end_listing(listing):
                waiter.failed(error)

        def tell(objects: int, size: int) -> None:
            self._foresee(listing.source, objects)
            for waiter in listing.running:
                waiter.listing(objects, size)

        self._start(f"the listing of {root}", list_objects, opened, failed, tell)

    def _listed(self, asked: _Asked, progress: ListingProgress, *, may_be_found: bool) -> Opened:
        source = self.source_of(asked.url, asked.reach)
        mark = _mark_of(source, _view_of(source.url, asked.reach))
        if may_be_found:
            by_names = self._library.find_by_names(source, progress=progress, mark=mark)
            if by_names is not None:
                return self._opened_of(asked, by_names)
        found = self._library.open_listed(
            asked.url,
            source_factory=lambda _: source,
            progress=progress,
            mark=mark,
            retry_deadline=self._config.limits.retry_seconds,
        )
        return self._opened_of(asked, found)

    def _found(self, listing: _Listing, result: Opened, asked: _Asked) -> None:
        """Names are of now; who is told of them may not read anything before the files were asked."""
        manifest = result.manifest
        assert not manifest.grows
        number = self._add_dataset(result).number if manifest.is_settled else 0  # nothing can be read by mere names
        settling = self._settle(manifest.directory, asked, listing.key, listed_at=result.listed_at)
        for directory, other in list(self._settlings.items()):
            is_old = result.listed_at - other.listed_at > _KEPT_SECONDS
            if other.key == listing.key and not other.is_running and is_old:
                del self._settlings[directory]
        for waiter in self._end_listing(listing):
            if waiter.found is None:
                settling.waiters.append(waiter)
            else:
                waiter.found(number, manifest, result.listed_at)

    def _young_settling(self, key: _Key, age_seconds: float) -> _Settling | None:
        """Return what is about to be the manifest in force, when that is young enough."""
        now = time.time()
        running = (one for one in self._settlings.values() if one.is_running and one.key == key and one.listed_at)
        return next((one for one in running if now - one.listed_at <= age_seconds), None)

    def _end_listing(self, listing: _Listing) -> list[Waiter]:
        """Return who waited for the listing that is done; the next one begins if somebody waits for it."""
        done, listing.running, listing.began_at = listing.running, [], None
        if listing.waiting:
            self._begin_listing(listing)
        else:
            del self._listings[listing.key]
        return done

    def _opened_of(self, asked: _Asked, found: Listed) -> Opened:
        source = self.source_of(asked.url, asked.reach)
        return Opened(
            manifest=Manifest.open(found.manifest.directory, locked=False),  # who is to have it locks it
            source=source,
            view=_view_of(source.url, asked.reach),
            listed_at=found.began_at,
            is_settled=found.is_settled,
        )

    def settle(self, directory: Path, url: str, waiter: Waiter, reach: Reach) -> None:
        """Open the manifest with the paths of this one, whose sizes and versions were asked for after it was found.

        Raises:
            PrefeedError: It lies elsewhere than this home's do.
        """
        self._require_own(directory)
        if reach.view is not None:
            raise PrefeedError(f"{directory.name} was listed by a process with another root directory: list it again")
        asked, key = _Asked(url, reach), (canonical_url(url), "", "")
        settling = self._settlings.get(directory)
        if settling is None:
            settling = self._settle(directory, asked, key)
        if settling.result is not None and self._find_dataset(settling.result.manifest.directory, None) is None:
            settling = self._settle(directory, asked, key)  # it was let go of meanwhile
        if settling.result is not None:
            waiter.opened(settling.result)
        else:
            settling.waiters.append(waiter)

    def _settle(self, directory: Path, asked: _Asked, key: _Key, *, listed_at: float = 0.0) -> _Settling:
        """Ask all files of a manifest for size and time, from now on; its names are of then, or of an unknown time."""
        settling = self._settlings.get(directory)
        if settling is not None and settling.is_running:
            settling.is_due = True  # those that were asked may have changed: all are asked once more
            settling.listed_at = max(settling.listed_at, listed_at)
        else:
            settling = self._settlings[directory] = _Settling(key, listed_at)
            self._ask_files(settling, directory, asked)
        return settling

    def _ask_files(self, settling: _Settling, directory: Path, asked: _Asked) -> None:
        settling.is_due = False
        listed_at = settling.listed_at

        def ask(_: ListingProgress) -> Opened:
            mark = listing_mark(self.source_of(asked.url, asked.reach))
            found = self._library.settle(Manifest.open(directory), mark=mark, began_at=listed_at)
            return self._opened_of(asked, found)

        def done(result: Opened) -> None:
            dataset = self._add_dataset(result)
            if settling.is_due:
                self._ask_files(settling, directory, asked)
                return
            settling.is_running, settling.result = False, dataset
            for one in settling.waiters:
                one.opened(dataset)

        def failed(error: PrefeedError) -> None:
            if settling.is_due:
                self._ask_files(settling, directory, asked)
                return
            del self._settlings[directory]
            for one in settling.waiters:
                one.failed(error)

        self._start(f"the sizes of {canonical_url(asked.url)}", ask, done, failed, lambda *_: None)

    def _require_own(self, directory: Path) -> None:
        if not directory.is_relative_to(self._config.home):
            raise PrefeedError(f"the manifest must lie below {self._config.home}, not in {directory}")
        if directory.is_relative_to(self._config.home / NODES) and not directory.is_relative_to(self._own_dir):
            raise PrefeedError(f"{directory} belongs to another server; this server has {self._own_dir}")

    def open_catalogue(self, name: str, paths_file: Path, num_samples: int, waiter: Waiter, reach: Reach) -> None:
        """Open the catalogue of this name, which begins with the paths in a file; that is removed.

        Raises:
            PrefeedError: That is no name of a catalogue.
        """
        try:
            directory = directory_of(self._own_dir, name, "" if reach.view is None else reach.view.mark)
        except PrefeedError:
            paths_file.unlink(missing_ok=True)
            raise

        def read_paths(_: ListingProgress) -> Opened:
            return self._open_catalogue(directory, _take_paths(paths_file), num_samples, reach.view)

        if not self._begin(directory.name, read_paths, waiter, reach.view, directory=directory):
            paths_file.unlink(missing_ok=True)

    def reopen(self, directory: Path, url: str, num_samples: int, waiter: Waiter, reach: Reach) -> None:
        """Open a manifest or catalogue that a client had open on another server.

        Raises:
            PrefeedError: It lies elsewhere than this home's do, or is of another origin than the client has behind the URL.
        """
        self._require_own(directory)
        view = reach.view
        if is_catalogue(self._own_dir, directory):
            if view is not None and not directory.name.endswith(view.mark):
                raise PrefeedError(f"{directory.name} belongs to a process with another root directory: list it again")
            self._begin(
                directory.name, lambda _: self._open_catalogue(directory, None, num_samples, view), waiter, view,
                directory=directory,
            )  # fmt: skip
            return

        def reopen_manifest(_: ListingProgress) -> Opened:
            manifest = Manifest.open(directory, locked=False)
            with contextlib.suppress(OSError):
                os.utime(manifest.directory)  # in use again: see ``remove_replaced``
            if not manifest.is_settled:
                raise PrefeedError(f"{directory.name} has names alone: ask for sizes and versions first")
            source = self.source_of(url or manifest.url, reach)
            if is_of_store(source.url) and not self._library.is_of(directory.parent, source.url, source.mark):
                # Its keys say which store they are of; what another store has must not be put under them.
                raise PrefeedError(
                    f"{directory.name} lists {source.url} of another endpoint or account than this client's"
                )
            return Opened(manifest=manifest, source=source, view=_view_of(source.url, reach))

        origin = self.source_of(url, reach).mark if url else ""
        self._begin(f"{directory} {'' if view is None else view.mark} {origin}", reopen_manifest, waiter, view)

    def _open_catalogue(self, directory: Path, paths: list[str] | None, num_samples: int, view: View | None) -> Opened:
        catalogue, mean_bytes = open_catalogue(directory, paths)
        learned = LearnedMapWriter.open_or_create(directory, num_samples) if num_samples else None
        source = PosixSource(catalogue.url, max_bytes=self._config.limits.max_object_bytes, view=view)
        return Opened(manifest=catalogue, source=source, mean_bytes=mean_bytes, learned=learned, view=view)

    def _begin(
        self, name: str, open_it: _Open, waiter: Waiter, view: View | None, *, directory: Path | None = None
    ) -> bool:
        """Open it in a thread; False when it is open, or being opened, already."""
        found = None if directory is None else self._find_dataset(directory, view)
        if found is not None:  # it is open for writing, and must not be opened a second time
            waiter.opened(found)
            return False
        waiters = self._openings.get(name)
        if waiters is not None:
            waiters.append(waiter)
            return False
        waiters = self._openings[name] = [waiter]

        def opened(result: Opened) -> None:
            dataset = self._add_dataset(result)
            for one in self._openings.pop(name):
                one.opened(dataset)

        def failed(error: PrefeedError) -> None:
            for one in self._openings.pop(name):
                one.failed(error)

        def tell(objects: int, size: int) -> None:
            for one in waiters:
                one.listing(objects, size)

        self._start(name, open_it, opened, failed, tell)
        return True

    def _start(
        self,
        name: str,
        open_it: Callable[[ListingProgress], _Result],
        opened: Callable[[_Result], None],
        failed: Callable[[PrefeedError], None],
        tell: ListingProgress,
    ) -> None:
        """Do it in a thread of its own; the rest is called in the loop's."""
        threading.Thread(
            target=self._run, args=(name, open_it, opened, failed, tell), name="prefeed-listing", daemon=True
        ).start()

    def _run(
        self,
        name: str,
        open_it: Callable[[ListingProgress], _Result],
        opened: Callable[[_Result], None],
        failed: Callable[[PrefeedError], None],
        tell: ListingProgress,
    ) -> None:
        next_report = 0.0

        def progress(objects: int, size: int) -> None:
            nonlocal next_report
            if self._clock() >= next_report:
                next_report = self._clock() + _REPORT_SECONDS
                self._call_soon(lambda: tell(objects, size))

        try:
            result = open_it(progress)
        except Exception as err:  # noqa: BLE001 - whatever it is, those who wait must hear of it
            why = explained(err, self._config.home) or explained(err.__cause__, self._config.home)
            if isinstance(err, PrefeedError) and not why:
                self._call_soon(partial(failed, err))
                return
            why = why or f"{type(err).__name__}: {err}"
            other = PrefeedError(f"cannot make the manifest of {name} below {self._config.home}: {why}")
            self._call_soon(lambda: failed(other))
        else:
            self._call_soon(lambda: opened(result))


def explained(err: BaseException | None, home: Path) -> str:
    """Describe how to correct an error of the system; empty if that is not known."""
    if isinstance(err, OSError) and err.errno in NO_DESCRIPTORS:
        return lack_of_descriptors()
    return lack_of_space(err, home)


def _view_of(root: str, reach: Reach) -> View | None:
    return None if is_of_store(root) else reach.view


def _mark_of(source: Source, view: View | None) -> str:
    """Return what tells the origin from others of its URL. **Blocking**: a directory is looked at."""
    return listing_mark(source) if view is None else view.mark


def _take_paths(paths_file: Path) -> list[str]:
    """Return the NUL-separated paths of a file, and remove it."""
    try:
        return [os.fsdecode(name) for name in paths_file.read_bytes().split(b"\0") if name]
    finally:
        with contextlib.suppress(OSError):
            paths_file.unlink()
