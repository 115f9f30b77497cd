"""Files that several catalogues name: opened once, stored once, and paid for once.

A catalogue is one list's, or one learned dataset's, and an object id means something in that one alone. The same path
in another catalogue of the same view is the same file: its **twin**. A fetch of a file whose twin is

    on its way   waits for that one's bytes;
    a resident   asks the origin for nothing but the file's version, and has the twin's entry if that is of this version.

So both have what one of them has opened, and each has asked since its own epoch began. An entry goes when no one has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prefeed.core.actions import Free, Placement, Ticket
from prefeed.core.inventory import Key
from prefeed.core.schedule import Scheduler
from prefeed.core.table import FETCHING, RESIDENT
from prefeed.server.datasets import Registry
from prefeed.server.fetchers import NOTHING, Held, Result
from prefeed.sources.manifest import entry_key


class Sharing:
    """Knows who waits for whose request, and who has whose entry.

    **Threads**: the loop's.
    """

    def __init__(self, registry: Registry, scheduler: Scheduler) -> None:
        self._registry = registry
        self._scheduler = scheduler
        self._followers: dict[Key, list[Ticket]] = {}
        self._following: set[Key] = set()

    def begin(self, ticket: Ticket) -> Held | None:
        """Return what the node has of the file; None when it is on its way: ``end`` yields the ticket then, once it has come."""
        if not (twins := self._registry.twins(ticket.dataset, ticket.object_id)):
            return NOTHING
        if keys := self._resident_keys(twins):
            return Held(keys)
        for twin in twins:
            if self._scheduler.holdings.state(twin) == FETCHING and twin not in self._following:
                self._followers.setdefault(twin, []).append(ticket)
                self._following.add((ticket.dataset, ticket.object_id))
                return None
        return NOTHING

    @property
    def has_followers(self) -> bool:
        """True while some wait for the request of another."""
        return bool(self._followers)

    def end(self, result: Result) -> Iterator[tuple[Ticket, Held]]:
        """A request has ended: yield those who waited for it, and what they have if the file is still the same."""
        leader, fetched = result.job.ticket, result.fetched
        for ticket in self._followers.pop((leader.dataset, leader.object_id), ()):
            self._following.discard((ticket.dataset, ticket.object_id))
            if keys := self._resident_keys(self._registry.twins(ticket.dataset, ticket.object_id)):
                yield ticket, Held(keys)
            elif fetched is not None and fetched.version:
                manifest = result.job.manifest
                key = entry_key(manifest.url, manifest.path(leader.object_id), fetched.version)
                yield ticket, Held((key,), fetched.data)
            else:
                yield ticket, NOTHING

    def host_of(self, result: Result) -> Key | None:
        """Return who has the entry of a file that was found unchanged; None when none keeps it any more."""
        assert result.fetched is not None
        ticket, manifest = result.job.ticket, result.job.manifest
        key = entry_key(manifest.url, manifest.path(ticket.object_id), result.fetched.version)
        return self._resident(self._registry.twins(ticket.dataset, ticket.object_id), key)

    def stored(self, ticket: Ticket) -> None:
        """An entry is committed: it is paid for once, also if another dataset came by it in another way."""
        key = ticket.dataset, ticket.object_id
        if ticket.placement != Placement.RESIDENT or not (twins := self._registry.twins(*key)):
            return
        if self._resident(twins, self._registry.key(*key)) is not None:
            self._scheduler.holdings.become_guest(key)

    def is_last(self, free: Free) -> bool:
        """Return True when no other has the entry, which then goes; else who stays pays for it, if who leaves it did."""
        twins = self._registry.twins(free.dataset, free.object_id)
        key = self._registry.key(free.dataset, free.object_id) if twins else b""
        holders = [
            twin for twin in twins if self._scheduler.holdings.has_entry(twin) and self._registry.key(*twin) == key
        ]
        if holders:
            self._scheduler.holdings.bequeath(free, holders)
        return not holders

    def _resident(self, twins: Iterable[Key], entry: bytes) -> Key | None:
        """Return that one of these which keeps this entry."""
        residents = (twin for twin in twins if self._scheduler.holdings.state(twin) == RESIDENT)
        return next((twin for twin in residents if self._registry.key(*twin) == entry), None)

    def _resident_keys(self, twins: Iterable[Key]) -> tuple[bytes, ...]:
        """Return the keys of the entries that these keep, as far as they have a version."""
        residents = (twin for twin in twins if self._scheduler.holdings.state(twin) == RESIDENT)
        keys = (self._registry.datasets[number].lasting_key(object_id) for number, object_id in residents)
        return tuple(dict.fromkeys(filter(None, keys)))
