"""Polls the servers of sets for their cache sizes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

import aiohttp

from prefeed.kubernetes.operator.groups import Choices, Group, Key
from prefeed.kubernetes.operator.reports import is_complete, servers_of, with_last_error
from prefeed.kubernetes.operator.world import World
from prefeed.kubernetes.sizes import Report, parse_report

ROUND_SECONDS: Final = 30.0
"""Interval of polls, the same as in the Paddle operator."""

_ROUNDS_OF_COMPLETE: Final = 10
"""Poll interval of a completely cached set whose pods and jobs have not changed, in rounds."""

_MOST_AT_ONCE: Final = 16
_TIMEOUT: Final = aiohttp.ClientTimeout(total=30.0, connect=5.0)
_MOST_BYTES: Final = 64 * 1024

_log = logging.getLogger("prefeed.operator")

Ask = Callable[[str], Awaitable[bytes]]
"""Returns the body of the reply from a URL, or an empty text on failure."""


class Asker:
    """Poller of servers, which keeps their last reports.

    A server that does not reply delays no other server, and its last report is kept.

    Args:
        world: Cache of objects, which locates the servers.
        ask: Sends a request.
        changed: Called with the groups whose reports have changed.
    """

    def __init__(self, world: World, ask: Ask, changed: Callable[[Iterable[Key]], None]) -> None:
        self._world = world
        self._ask = ask
        self._changed = changed
        self._reports: dict[Key, dict[str, Report]] = {}
        self._number = 0
        self._activity: dict[Key, frozenset[str]] = {}  # versions of the pods and jobs of each set in the last round

    def reports(self, key: Key) -> Mapping[str, Report]:
        """Return the last reports of a set's servers, by pod."""
        return self._reports.get(key, {})

    async def run(self) -> None:
        """Poll all servers each round until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(ROUND_SECONDS)

    async def round(self) -> None:
        """Poll the servers of all sets once."""
        self._number += 1
        keys = self._world.keys()
        for known in (self._reports, self._activity):
            for gone in known.keys() - keys:
                del known[gone]
        now, limit = datetime.now(UTC), asyncio.Semaphore(_MOST_AT_ONCE)
        asked = []
        for key in sorted(keys):
            try:
                group = self._world.group(key, now=now, choices=Choices())
                servers = servers_of(group)
            except Exception:  # noqa: BLE001 - a defect that one document shows must not stop the polls of all others
                _log.exception("%s in %s: its servers are not asked", key.name, key.namespace)
                continue
            self._keep(key, {pod: self.reports(key)[pod] for pod in servers if pod in self.reports(key)})
            is_quiet = self._activity.get(key) == (activity := _activity_of(group))
            self._activity[key] = activity
            if is_quiet and is_complete(list(self.reports(key).values())) and self._number % _ROUNDS_OF_COMPLETE:
                continue
            asked += [self._ask_one(key, pod, url, limit) for pod, url in servers.items()]
        await asyncio.gather(*asked)

    async def _ask_one(self, key: Key, pod: str, url: str, limit: asyncio.Semaphore) -> None:
        async with limit:
            text = await self._ask(url)
        if report := parse_report(key.name, text):
            known = self.reports(key)
            self._keep(key, {**known, pod: with_last_error(report, known.get(pod))})

    def _keep(self, key: Key, reports: dict[str, Report]) -> None:
        if reports != self.reports(key):
            self._reports[key] = reports
            self._changed([key])


def _activity_of(group: Group) -> frozenset[str]:
    """Return the versions of a set's pods and jobs. A change means that a job may have cleared or filled the caches."""
    documents = (*group.pods, *group.made.values())
    return frozenset(f"{each['metadata']['uid']}/{each['metadata'].get('resourceVersion')}" for each in documents)


class Requests:
    """HTTP client for the servers of sets, separate from the API client so that no server sees its credentials.

    **Ownership**: an ``async with`` block closes its connections.
    """

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(timeout=_TIMEOUT)

    async def __aenter__(self) -> Requests:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, url: str) -> bytes:
        """Return the body at a URL, or an empty text if the request fails or the body exceeds 64 KiB."""
        found = b""
        try:
            async with self._session.get(url, allow_redirects=False) as answer:
                async for piece in answer.content.iter_chunked(_MOST_BYTES):
                    found += piece
                    if len(found) > _MOST_BYTES:
                        return b""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return b""
        return found
