"""Several operators agree on the one that works, by a Lease of Kubernetes.

::

    candidate ─the lease is free, or has not been renewed for its duration─→ leader ─not renewed in time─→ candidate

**Clocks**: the times in a lease are for people. A candidate measures by its own clock how long the lease has stayed as it is, so
clocks of nodes may differ; only their speeds must agree. A leader stops before its lease may be taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from prefeed.errors import ClusterError
from prefeed.kubernetes.nodes import MANAGED
from prefeed.kubernetes.operator.groups import Resource
from prefeed.sampleset.documents import Document

LEASES: Final = Resource("coordination.k8s.io/v1", "leases", "Lease")
LEASE: Final = "prefeed-operator"
"""Name of the lease."""

DURATION_SECONDS: Final = 15
_DEADLINE_SHARE: Final = 2 / 3
"""Of the duration: a leader that could not renew for so long stops. The rest is for its last requests to end."""

_ROUND_SHARE: Final = 2 / 15
"""Of the duration: time between two requests for the lease."""

_RELEASE_SECONDS: Final = 5.0
"""At the end: kubelet does not wait for long."""

_log = logging.getLogger("prefeed.operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Which lease.

    Attributes:
        namespace: Of the lease.
        name: Of the lease.
        seconds: After which another operator takes a lease that is not renewed.
    """

    namespace: str
    name: str = LEASE
    seconds: int = DURATION_SECONDS


class Api(Protocol):
    """The requests that are made; ``client.Client`` makes them."""

    async def get(self, resource: Resource, namespace: str, name: str) -> Document: ...
    async def create(self, resource: Resource, document: Document) -> Document: ...
    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document: ...


class Election:
    """One candidate.

    Args:
        api: Makes requests.
        lease: Which lease.
        identity: Of this candidate; no other one has it.
        now: Returns the time, for people.
        clock: Returns seconds that never go back.

    Attributes:
        is_leader: The lease is this candidate's.
    """

    def __init__(
        self, api: Api, lease: Lease, identity: str, *, now: Callable[[], datetime], clock: Callable[[], float]
    ) -> None:
        self._api = api
        self._lease = lease
        self._identity = identity
        self._now = now
        self._clock = clock
        self._seen: Document | None = None
        self._seen_at = 0.0
        self._renewed_at = 0.0
        self.is_leader = False

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Work while this is the leader, until this is cancelled. The lease is free then.

        Args:
            work: Ends only if it is cancelled, or by an error, which is raised here.
        """
        try:
            while True:
                await self.try_round()
                if self.is_leader:
                    await self._work(work)
                await asyncio.sleep(self._lease.seconds * _ROUND_SHARE)
        finally:
            await self._release()

    async def _work(self, work: Callable[[], Awaitable[None]]) -> None:
        _log.info("%s leads", self._identity)
        task = asyncio.ensure_future(work())
        try:
            while self.is_leader:
                await asyncio.wait([task], timeout=self._lease.seconds * _ROUND_SHARE)
                if task.done():
                    break
                try:
                    async with asyncio.timeout(max(self.seconds_left, 0)):
                        await self.try_round()
                except TimeoutError:
                    self.is_leader = False
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if not self.is_leader:
            _log.warning("%s leads no more: its lease was not renewed in time", self._identity)

    async def try_round(self) -> None:
        """Look at the lease once, and take or renew it if that may be; ``is_leader`` says what has come of it."""
        try:
            await self._round()
        except ClusterError as err:
            is_another = err.details["status"] in (404, 409)  # it was changed since it was looked at
            self.is_leader = self.is_leader and not is_another and self.seconds_left > 0
            _log.warning("the lease %s: %s", self._lease.name, err)

    @property
    def seconds_left(self) -> float:
        """Until a leader stops that cannot renew its lease."""
        return self._lease.seconds * _DEADLINE_SHARE - (self._clock() - self._renewed_at)

    async def _round(self) -> None:
        begun = self._clock()
        try:
            found = await self._api.get(LEASES, self._lease.namespace, self._lease.name)
        except ClusterError as err:
            if err.details["status"] != 404:
                raise
            self._took(await self._api.create(LEASES, self._made()), begun)
            return
        holder = (found.get("spec") or {}).get("holderIdentity") or ""
        if holder != self._identity and holder and not self._is_stale(found):
            self.is_leader = False
            return
        change = {"spec": self._spec(found, is_taken=holder != self._identity)}
        self._took(await self._api.patch(LEASES, found, change), begun)

    def _is_stale(self, found: Document) -> bool:
        """Return whether the lease has stayed as it is for its whole duration, by this clock."""
        if self._seen is None or self._seen["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            self._seen, self._seen_at = found, self._clock()
        said = (found.get("spec") or {}).get("leaseDurationSeconds") or 0
        return self._clock() - self._seen_at >= max(said, self._lease.seconds)

    def _took(self, found: Document, begun: float) -> None:
        """Note that the lease is this one's: from when the request was made, because an answer may take long."""
        self._seen, self._seen_at = found, begun
        self._renewed_at, self.is_leader = begun, True

    def _made(self) -> Document:
        metadata = {"name": self._lease.name, "namespace": self._lease.namespace, "labels": MANAGED}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": self._spec({})}

    def _spec(self, found: Document, *, is_taken: bool = True) -> dict[str, Any]:
        before = found.get("spec") or {}
        now = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lease.seconds,
            "acquireTime": now if is_taken else before.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (1 if is_taken and before else 0),
        }

    async def _release(self) -> None:
        """The next operator need not wait for the lease to end."""
        if not self.is_leader or self._seen is None:
            return
        self.is_leader = False
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._api.patch(LEASES, self._seen, {"spec": {"holderIdentity": ""}})
        except (ClusterError, TimeoutError) as err:
            _log.warning("the lease %s is not released: %s", self._lease.name, str(err) or "no answer in time")
