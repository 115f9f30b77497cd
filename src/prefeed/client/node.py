"""What commands ask of the node server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType

from prefeed.client.connection import Connection
from prefeed.config import Config
from prefeed.errors import CredentialsError
from prefeed.sources.credentials import options_for
from prefeed.sources.protocol import Source
from prefeed.sources.store_access import StoreAccess, access_as_made
from prefeed.sources.urls import canonical_url, is_of_store, open_source, unveiled, unwrapped
from prefeed.types import (
    ClearResult,
    ListingProgress,
    ObjectInfo,
    PlanInfo,
    ReadCounts,
    ServerStatus,
    SessionInfo,
    Statistics,
    WarmResult,
)
from prefeed.wire import messages as m


class NodeClient:
    """A control connection.

    **Ownership**: the caller closes it; also a context manager.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def connect(
        cls, config: Config, *, autostart: bool | None = None, answer_seconds: float | None = None
    ) -> NodeClient:
        """Return a connection to the home's server.

        Args:
            config: Settings.
            autostart: Start a server when none runs; defaults to the setting.
            answer_seconds: A server that says nothing for so long is taken for dead; defaults to minutes.

        Raises:
            ServerUnavailableError: None runs and none was started.
        """
        if answer_seconds is None:
            return cls(Connection.open(config, autostart=autostart))
        return cls(Connection.open(config, autostart=autostart, answer_seconds=answer_seconds))

    @property
    def connection(self) -> Connection:
        """The connection itself, for who sends plans on it."""
        return self._connection

    def status(self) -> ServerStatus:
        """Return what the server is doing."""
        return self._connection.request(m.GetStatus(), m.StatusReport).status

    def statistics(self) -> Statistics:
        """Return the server's counts since its start."""
        return self._connection.request(m.GetStatistics(), m.StatisticsReport).statistics

    def plans(self) -> tuple[PlanInfo, ...]:
        """Return how far every consumer has come, in the order in which they came."""
        return self._connection.request(m.GetPlans(), m.PlansReport).plans

    def open_dataset(  # noqa: PLR0913 - what one message asks
        self,
        url: str,
        *,
        listing_age: float = 0.0,
        ranks: int = 1,
        by_names: bool = False,
        settle: bool = False,
        manifest_dir: str = "",
        num_samples: int = 0,
        listing: ListingProgress | None = None,
        made_with: StoreAccess | None = None,
    ) -> m.DatasetOpened:
        """Return the number and the manifest's directory of a URL, as it is listed now.

        Args:
            url: Root of the objects.
            listing_age: Seconds; a listing that began no longer ago will do.
            ranks: Processes of this node that are about to ask for the same; one listing is to do for all of them.
            by_names: A manifest whose paths are those of now will do; it is settled before it is read.
            settle: Of ``manifest_dir``: the manifest with the same paths, and sizes and versions of now.
            manifest_dir: Instead of a URL, a manifest or catalogue that was made before; nothing is listed.
            num_samples: Samples of a dataset whose files are learned; 0 for others.
            listing: Told how far a listing has come.
            made_with: How the store was reached when the dataset was made; see ``access_now``.

        Raises:
            SourceError: The origin cannot be listed; the message says what to change.
        """
        options, proxies = access_told(url, self._connection.config, made_with)
        question = m.OpenDataset(
            self._connection.next_token(),
            _anywhere(url), listing_age, ranks=ranks, by_names=by_names, settle=settle,
            manifest_dir=manifest_dir, num_samples=num_samples, options=options, proxies=proxies,
        )  # fmt: skip
        return self._connection.request(question, m.DatasetOpened, meanwhile=_listing_to(listing))

    def open_catalogue(self, name: str, paths_file: str, *, num_samples: int = 0) -> m.DatasetOpened:
        """Return the number and the directory of a catalogue of files.

        Args:
            name: Of the catalogue.
            paths_file: Files that it begins with, NUL-separated; the server removes it.
            num_samples: Samples of a dataset whose files are learned; 0 for others.
        """
        token = self._connection.next_token()
        question = m.OpenDataset(token, "", catalogue=name, paths_file=paths_file, num_samples=num_samples)
        return self._connection.request(question, m.DatasetOpened)

    def read_counts(self, consumer: int, *, within_seconds: float) -> ReadCounts:
        """Return how the reads of one loader went.

        Raises:
            ServerBusyError: No answer within that time.
            ServerUnavailableError: The server is gone.
        """
        question = m.GetReadCounts(consumer, self._connection.next_token())
        return self._connection.request(question, m.ReadCountsReport, within_seconds=within_seconds).counts

    def warm(
        self,
        url: str,
        *,
        listing_age: float = 0.0,
        progress: Callable[[WarmResult], None] | None = None,
        listing: ListingProgress | None = None,
    ) -> WarmResult:
        """Fill the tiers with everything below the URL, until all is in them or they are full.

        Args:
            url: Root of the objects.
            listing_age: Seconds; a listing that began no longer ago will do.
            progress: Told how far it is, ten times a second.
            listing: Told how far a listing has come.

        Raises:
            SourceError: The origin cannot be listed.
        """
        options, proxies = access_told(url, self._connection.config)
        token = self._connection.next_token()
        question = m.Warm(token, _anywhere(url), listing_age, options=options, proxies=proxies)
        return self._warm(question, progress, listing)

    def warm_in_order(
        self,
        dataset: int,
        ids_file: str,
        *,
        max_in_flight: int = 0,
        progress: Callable[[WarmResult], None] | None = None,
    ) -> WarmResult:
        """Fill the tiers with objects of an open dataset, in an order.

        Args:
            dataset: Its number on this server.
            ids_file: Raw ids in a file in transit, which the server removes; see ``RegisterPlan``.
            max_in_flight: Most at a time; 0: as many as the origin takes.
            progress: Told how far it is, ten times a second.
        """
        token = self._connection.next_token()
        question = m.Warm(token, "", 0.0, dataset=dataset, ids_file=ids_file, max_in_flight=max_in_flight)
        return self._warm(question, progress, None)

    def _warm(
        self, question: m.Warm, progress: Callable[[WarmResult], None] | None, listing: ListingProgress | None
    ) -> WarmResult:
        tell_listing = _listing_to(listing)

        def meanwhile(message: m.AnyMessage) -> bool:
            if isinstance(message, m.WarmReport) and not message.done:
                if progress is not None:
                    progress(message.result)
                return True
            return tell_listing(message)

        result = self._connection.request(question, m.WarmReport, meanwhile=meanwhile).result
        if progress is not None:
            progress(result)
        return result

    def clear(self, url: str | None) -> ClearResult:
        """Free what the tier holds of a URL, or everything; the origin is untouched."""
        return self._connection.request(m.Clear(None if url is None else _anywhere(url)), m.Cleared).result

    def ask_object(self, url: str, path: str, made_with: StoreAccess | None = None) -> ObjectInfo:
        """Return size and version that an object has now, which the server asks its origin for.

        Args:
            url: Root of the object, in a store.
            path: Of the object, below the root.
            made_with: See ``open_dataset``.

        Raises:
            SourceError: The origin's own error.
        """
        options, proxies = access_told(url, self._connection.config, made_with)
        token = self._connection.next_token()
        question = m.AskObject(token, _anywhere(url), os.fsencode(path), options, proxies)
        answer = self._connection.request(question, m.ObjectAsked)
        return ObjectInfo(
            path=path, size_bytes=answer.size_bytes, version=answer.version, modified_seconds=answer.modified_seconds,
            sends_parts=answer.sends_parts,
        )  # fmt: skip

    def locate(self, url: str) -> m.Located:
        """Return which open dataset holds the object of this URL.

        Raises:
            ServerBusyError: No answer as long as a request to the origin may take; the connection is of no more use.
        """
        config = self._connection.config
        mark = open_source(url, config).mark
        return self._connection.request(m.Locate(url, mark), m.Located, within_seconds=config.limits.request_seconds)

    def new_session(self) -> int:
        """Return the id of a session made now: random, 1 to 2**32 - 1, in use by no other."""
        return self._connection.request(m.NewSession(), m.SessionCreated).session

    def list_sessions(self) -> tuple[SessionInfo, ...]:
        """Return all sessions of the node, by id, with their caches."""
        return self._connection.request(m.ListSessions(), m.SessionsReport).sessions

    def drop_sessions(self, ids: Sequence[int]) -> None:
        """Remove sessions with all that is in them, in memory and on disk; their users continue without.

        Raises:
            SessionNotFoundError: One of them does not exist; none was removed.
        """
        self._connection.request(m.DropSessions(tuple(ids)), m.SessionsDropped)

    def stop(self) -> None:
        """End the server and wait until it is gone; its memory is free again."""
        self._connection.request(m.Stop(), m.Stopping)
        self._connection.wait_closed()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> NodeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def access_now(url: str, config: Config, made_with: StoreAccess | None = None) -> StoreAccess | None:
    """Return how this process reaches the object store of a URL; None where there is none, or its server alone can tell.

    Args:
        url: It may be a pack's.
        config: Settings; the home's own file may name variables that only the server has.
        made_with: How the store was reached when what is read was made; see ``access_as_made``.

    Raises:
        CredentialsError: A profile that was named cannot be used.
    """
    root = canonical_url(url) if url else "/"
    if not is_of_store(root):
        return None
    store = unwrapped(root)
    try:
        options_for(store, config)
    except CredentialsError:
        return made_with
    return access_as_made(store, config, made_with)


def open_as_made(url: str, config: Config, made_with: StoreAccess | None) -> Source:
    """Return the source of a dataset, of the store that it was made of, whatever the environment names by now."""
    return open_source(url, config, access=None if made_with is None else access_now(url, config, made_with))


def access_told(
    url: str, config: Config, made_with: StoreAccess | None = None
) -> tuple[dict[str, str] | None, dict[str, str]]:
    """Return what a server is told of how this process reaches the object store of a URL: options and proxies.

    It is told nothing where there is no store, and where the home's own file names variables that only the server has.

    Raises:
        CredentialsError: A profile that was named cannot be used.
    """
    access = access_now(url, config, made_with)
    if access is None:
        return None, {}
    access = access.carried()
    return dict(access.options), dict(access.proxies)


def _anywhere(url: str) -> str:
    """Return the URL as it reads in the server's working directory: a relative path becomes absolute."""
    canonical = canonical_url(url) if url else ""
    return canonical if canonical.startswith("/") else unveiled(url)


def _listing_to(listing: ListingProgress | None) -> Callable[[m.AnyMessage], bool]:
    def meanwhile(message: m.AnyMessage) -> bool:
        if not isinstance(message, m.Listing):
            return False
        if listing is not None:
            listing(message.objects, message.bytes)
        return True

    return meanwhile
